"""Monitors for `fit`: what to watch while it runs."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from quell import _leaves
from quell._loop import Monitor, Step
from quell._objective import Objective
from quell._objective import batch_size as rows_of
from quell.estimators import Estimator, monte_carlo


def variance_ratio(
    objective: Objective,
    estimator: Callable[[Objective], Estimator],
    data: PyTree[Array],
    *,
    batch_size: int,
    samples: int = 64,
    against: Callable[[Objective], Estimator] | None = None,
) -> Monitor:
    """How noisy the gradient is, against one plain draw: the ratio of the traces of covariance.

    Both are sampled afresh, from the same batches and keys, at the step's parameters, with the
    estimator's state as it is then:
    `fit(..., monitors={"ratio": variance_ratio(objective, estimator, data, batch_size=10)})`.

    Args:
      objective: L.
      estimator: the one that `fit` uses.
      data: leaves `[N, ...]`.
      batch_size: |B|.
      samples: how many gradients of each; the ratio's relative error is about √(4 / samples).
      against: an estimator without state to compare with in place of one plain draw, such as the
        sampling that `estimator` controls.
    """
    ours, plain = estimator(objective), (against or monte_carlo())(objective)
    data = jax.tree.map(jnp.asarray, data)

    def monitor(seen: Step):
        flatten = _leaves.flattener(None, seen.params).flatten

        def one(key):
            row_key, noise_key = jax.random.split(key)
            rows = jax.random.randint(row_key, (batch_size,), 0, rows_of(data))
            batch = jax.tree.map(lambda leaf: leaf[rows], data)
            mine, _, _ = ours.estimate(noise_key, seen.params, batch, seen.estimator_state)
            theirs, _, _ = plain.estimate(noise_key, seen.params, batch, ())
            return flatten(mine), flatten(theirs)

        mine, theirs = jax.lax.map(one, jax.random.split(seen.key, samples))
        return mine.var(0).sum() / theirs.var(0).sum()

    return monitor
