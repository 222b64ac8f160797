"""Every mixture of dtypes trains, and the result has the parameters' own."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import quell
from quell import bases, coefficients, criteria
from quell import estimators as est

pytestmark = pytest.mark.usefixtures("quick")

N = 16
ESTIMATORS = {
    "plain": quell.monte_carlo(),
    "closed form": quell.closed_form(),
    "network": est.controlled(
        quell.recognition_network((4,)),
        basis=bases.polynomial(2),
        criterion=criteria.partial_gradients,
    ),
    "least squares": est.controlled(coefficients.least_squares(every=1)),
    "running average": est.controlled(coefficients.running_average()),
    "svrg": quell.svrg(quell.closed_form(), every=3),
    "joint": est.joint(),
    "score function": est.score_function(pooling=est.per_entry),
    "learned surrogate": est.learned_surrogate(widths=(4,)),
    "ensemble": est.ensemble(est.taylor(pooling=None), quell.monte_carlo(), pooling=est.per_leaf),
}
TYPES = {"single": jnp.float32, "double": jnp.float64}
MIXTURES = list(itertools.product(TYPES, repeat=3))
SHORT = {
    ("closed form", ("single", "double", "double")),
    ("network", ("single", "single", "double")),
    ("least squares", ("double", "single", "single")),
    ("ensemble", ("single", "double", "double")),
}


def problem(params_type, data_type, noise_type):
    """A Bayesian regression with parameters, data and draws of these types."""
    family = quell.mean_field(2)
    objective = quell.negative_elbo(
        lambda w, y: -0.5 * (y["x"] @ w - y["y"]) ** 2, family, num_data=N
    )

    def sample(key, leading):
        return jax.random.normal(key, (*leading, 2), noise_type)

    params = jax.tree.map(lambda leaf: leaf.astype(params_type), family.init())
    table = np.random.default_rng(0).normal(size=(N, 3))
    data = {"x": jnp.asarray(table[:, :2], data_type), "y": jnp.asarray(table[:, 2], data_type)}
    return objective._replace(noise=objective.noise._replace(sample=sample)), params, data


@pytest.mark.parametrize(
    ("name", "mixture"),
    [
        pytest.param(
            name,
            mixture,
            id=f"{name}-{'-'.join(mixture)}",
            marks=() if (name, mixture) in SHORT else pytest.mark.slow,
        )
        for name in ESTIMATORS
        for mixture in MIXTURES
    ],
)
def test_mixtures_train(x64, key, name, mixture):
    objective, params, data = problem(*(TYPES[kind] for kind in mixture))
    settings: dict[str, Any] = {"num_steps": 12, "batch_size": 4, "estimator": ESTIMATORS[name]}
    result = quell.fit(key, objective, params, data, optax.adam(1e-2), **settings)
    assert result.skipped == 0
    for leaf, start in zip(jax.tree.leaves(result.params), jax.tree.leaves(params)):
        assert leaf.dtype == start.dtype
        assert (leaf != start).any()


HALVES = [(name, half) for name in ESTIMATORS for half in (jnp.float16, jnp.bfloat16)]
SHORT_HALVES = {(name, jnp.float16) for name in ("plain", "closed form", "least squares")}


@pytest.mark.parametrize(
    ("name", "half"),
    [
        pytest.param(*case, marks=() if case in SHORT_HALVES else pytest.mark.slow)
        for case in HALVES
    ],
)
def test_half_precision_trains(key, name, half):
    objective, params, data = problem(half, half, half)
    settings: dict[str, Any] = {"num_steps": 12, "batch_size": 4, "estimator": ESTIMATORS[name]}
    result = quell.fit(key, objective, params, data, optax.sgd(1e-3), **settings)
    assert result.skipped == 0
    assert {leaf.dtype for leaf in jax.tree.leaves(result.params)} == {jnp.dtype(half)}
