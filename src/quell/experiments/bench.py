"""The project's benchmarks of time: what a step costs, and how the cost grows."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, PyTree

from quell import datasets
from quell._fit import fit
from quell._measure import Stepper, stepper
from quell._progress import Progress, silent
from quell.estimators import monte_carlo
from quell.experiments.field import Contest, contest, field
from quell.experiments.timing import Section, compared, side_by_side
from quell.models import Model, logistic_regression

BATCH = 10
STEPS = 10_000
OPTIMIZER = optax.adam(1e-2)
KEY = jax.random.key(0)
_PLAIN = monte_carlo()


def loop(rounds: int) -> Section:
    """The training loop against the same step written by hand."""
    data = datasets.titanic().data
    runs = {
        "quell.fit": fitted(logistic_regression(4), data, STEPS),
        "bare lax.scan": bare_scan(data, STEPS),
    }
    timings = side_by_side(runs, rounds=rounds, per=STEPS)
    title = f"Plain logistic regression step, titanic, batch {BATCH}"
    return Section(title, _header("loop", "quell.fit"), compared(timings, "quell.fit"))


def estimators(rounds: int) -> Section:
    """A step of every estimator in a compiled loop, and plain steps dispatched one by one."""
    problem = contest("logistic")
    params = problem.init(KEY)
    runs: dict[str, Callable[[], Any]] = {}
    per: dict[str, int] = {}
    for name, make in field(KEY, problem).items():
        estimator = make(problem.objective)
        loop = stepper(estimator, params, problem.data, BATCH)
        runs[name] = _steps(loop, estimator.init(KEY, params, problem.data))
        per[name] = loop.length
    name = "plain, dispatched one by one"
    runs[name], per[name] = _dispatched(problem, params, steps=100), 100
    timings = side_by_side(runs, rounds=rounds, per=per)
    title = f"One step of each estimator, titanic, batch {BATCH}"
    return Section(title, _header("estimator", "plain"), compared(timings, "plain"))


def growth(rounds: int) -> Section:
    """Time per step as the data grows, shuffling included."""
    model = logistic_regression(4)

    def table(N):
        x = np.random.default_rng(0).standard_normal((N, 4), dtype=np.float32)
        return {"x": jnp.asarray(x), "y": jnp.asarray(x[:, 0] > 0, jnp.float32)}

    sizes = [10**3, 10**5, 10**7]
    runs = {str(N): fitted(model, table(N), STEPS) for N in sizes}
    timings = side_by_side(runs, rounds=rounds, per=STEPS)
    return Section("Growth with N", _header("N", "N = 1000"), compared(timings, "1000"))


def batch_growth(rounds: int) -> Section:
    """Time per step as the batch grows: plain, antithetic, and the paper's network."""
    problem = contest("logistic")
    params = problem.init(KEY)
    chosen = field(KEY, problem)
    runs, per = {}, {}
    for name in ("plain", "antithetic", "recognition-network", "closed-form-points"):
        for size in (10, 100, 1000):
            estimator = chosen[name](problem.objective)
            loop = stepper(estimator, params, problem.data, size)
            at = f"{name}, batch {size}"
            runs[at] = _steps(loop, estimator.init(KEY, params, problem.data))
            per[at] = loop.length
    timings = side_by_side(runs, rounds=rounds, per=per)
    header = _header("estimator", "plain, batch 10")
    return Section("Growth with the batch, titanic", header, compared(timings, "plain, batch 10"))


SECTIONS: dict[str, Callable[[int], Section]] = {
    "loop": loop,
    "estimators": estimators,
    "growth": growth,
    "batch-growth": batch_growth,
}


def fitted(
    model: Model, data: PyTree[Array], num_steps: int, progress: Callable[[int], Progress] = silent
) -> Callable[[], PyTree[Array]]:
    """A function that runs `fit`."""
    objective = model.objective(len(data["y"]))
    params = model.init(KEY)
    return lambda: fit(
        objective, data, params=params, optimizer=OPTIMIZER, num_steps=num_steps,
        batch_size=BATCH, key=KEY, estimator=_PLAIN, progress=progress,
    ).params  # fmt: skip


def bare_scan(data: PyTree[Array], num_steps: int) -> Callable[[], PyTree[Array]]:
    """A function that runs the plain logistic regression step, written by hand in one scan."""
    N, d = data["x"].shape
    rows, columns = np.tril_indices(d)

    def loss(params, eps, batch):
        L = jnp.zeros((d, d)).at[rows, columns].set(params["scale"])
        L = jnp.where(jnp.eye(d, dtype=bool), jnp.exp(L), L)
        logits = jnp.sum(batch["x"] * (params["mean"] + eps @ L.T), -1)
        likelihood = jnp.mean(batch["y"] * logits - jax.nn.softplus(logits))
        log_det = params["scale"][rows == columns].sum()
        kl = 0.5 * (jnp.sum(L**2) + jnp.sum(params["mean"] ** 2) - d) - log_det
        return kl - N * likelihood

    @jax.jit
    def run(key, data):
        index_key, noise_key = jax.random.split(key)
        indices = jax.random.randint(index_key, (num_steps, BATCH), 0, N)

        def step(carry, this):
            params, state = carry
            index, key = this
            batch = jax.tree.map(lambda leaf: leaf[index], data)
            eps = jax.random.normal(key, (BATCH, d))
            value, gradient = jax.value_and_grad(loss)(params, eps, batch)
            updates, state = OPTIMIZER.update(gradient, state, params)
            return (optax.apply_updates(params, updates), state), value

        params = {"mean": jnp.zeros(d), "scale": jnp.zeros(len(rows))}
        carry = (params, OPTIMIZER.init(params))
        return lax.scan(step, carry, (indices, jax.random.split(noise_key, num_steps)))

    return lambda: run(KEY, data)


def _steps(loop: Stepper, state: PyTree[Array]) -> Callable[[], PyTree[Array]]:
    """A function that takes the steps of a loop, going on where it last stopped."""
    prepared = loop.prepare(KEY)
    states = [state]

    def run():
        states[0] = loop.advance(prepared, states[0], loop.length)
        return states[0]

    return run


def _dispatched(problem: Contest, params: PyTree[Array], steps: int) -> Callable[[], Any]:
    """Plain steps called from Python, each of them compiled."""
    objective, N = problem.objective, problem.objective.num_data

    @jax.jit
    def step(key, params, data, rate):
        row_key, noise_key = jax.random.split(key)
        rows = jax.random.randint(row_key, (BATCH,), 0, N)
        batch = jax.tree.map(lambda y: y[rows], data)
        gradient = objective.gradient(params, objective.sample_noise(noise_key, BATCH), batch)
        return jax.tree.map(lambda p, g: p - rate * g, params, gradient)

    def run():
        moved = params
        for i in range(steps):
            moved = step(jax.random.fold_in(KEY, i), moved, problem.data, 0.0)
        return moved

    return run


def _header(what: str, base: str) -> tuple[str, ...]:
    return what, "µs per step, median", "least", f"ratio to {base}"
