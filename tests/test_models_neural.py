"""The Bayesian neural network and the autoencoder learn scikit-learn's digits."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats

import quell
from quell import datasets
from quell.models import bayesian_neural_network, categorical, gaussian, vae

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(scope="module")
def digits():
    pytest.importorskip("sklearn")
    return datasets.load("digits", test_fraction=0.2, seed=0)


def trained(model, data, *, num_steps, learning_rate, batch_size=20):
    return quell.fit(
        jax.random.key(1),
        model.objective(data["x"].shape[0]),
        model.init,
        data,
        optax.adam(learning_rate),
        num_steps=num_steps,
        batch_size=batch_size,
        hooks=[quell.silent],
    )


@pytest.mark.slow
def test_network_learns_digits(digits):
    model = bayesian_neural_network(64, 10, hidden=20)
    data = {"x": digits.x, "y": digits.y}
    result = trained(model, data, num_steps=2000, learning_rate=0.01)
    predict = jax.jit(model.predict, static_argnums=3)
    prediction = predict(jax.random.key(2), result.params, digits.x_test, 16)
    accuracy = float((prediction.mean.argmax(-1) == digits.y_test).mean())
    assert accuracy > 0.85
    np.testing.assert_allclose(prediction.mean.sum(-1), 1, rtol=1e-4)


def test_network_is_the_formula_it_states():
    model = bayesian_neural_network(2, 3, hidden=4)
    assert model.noise.shape == (2 * 4 + 4 + 4 * 3 + 3,)
    rng = np.random.default_rng(0)
    w, x = rng.normal(size=27), rng.normal(size=2)
    h = np.tanh(x @ w[:8].reshape(2, 4) / math.sqrt(2) + w[8:12])
    logits = h @ w[12:24].reshape(4, 3) / 2 + w[24:]
    example = {"x": jnp.asarray(x, float), "y": jnp.array(1)}
    assert model.log_likelihood is not None
    found = model.log_likelihood(jnp.asarray(w, float), example)
    assert float(found) == pytest.approx(logits[1] - np.log(np.exp(logits).sum()), rel=1e-4)


@pytest.mark.slow
def test_regression_network_fits_a_curve():
    x = jnp.linspace(-2, 2, 100)[:, None]
    data = {"x": x, "y": jnp.sin(2 * x[:, 0])}
    model = bayesian_neural_network(1, 1, hidden=20, likelihood=gaussian(0.01))
    result = trained(model, data, num_steps=3000, learning_rate=0.01)
    mean = jax.jit(model.predict)(jax.random.key(2), result.params, x).mean
    assert mean.shape == (100,)
    assert float(((mean - data["y"]) ** 2).mean()) < 0.1 * float(data["y"].var())


def test_likelihoods_against_scipy():
    outputs = jnp.array([0.3, -0.2, 1.0])
    log_p = scipy.stats.norm.logpdf(0.7, 0.3, math.sqrt(0.2))
    assert float(gaussian(0.2).log_prob(outputs, jnp.array(0.7))) == pytest.approx(log_p, rel=1e-5)
    p = np.exp(outputs) / np.exp(outputs).sum()
    log_p = categorical().log_prob(outputs, jnp.array(2))
    assert float(log_p) == pytest.approx(math.log(p[2]), rel=1e-5)
    np.testing.assert_allclose(categorical().moments(outputs)[0], p, rtol=1e-5)


@pytest.mark.slow
def test_autoencoder_learns_digits(digits):
    model = vae(64, latent=5, hidden=30)
    data = {"x": digits.x}
    result = trained(model, data, num_steps=3000, learning_rate=3e-3)
    objective = model.objective(len(digits.x_test))
    test = {"x": digits.x_test}
    noise = objective.sample_noise(jax.random.key(3), len(digits.x_test))
    value = jax.jit(objective.value)
    before = float(value(model.init(jax.random.key(0)), noise, test))
    after = float(value(result.params, noise, test))
    # Every pixel at its mean, the best a decoder can do that ignores its code.
    p = jnp.clip(digits.x.mean(0), 1e-4, 1 - 1e-4)
    blind = -float((test["x"] * jnp.log(p) + (1 - test["x"]) * jnp.log1p(-p)).sum())
    assert after < blind < before


def test_autoencoder_bound_is_below_the_evidence():
    """One pixel and one latent variable: log p(x) by quadrature, at random params."""
    model = vae(1, latent=1, hidden=3)
    params = model.init(jax.random.key(4))
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = jnp.asarray(weights / weights.sum(), float)
    eps = jnp.asarray(nodes[:, None], float)
    example = {"x": jnp.ones(1)}
    losses = jax.vmap(model.loss, in_axes=(None, 0, None))(params, eps, example)
    hidden, output = params["decoder"]
    h = jnp.tanh(eps @ hidden.kernel + hidden.bias)
    logits = (h @ output.kernel + output.bias)[:, 0]
    evidence = math.log(float(jax.nn.sigmoid(logits) @ weights))
    assert -float(losses @ weights) <= evidence


def test_autoencoder_loss_vanishes_kl_at_the_prior():
    model = vae(4, latent=2, hidden=3)
    params = jax.tree.map(jnp.zeros_like, model.init(jax.random.key(0)))
    loss = jax.jit(model.loss)(params, jnp.ones(2), {"x": jnp.array([0.0, 1.0, 0.5, 0.2])})
    assert float(loss) == pytest.approx(4 * math.log(2), rel=1e-6)
    predict = jax.jit(model.predict, static_argnums=3)
    prediction = predict(jax.random.key(0), params, jnp.zeros((3, 4)), 2)
    np.testing.assert_allclose(prediction.mean, 0.5)
    assert model.regulariser is None


def test_gradients_are_finite():
    for model, example in (
        (bayesian_neural_network(3, 2, hidden=4), {"x": 50 * jnp.ones(3), "y": jnp.array(1)}),
        (vae(3, latent=2, hidden=4), {"x": jnp.ones(3)}),
    ):
        params = model.init(jax.random.key(0))
        eps = model.noise.sample(jax.random.key(1), ())
        gradient = jax.jit(jax.grad(model.loss))(params, eps, example)
        assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bayesian_neural_network(0, 2), "dim: expected 1 to"),
        (lambda: bayesian_neural_network(3, 2, hidden=0), "hidden: expected 1 to"),
        (lambda: vae(64, latent=0), "latent: expected 1 to"),
        (lambda: gaussian(0.0), "variance: expected a positive number"),
    ],
)
def test_impossible_sizes_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
