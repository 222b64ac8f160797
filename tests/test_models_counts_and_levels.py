"""Poisson regression, crossed effects and the local network, against formulas and quadrature."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats

import quell
from quell import full_covariance, mean_field
from quell.models import (
    bayesian_neural_network,
    crossed_effects,
    gaussian,
    local_neural_network,
    poisson_regression,
)

pytestmark = pytest.mark.usefixtures("quick")

FAMILIES = [full_covariance, mean_field]


def random_params(like, seed):
    leaves, treedef = jax.tree.flatten(like)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    return treedef.unflatten(
        [0.4 * jax.random.normal(key, leaf.shape) for key, leaf in zip(keys, leaves)]
    )


def quadrature(loss, size, count):
    """The mean of `loss(eps)` over a standard normal draw `[size]`, by a tensor of nodes."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    weights = weights / weights.sum()
    grid = np.stack(np.meshgrid(*[nodes] * size, indexing="ij"), -1).reshape(-1, size)
    products = np.prod(np.stack(np.meshgrid(*[weights] * size, indexing="ij")), 0).ravel()
    return float(jax.vmap(loss)(jnp.asarray(grid, float)) @ jnp.asarray(products, float))


@pytest.mark.parametrize("factory", FAMILIES)
def test_poisson_loss_is_the_negative_log_probability(factory):
    model = poisson_regression(2, factory)
    params = random_params(model.init(jax.random.key(0)), 1)
    assert model.family is not None
    eps, x = jnp.array([0.5, -1.0]), np.array([0.3, 0.8])
    rate = math.exp(x @ np.asarray(model.family.sample(params, eps)))
    for y in (0, 1, 7):
        example = {"x": jnp.asarray(x, float), "y": jnp.asarray(float(y))}
        expected = -scipy.stats.poisson.logpmf(y, rate)
        assert float(model.loss(params, eps, example)) == pytest.approx(expected, rel=1e-4)


def test_poisson_bound_is_in_closed_form():
    """E[exp(z)] of a Gaussian z is exp(m + s²/2): the mean loss over the draws."""
    model = poisson_regression(2)
    params = random_params(model.init(jax.random.key(0)), 2)
    assert model.family is not None
    x, y = jnp.array([0.3, 0.8]), 3.0
    m, variance = float(x @ params["mean"]), float(x @ model.family.covariance(params) @ x)
    expected = math.exp(m + variance / 2) - y * m + math.lgamma(y + 1)
    example = {"x": x, "y": jnp.asarray(y)}
    found = quadrature(lambda eps: model.loss(params, eps, example), 2, 20)
    assert found == pytest.approx(expected, rel=1e-4)


def test_poisson_regression_finds_the_weights():
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(2000, 3)), np.array([0.5, -0.3, 1.0])
    x[:, 2] = 1
    data = {"x": jnp.asarray(x, float), "y": jnp.asarray(rng.poisson(np.exp(x @ w)), float)}
    model = poisson_regression(3)
    fit = quell.fit(
        jax.random.key(1), model.objective(2000), model.init, data,
        optax.adam(optax.cosine_decay_schedule(0.03, 600)), num_steps=600, batch_size=50,
        estimator=quell.antithetic(), hooks=[quell.silent],
    )  # fmt: skip
    np.testing.assert_allclose(fit.params["mean"], w, atol=0.08)  # four posterior deviations
    prediction = model.predict(jax.random.key(2), fit.params, data["x"][:50])
    np.testing.assert_allclose(prediction.mean, np.exp(x[:50] @ w), rtol=0.25)


def test_crossed_effects_draw_only_the_weights_of_the_example():
    """The loss is that of all weights, drawn by the family of all weights."""
    model = crossed_effects((3, 4))
    params = random_params(model.init(jax.random.key(0)), 3)
    family = mean_field(1 + 2 + 3 + 4)
    assert params["mean"].shape == (family.size,)
    all_eps = jax.random.normal(jax.random.key(4), (family.size,))
    w = np.asarray(family.sample(params, all_eps))
    for first, second in ((0, 0), (2, 3), (1, 2)):
        z = w[0] + np.exp(w[1]) * w[3 + first] + np.exp(w[2]) * w[6 + second]
        used = np.array([0, 1, 2, 3 + first, 6 + second])
        for y in (0.0, 1.0):
            example = {"levels": jnp.array([first, second]), "y": jnp.asarray(y)}
            expected = np.logaddexp(0, z) - y * z
            assert float(model.loss(params, all_eps[used], example)) == pytest.approx(
                expected, rel=1e-5
            )
    assert model.regulariser is not None
    assert float(model.regulariser(params)) == pytest.approx(float(family.kl(params)))


def test_crossed_effects_find_the_levels():
    rng = np.random.default_rng(1)
    effects = [rng.normal(size=12), 0.5 * rng.normal(size=8)]
    levels = np.stack([rng.integers(0, 12, 3000), rng.integers(0, 8, 3000)], 1)
    z = 0.7 + effects[0][levels[:, 0]] + effects[1][levels[:, 1]]
    data = {"levels": jnp.asarray(levels), "y": jnp.asarray(z + 0.3 * rng.normal(size=3000), float)}
    model = crossed_effects((12, 8), likelihood=gaussian(0.09))
    params = quell.fit(
        jax.random.key(0), model.objective(3000), model.init, data,
        optax.adam(optax.cosine_decay_schedule(0.03, 800)), num_steps=800, batch_size=50,
        estimator=quell.antithetic(), hooks=[quell.silent],
    ).params  # fmt: skip
    predicted = model.predict(jax.random.key(1), params, data["levels"][:100], 16).mean
    np.testing.assert_allclose(predicted, z[:100], atol=0.15)


def test_the_local_network_has_the_outputs_of_the_network():
    """One unit of each kind: the mean loss over two draws of units and over four of weights."""
    kinds = {"hidden": 1, "likelihood": gaussian(0.5)}
    local, weights = local_neural_network(1, 1, **kinds), bayesian_neural_network(1, 1, **kinds)
    params = random_params(local.init(jax.random.key(0)), 5)
    assert weights.init(jax.random.key(0))["mean"].shape == params["mean"].shape
    example = {"x": jnp.array([0.8]), "y": jnp.array(0.3)}
    by_units = quadrature(lambda eps: local.loss(params, eps, example), 2, 24)
    by_weights = quadrature(lambda eps: weights.loss(params, eps, example), 4, 12)
    assert by_units == pytest.approx(by_weights, rel=1e-3)


def test_the_local_network_is_the_formula_it_states():
    model = local_neural_network(2, 3, hidden=4)
    params = random_params(model.init(jax.random.key(0)), 6)
    m, s = (np.asarray(params[name], np.float64) for name in ("mean", "scale"))
    v, eps, x = np.exp(2 * s), np.linspace(-1, 1, 7), np.array([0.3, -0.7])
    inputs = x @ m[:8].reshape(2, 4) / math.sqrt(2) + m[8:12]
    spread = np.sqrt(x**2 @ v[:8].reshape(2, 4) / 2 + v[8:12])
    h = np.tanh(inputs + spread * eps[:4])
    outputs = h @ m[12:24].reshape(4, 3) / 2 + m[24:]
    outputs += np.sqrt(h**2 @ v[12:24].reshape(4, 3) / 4 + v[24:]) * eps[4:]
    example = {"x": jnp.asarray(x, float), "y": jnp.array(1)}
    expected = np.log(np.exp(outputs).sum()) - outputs[1]
    found = model.loss(params, jnp.asarray(eps, float), example)
    assert float(found) == pytest.approx(expected, rel=1e-4)


def test_the_local_network_is_quieter_than_the_network():
    """Sixteen examples, one draw each: 0.66 of the variance over the draws, as measured."""
    variance = {}
    for make in (bayesian_neural_network, local_neural_network):
        model = make(4, 3, hidden=8)
        params = model.init(jax.random.key(0))
        objective = model.objective(16)
        data = {
            "x": jax.random.normal(jax.random.key(1), (16, 4)),
            "y": jnp.arange(16) % 3,
        }

        def gradient(key, objective=objective, params=params, data=data):
            return objective.gradient(params, objective.sample_noise(key, 16), data)

        found = jax.jit(jax.vmap(gradient))(jax.random.split(jax.random.key(2), 400))
        variance[make] = sum(float(leaf.var(0).sum()) for leaf in jax.tree.leaves(found))
    assert variance[local_neural_network] < 0.8 * variance[bayesian_neural_network]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: poisson_regression(0), "dim: expected 1 to"),
        (lambda: crossed_effects(()), "levels: expected a list or tuple"),
        (lambda: crossed_effects((3, 0)), "levels.1.: expected 1 to"),
        (lambda: local_neural_network(3, 2, hidden=0), "hidden: expected 1 to"),
    ],
)
def test_impossible_sizes_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
