"""Monitors for `fit`: functions of a `Step`, to be named in `quell.monitor`."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from quell import _tree
from quell._checks import check_batch_size, check_data, check_whole
from quell.estimators._sampling import monte_carlo
from quell.estimators._types import Estimator, batch_of, check_sampling
from quell.objective import Objective
from quell.training.hooks import Monitor
from quell.training.loop import Step


def variance_ratio(
    objective: Objective,
    data: PyTree[Array],
    *,
    batch_size: int,
    gradients: int = 64,
    against: Estimator | None = None,
) -> Monitor:
    """The variance of the run's gradient over that of one plain draw: a ratio of traces.

    Both are sampled afresh, from the same batches and keys, at the step's parameters, with the
    state that the estimator has there:
    `fit(..., hooks=[quell.monitor(ratio=quell.variance_ratio(objective, data, batch_size=10))])`.

    Args:
      objective: L.
      data: leaves `[N, ...]`.
      batch_size: |B|.
      gradients: the number of gradients of each; the relative error of the ratio is about
        √(4 / gradients).
      against: draws to compare with instead of one plain draw, such as `antithetic()`, the sampling
        that the estimator controls.
    """
    data = jax.tree.map(jnp.asarray, data)
    check_data(objective.num_data, data)
    check_batch_size(batch_size, objective.num_data)
    check_whole("gradients", gradients, 2)
    plain = check_sampling("against", monte_carlo() if against is None else against)

    def ratio(seen: Step):
        flatten = _tree.flattener(None, seen.params).flatten

        def one(key):
            batch_key, noise_key = jax.random.split(key)
            indices = jax.random.randint(batch_key, (batch_size,), 0, objective.num_data)
            batch = batch_of(data, indices)
            ours = seen.estimate(noise_key, seen.params, batch, seen.estimator_state).gradient
            noise = plain.draw(noise_key, objective, batch_size)
            theirs = objective.gradient(seen.params, noise, batch.examples)
            return flatten(ours), flatten(theirs)

        ours, theirs = jax.lax.map(one, jax.random.split(seen.key, gradients))
        return ours.var(0).sum() / theirs.var(0).sum()

    return ratio
