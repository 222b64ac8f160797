"""Monitors for `fit`: functions of a `Step`, to be named in `quell.monitor`."""

import jax

from quell import _tree
from quell._arguments import checked
from quell.estimators._sampling import monte_carlo
from quell.estimators._types import Estimator, batch_of, check_sampling
from quell.training.hooks import Monitor
from quell.training.loop import Step


@checked()
def variance_ratio(*, gradients: int = 64, against: Estimator | None = None) -> Monitor:
    """Monitor the variance of the run's gradient over that of one plain draw: a ratio of traces.

    Both gradients are drawn afresh, from the same batches and keys, at the parameters of the step
    and with the state of the estimator at this step:
    `fit(..., hooks=[quell.monitor(ratio=quell.variance_ratio(), every=500)])`.

    Args:
      gradients: the number of gradients of each kind; the relative error of the ratio is about
        √(4 / gradients).
      against: draws to compare with instead of one plain draw, such as `antithetic()`, the sampling
        that the estimator controls.
    """
    plain = check_sampling("against", monte_carlo() if against is None else against)

    def ratio(seen: Step):
        flatten = _tree.flattener(None, seen.params).flatten
        objective, shape = seen.objective, seen.batch.indices.shape

        def one(key):
            batch_key, noise_key = jax.random.split(key)
            indices = jax.random.randint(batch_key, shape, 0, objective.num_data)
            batch = batch_of(seen.batch.data, indices)
            ours = seen.estimate(noise_key, seen.params, batch, seen.estimator_state).gradient
            noise = plain.draw(noise_key, objective, shape[0])
            theirs = objective.gradient(seen.params, noise, batch.examples)
            return flatten(ours), flatten(theirs)

        ours, theirs = jax.lax.map(one, jax.random.split(seen.key, gradients))  # saves memory
        return ours.var(0).sum() / theirs.var(0).sum()

    return ratio
