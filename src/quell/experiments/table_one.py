"""Table 1: how long a training step takes, dispatched one by one and in a compiled loop."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from quell._batches import reshuffle
from quell._loop import Loop, compiled_loop, run_keys
from quell.coefficients._adam import adam
from quell.estimators import Estimator, MakeEstimator, monte_carlo
from quell.experiments.config import CONTEXT_FREE, Plan
from quell.experiments.methods import Method, estimator
from quell.experiments.problems import PROBLEMS
from quell.experiments.units import Table, Unit, joined, tidy

_LOOP = 100  # steps in one call of the compiled loop


class Timer(NamedTuple):
    """One variant, ready to be timed.

    Attributes:
      dispatched: `dispatched(runs)`, seconds per step when every step is a call.
      looped: `looped()`, seconds per step inside the compiled loop.
    """

    dispatched: Callable[[int], float]
    looped: Callable[[], float]


def units(plan: Plan) -> list[Unit]:
    """One unit: the variants take turns, so that what else the machine does hits all alike."""
    setting = {
        "model": plan.model,
        "learning_rate": plan.main_learning_rate,
        "batch_size": plan.batch_size,
        "repetitions": plan.table_one.repetitions,
        "runs": plan.table_one.runs,
        "criteria": plan.table_one.criteria,
        "networks": plan.table_one.networks,
    }
    step = {"logistic": 2e3, "deep-gp": 1e4}[plan.model]
    weight = step * plan.table_one.repetitions * (plan.table_one.runs + _LOOP)
    return [Unit("table-1", setting, lambda: _run(plan), weight, alone=True)]


def _run(plan: Plan) -> Table:
    problem, table = PROBLEMS[plan.model](), plan.table_one
    makers: dict[tuple[str, str], MakeEstimator] = {("none", "plain"): monte_carlo()}
    for hidden in table.networks:
        for criterion in table.criteria:
            method = Method("linear", criterion, hidden)
            name = "amortised" if hidden != CONTEXT_FREE else "context-free"
            makers[criterion, name] = estimator(problem, method, adam(plan.main_learning_rate))
    with ThreadPoolExecutor(2) as pool:  # compiles two at a time; timing comes after
        made = pool.map(lambda make: _timer(plan, make(problem.objective)), makers.values())
        timers = dict(zip(makers, made))
    seconds = {name: np.zeros((2, table.repetitions)) for name in timers}
    for repetition in range(table.repetitions):
        for name, timer in timers.items():
            seconds[name][:, repetition] = timer.dispatched(table.runs), timer.looped()
    return joined(
        [
            {"criterion": [criterion] * len(rows["way"]), "variant": [variant] * len(rows["way"])}
            | rows
            for (criterion, variant), value in seconds.items()
            for rows in [
                tidy(
                    {"way": ["dispatched", "loop"], "repetition": range(table.repetitions)},
                    milliseconds=1e3 * value,
                )
            ]
        ]
    )


def _timer(plan: Plan, estimate: Estimator) -> Timer:
    """Compile both ways and take the first steps."""
    problem, optimizer = PROBLEMS[plan.model](), optax.adam(plan.learning_rate)
    loop: Loop = compiled_loop(
        estimate,
        optimizer,
        reshuffle,
        {},
        num_data=problem.objective.num_data,
        batch_size=plan.batch_size,
        length=_LOOP,
        monitor_every=1,
        seeds=False,
    )
    key = jax.random.key(0)
    params = problem.init(key)
    carried = loop.start(run_keys(key), params, problem.data)

    @jax.jit
    def step(carried, t):
        indices = reshuffle(key, t, 1, problem.objective.num_data, plan.batch_size)[0]
        batch = jax.tree.map(lambda leaf: leaf[indices], problem.data)
        gradient, _, state = estimate.estimate(
            jax.random.fold_in(key, t), carried.params, batch, carried.estimator_state
        )
        updates, optimizer_state = optimizer.update(
            gradient, carried.optimizer_state, carried.params
        )
        return type(carried)(optax.apply_updates(carried.params, updates), optimizer_state, state)

    # Each way keeps its own copy: the loop consumes what it is given.
    single = jax.tree.map(jnp.copy, carried)
    states = {"loop": carried, "single": single}

    def dispatched(runs):
        begin = time.perf_counter()
        for t in range(runs):
            states["single"] = step(states["single"], t)
        jax.block_until_ready(states["single"])
        return (time.perf_counter() - begin) / runs

    def looped():
        begin = time.perf_counter()
        states["loop"], table = loop.advance(run_keys(key), states["loop"], problem.data, 0, _LOOP)
        jax.block_until_ready((states["loop"], table))
        return (time.perf_counter() - begin) / _LOOP

    dispatched(1)
    looped()
    return Timer(dispatched, looped)
