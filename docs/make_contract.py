"""Make docs/contract.md: every estimator is unbiased, exactly, in every state: `make contract`.

Expectations are sums, in float64: over every mini-batch, and over Gauss-Hermite nodes for the draw
of every example. The rows are those of tests/estimator_table.py.
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

from _exact import expectation, max_error, mini_batches, nodes  # noqa: E402
from estimator_table import (  # noqa: E402
    BATCH,
    ESTIMATORS,
    NUM_DATA,
    Replayed,
    problem,
    wander,
)
from test_estimators_unbiased import QUADRATURE, truth  # noqa: E402

from quell._jit import quick_jit  # noqa: E402
from quell.estimators._types import batch_of  # noqa: E402

ORDER = 84  # more nodes than the tests: after a jump the integrands are steeper
JUMP = 0.7  # of every parameter, where a step of training moves them by a hundredth
STATES = ("fresh", "learned", "after a jump", "after NaN")

PAGE = """# The contract: unbiased, exactly

An estimator of quell may be noisy or quiet, but its mean is the full gradient whatever its state.
`make contract` writes this page: the largest deviation of E[G̃] from ∇L, and of the mean value from
L, relative to the largest entry of the true one (or 1, if that is larger). It fails if a deviation
exceeds {limit:.0e}.

The expectations are sums in float64, without random numbers: over all {batches} mini-batches of
{size} of {num_data} rows, and for each over {order}² = {draws} Gauss–Hermite nodes for two draws.
The problem is logistic regression with a Gaussian posterior: its loss is smooth but no polynomial,
so the deviations below are those of the quadrature.

- *fresh*: the first state, before any step; what is refreshed between steps has been.
- *learned*: after five steps at parameters that wander.
- *after a jump*: the learned state, but every parameter is {jump} larger than when it was learned.
- *after NaN*: the learned state after one more step on a batch whose gradient is NaN.

| estimator | {states} |
| --- |{rules}
{rows}

The names are rows of `tests/estimator_table.py`, which holds what each is made of. The tests check
the same sums for all of them, for antithetic pairs, shared draws, repeated rows, a prior that is
sampled, and every wrapper over other estimators (`tests/test_estimators_unbiased.py`).
"""


def deviations(key, row) -> dict[str, float]:
    """The largest deviation of the mean, in each state."""
    data_key, start_key, init_key, walk_key = jax.random.split(key, 4)
    objective, params, data = problem(data_key)
    eps, weights = nodes(objective.noise, ORDER, count=BATCH)
    replayed = Replayed()
    started = row(replayed.estimator).start(start_key, objective, params, data)
    batches, rows = mini_batches(NUM_DATA, BATCH), jnp.arange(BATCH)

    def one(rows, noise, params, state):
        replayed.noise = noise
        found = started.estimate(init_key, objective, params, batch_of(data, rows), state)
        replayed.noise = None
        return found.value, found.gradient

    @quick_jit
    def means(params, state):
        every = jax.vmap(
            lambda e: jax.vmap(lambda rows: one(rows, e[None], params, state))(batches)
        )(eps)
        found = jax.tree.map(lambda leaf: leaf.mean(0), expectation(every, weights))
        return found, truth(objective, params, data, ORDER)

    @quick_jit
    def states():
        fresh = started.init(init_key, params)
        if started.refresh is not None:
            fresh = started.refresh.run(init_key, objective, params, data, BATCH, fresh)
        learned = wander(walk_key, started, objective, params, data, 5)
        bad = batch_of(jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), data), rows)
        fed = started.estimate(init_key, objective, params, bad, learned)
        return fresh, learned, fed

    fresh, learned, fed = states()
    assert any(jnp.isnan(leaf).any() for leaf in jax.tree.leaves(fed.gradient))
    far = jax.tree.map(lambda leaf: leaf + JUMP, params)
    seen = {
        "fresh": (params, fresh),
        "learned": (params, learned),
        "after a jump": (far, learned),
        "after NaN": (params, fed.state),
    }
    return {name: max_error(*means(*place)) for name, place in seen.items()}


def page(found: dict[str, dict[str, float]]) -> str:
    """The page, from the deviations of each estimator."""
    rows = [
        f"| {name} | " + " | ".join(f"{row[state]:.0e}" for state in STATES) + " |"
        for name, row in found.items()
    ]
    return PAGE.format(
        limit=QUADRATURE,
        batches=len(mini_batches(NUM_DATA, BATCH)),
        size=BATCH,
        num_data=NUM_DATA,
        order=ORDER,
        draws=ORDER**2,
        jump=JUMP,
        states=" | ".join(STATES),
        rules=" --: |" * len(STATES),
        rows="\n".join(rows),
    )


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_disable_most_optimizations", True)
    found = {}
    for i, (name, row) in enumerate(ESTIMATORS.items()):
        found[name] = deviations(jax.random.key(i), row)
        print(name, found[name], flush=True)
    broken = [n for n, row in found.items() if not max(row.values()) < QUADRATURE]
    if broken:
        sys.exit(f"not unbiased: {', '.join(broken)}")
    (HERE / "contract.md").write_text(page(found))


if __name__ == "__main__":
    main()
