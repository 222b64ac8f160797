"""What a run is watched by."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import quell
from quell.training.monitors import variance_ratio


def test_the_variance_ratio_of_four_draws_is_a_quarter(key):
    """All points are alike, so that only the draws make noise."""
    objective = quell.Objective(lambda p, e, y: ((p + e) ** 2).sum(), quell.normal(2), 20)
    data = {"y": jnp.zeros((20, 1))}
    ratio = variance_ratio(gradients=400)
    seen = quell.fit(
        key, objective, jnp.ones(2), data, optax.sgd(1e-4), num_steps=11, batch_size=5,
        estimator=quell.monte_carlo(4), hooks=[quell.monitor(ratio=ratio, every=10)],
    ).history["ratio"]  # fmt: skip
    np.testing.assert_allclose(seen[[0, 10]], 0.25, rtol=0.35)
    assert np.isnan(np.delete(seen, [0, 10])).all()


def test_only_draws_are_compared_with():
    with pytest.raises(ValueError, match="against: expected draws alone"):
        variance_ratio(against=quell.closed_form())
