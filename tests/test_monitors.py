"""What a run is watched by."""

import jax.numpy as jnp
import numpy as np
import optax

import quell
from quell import estimators


def test_the_variance_ratio_of_four_draws_is_a_quarter(key):
    """All points are alike, so that only the draws make noise."""
    objective = quell.Objective(lambda p, e, y: ((p + e) ** 2).sum(), quell.normal(2), 20)
    data, four = {"y": jnp.zeros((20, 1))}, estimators.monte_carlo(4)
    watched = quell.variance_ratio(objective, four, data, batch_size=5, samples=400)
    history = quell.fit(
        objective, data, params=jnp.ones(2), optimizer=optax.sgd(1e-4), num_steps=11, batch_size=5,
        key=key, estimator=four, monitors={"ratio": watched}, monitor_every=10,
    ).history  # fmt: skip
    seen = history.monitors["ratio"]
    np.testing.assert_allclose(seen[[0, 10]], 0.25, rtol=0.35)
    assert np.isnan(np.delete(seen, [0, 10])).all()
