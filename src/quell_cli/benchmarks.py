"""The benchmarks of `quell bench`: the cost of a step, and its growth with data and batches."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree

from quell._tree import take
from quell.diagnostics.records import table
from quell.diagnostics.stepper import stepper
from quell.diagnostics.timing import in_turns
from quell.estimators._types import Estimator
from quell.models._logistic import logistic_regression
from quell.models._types import Model
from quell.training.fit import fit
from quell.training.hooks import callback, silent
from quell_cli.catalogue import Problem, problem
from quell_cli.catalogue import estimators as catalogue

BATCH = 10
STEPS = 10_000
SIZES = (10**3, 10**5, 10**7)
OPTIMIZER = optax.adam(1e-2)
KEY = jax.random.key(0)  # times do not depend on the seed

Turn = Callable[[int], float]


class Section(NamedTuple):
    """The results of one benchmark, which print as a table.

    Attributes:
      title: the subject of the benchmark.
      header: the names of the columns.
      rows: the cells.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def __str__(self) -> str:
        cells = [[f"{c:.3g}" if isinstance(c, float) else str(c) for c in row] for row in self.rows]
        return f"\n{self.title}\n{table(self.header, cells)}"

    def to_json(self) -> dict[str, Any]:
        """The rows as dictionaries."""
        return {"title": self.title, "rows": [dict(zip(self.header, row)) for row in self.rows]}


def compared(
    title: str, first: str, turns: Mapping[str, Turn], base: str, *, rounds: int
) -> Section:
    """Compare times of a step: median and least in µs, and the ratio to `base`.

    Args:
      title: the subject of the benchmark.
      first: the head of the column of names.
      turns: for each name, `turn(round)` gives seconds per step.
      base: the name of the competitor with which the others are compared.
      rounds: the number of turns of each competitor.
    """
    times = in_turns(turns, rounds=rounds)
    header = (first, "µs per step, median", "least", f"ratio to {base}")
    rows = [
        (name, statistics.median(own) * 1e6, min(own) * 1e6, ratio(own, times[base]))
        for name, own in times.items()
    ]
    return Section(title, header, rows)


def ratio(times: Sequence[float], others: Sequence[float]) -> float:
    """The median over rounds of the ratio of two times."""
    # round by round, since both competitors of a round met the same machine
    return statistics.median(a / b for a, b in zip(times, others))


def turn_of(call: Callable[[], Any], steps: int = 1, *, least: float = 0.0) -> Turn:
    """Turns that call a function until its results are ready, after one call that compiles.

    Args:
      call: the function; returns the arrays to wait for.
      steps: the number of steps of one call.
      least: seconds of a turn, in which calls are repeated. A busy machine slows turns of equal
        length alike, while short turns escape or are hit in full.
    """
    jax.block_until_ready(call())

    def turn(number: int) -> float:
        del number
        calls, spent, began = 0, 0.0, time.perf_counter()
        while not calls or spent < least:
            jax.block_until_ready(call())
            calls, spent = calls + 1, time.perf_counter() - began
        return spent / (calls * steps)

    return turn


def turn_of_fit(model: Model, data: PyTree[Array], num_steps: int) -> Turn:
    """Turns of `fit` on plain gradients: seconds per step of the second half of a run.

    Every call of `fit` compiles, which the first half pays for.
    """
    objective, params, half = model.objective(len(data["y"])), model.init(KEY), num_steps // 2

    def turn(number: int) -> float:
        del number
        marks = []
        fit(
            KEY,
            objective,
            params,
            data,
            OPTIMIZER,
            num_steps=2 * half,
            batch_size=BATCH,
            hooks=[callback(lambda *_: marks.append(time.perf_counter()), every=half), silent],
        )
        return (marks[1] - marks[0]) / half

    return turn


def turn_of_estimator(given: Problem, estimator: Estimator, batch_size: int) -> Turn:
    """Turns of an estimator in a compiled loop; each turn continues from the last state."""
    params = given.init(KEY)
    at = (given.objective, params, given.data)
    started = estimator.start(KEY, *at)
    loop = stepper(*at, started, batch_size)
    prepared, state = loop.prepare(KEY), started.init(KEY, params)

    def run():
        nonlocal state
        state = loop.advance(prepared, state, loop.length)

    return turn_of(run, loop.length)


def estimators(rounds: int) -> Section:
    """Time a step of every estimator in a compiled loop, and plain steps dispatched one by one."""
    given = problem("logistic")
    turns = {
        name: turn_of_estimator(given, estimator, BATCH)
        for name, estimator in catalogue(given).items()
    }
    turns["plain, dispatched one by one"] = turn_of(_dispatched(given, steps=100), 100)
    title = f"One step of each estimator, titanic, batch {BATCH}"
    return compared(title, "estimator", turns, "plain", rounds=rounds)


def growth(rounds: int) -> Section:
    """Time a step as the data grow, shuffling included."""

    def rows(N):
        x = np.random.default_rng(0).standard_normal((N, 4), dtype=np.float32)
        return {"x": jnp.asarray(x), "y": jnp.asarray(x[:, 0] > 0, jnp.float32)}

    turns = {f"N = {N}": turn_of_fit(logistic_regression(4), rows(N), STEPS) for N in SIZES}
    return compared("Growth with N", "data", turns, f"N = {SIZES[0]}", rounds=rounds)


def batch_growth(rounds: int) -> Section:
    """Time a step as the batch grows: plain, antithetic, the paper's network, closed form."""
    given = problem("logistic")
    names = ("plain", "antithetic", "recognition-network", "closed-form-points")
    turns = {
        f"{name}, batch {size}": turn_of_estimator(given, estimator, size)
        for name, estimator in catalogue(given, names).items()
        for size in (10, 100, 1000)
    }
    title = "Growth with the batch, titanic"
    return compared(title, "estimator", turns, "plain, batch 10", rounds=rounds)


SECTIONS: dict[str, Callable[[int], Section]] = {
    "estimators": estimators,
    "growth": growth,
    "batch-growth": batch_growth,
}


def _dispatched(given: Problem, steps: int) -> Callable[[], Any]:
    """Plain steps called from Python one by one, each a compiled function."""
    objective, params = given.objective, given.init(KEY)

    @jax.jit
    def step(key, params, data, rate):
        batch_key, noise_key = jax.random.split(key)
        batch = take(data, jax.random.randint(batch_key, (BATCH,), 0, objective.num_data))
        gradient = objective.gradient(params, objective.sample_noise(noise_key, BATCH), batch)
        return jax.tree.map(lambda p, g: p - rate * g, params, gradient)

    def run():
        moved = params
        for i in range(steps):
            moved = step(jax.random.fold_in(KEY, i), moved, given.data, 0.0)
        return moved

    return run
