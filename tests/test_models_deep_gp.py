"""The deep Gaussian process, against closed-form Gaussian process regression."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats

import quell
from quell import datasets
from quell.gaussian import _square
from quell.models import deep_gp
from quell.models._deep_gp import _centroids
from quell.models._gp_layer import _JITTER

NOISE = 0.1  # the default variance of the likelihood


def toy(num=40, dim=3, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num, dim))
    return x, np.sin(x[:, 0]) + 0.1 * rng.normal(size=num)


def as_data(x, y):
    return {"x": jnp.asarray(x, float), "y": jnp.asarray(y, float)}


def kernel(a, b, lengthscale, variance=1.0):
    distance = ((a[:, None] - b[None]) ** 2).sum(-1)
    return variance * np.exp(-0.5 * distance / lengthscale**2)


def pack(S):
    """The packed form of the Cholesky factor of S `[M, M]`."""
    M, L = len(S), np.linalg.cholesky(S)
    place = np.asarray(_square(jnp.arange(M * (M + 1) // 2), M))
    packed = np.zeros(M * (M + 1) // 2)
    packed[place[np.tril_indices(M)]] = L[np.tril_indices(M)]
    return packed


def best_sparse_posterior(x, y, Z, lengthscale, noise):
    """The optimal whitened q(u) = N(m, S) and the projections of x, in closed form (Titsias)."""
    L = np.linalg.cholesky(kernel(Z, Z, lengthscale) + _JITTER * np.eye(len(Z)))
    A = np.linalg.solve(L, kernel(Z, x, lengthscale))
    S = np.linalg.inv(np.eye(len(Z)) + A @ A.T / noise)
    return S @ A @ y / noise, S, A


def random_params(model, seed, spread=0.3):
    rng = np.random.default_rng(seed)
    params = model.init(jax.random.key(0))
    return jax.tree.map(lambda a: a + jnp.asarray(spread * rng.normal(size=a.shape), float), params)


def test_one_layer_is_the_closed_form_sparse_gp():
    """At the optimal q the bound is the collapsed one, and its gradient vanishes."""
    x, y = toy()
    with jax.enable_x64(True):
        model = deep_gp(jax.random.key(1), x, num_layers=1, num_inducing=8)
        Z = _centroids(jax.random.key(1), x, 8)
        lengthscale, noise = math.sqrt(3), NOISE
        m, S, A = best_sparse_posterior(x, y, Z, lengthscale, noise)
        params = {"layer0": {"mean": jnp.asarray(m[:, None]), "scale": jnp.asarray(pack(S)[None])}}
        objective = model.objective(len(y))
        draws = objective.sample_noise(jax.random.key(0), len(y))
        value, gradient = jax.jit(objective.value_and_gradient)(params, draws, as_data(x, y))
        covariance = A.T @ A + noise * np.eye(len(y))
        evidence = scipy.stats.multivariate_normal.logpdf(y, np.zeros(len(y)), covariance)
        trace = len(y) - (A**2).sum()
        collapsed = evidence - 0.5 * trace / noise
        assert float(value) == pytest.approx(-collapsed, rel=1e-8)
        for leaf in jax.tree.leaves(gradient):
            np.testing.assert_allclose(leaf, 0, atol=1e-6)
        worse = jax.tree.map(lambda leaf: leaf + 0.01, params)
        assert float(jax.jit(objective.value)(worse, draws, as_data(x, y))) > -collapsed


def test_one_layer_prediction_is_the_closed_form_one():
    x, y = toy()
    x_new = toy(5, seed=9)[0]
    with jax.enable_x64(True):
        model = deep_gp(jax.random.key(1), x, num_layers=1, num_inducing=8)
        Z = _centroids(jax.random.key(1), x, 8)
        noise = NOISE
        m, S, _ = best_sparse_posterior(x, y, Z, math.sqrt(3), noise)
        a = best_sparse_posterior(x_new, np.zeros(5), Z, math.sqrt(3), noise)[2]
        params = {"layer0": {"mean": jnp.asarray(m[:, None]), "scale": jnp.asarray(pack(S)[None])}}
        prediction = model.predict(jax.random.key(0), params, jnp.asarray(x_new), draws=1)
        variance = 1 - (a**2).sum(0) + np.einsum("mn,mk,kn->n", a, S, a) + noise
        np.testing.assert_allclose(prediction.mean, a.T @ m, atol=1e-10)
        np.testing.assert_allclose(prediction.variance, variance, atol=1e-10)


def test_two_layers_against_the_unwhitened_formulas():
    """The loss for a given draw, from q(Lu) and solves with k(Z, Z) in place of whitening."""
    x, y = toy()
    with jax.enable_x64(True):
        model = deep_gp(jax.random.key(1), x, inner_dim=3, num_inducing=6)
        params = random_params(model, 2)
        eps = jnp.array([0.5, -1.0, 2.0])
        loss = model.loss(params, eps, jax.tree.map(lambda leaf: leaf[4], as_data(x, y)))
        Z, h = _centroids(jax.random.key(1), x, 6), x[4:5]
        for name, draw in (("layer0", np.asarray(eps)), ("layer1", None)):
            K = kernel(Z, Z, math.sqrt(3)) + _JITTER * np.eye(6)
            L, solved = np.linalg.cholesky(K), np.linalg.solve(K, kernel(Z, h, math.sqrt(3)))
            mean = (solved.T @ L @ np.asarray(params[name]["mean"]))[0]
            variances = []
            for packed in np.asarray(params[name]["scale"]):
                place = np.asarray(_square(jnp.arange(21), 6))
                factor = np.tril(packed[place])
                S = L @ factor @ factor.T @ L.T
                explained = kernel(h, Z, math.sqrt(3)) @ solved
                variances.append((1 - explained + solved.T @ S @ solved)[0, 0])
            if draw is not None:
                h = h + mean + np.sqrt(variances) * draw
        log_density = scipy.stats.norm.logpdf(y[4], mean[0], math.sqrt(0.1))
        expected = -log_density + variances[0] / 0.2
        assert float(loss) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize(("num_layers", "noise"), [(1, (0,)), (2, (5,)), (3, (10,))])
def test_shapes(num_layers, noise):
    x, y = toy(dim=5)
    model = deep_gp(jax.random.key(0), x, num_layers=num_layers)
    params = model.init(jax.random.key(1))
    assert model.noise.shape == noise
    assert params["layer0"]["mean"].shape == (25, 5 if num_layers > 1 else 1)
    if num_layers == 2:
        assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 2100
    objective = model.objective(len(y))
    draws = objective.sample_noise(jax.random.key(2), 4, draws=3)
    batch = jax.tree.map(lambda leaf: leaf[:4], model.prepare(as_data(x, y)))
    value, gradient = jax.jit(objective.value_and_gradient)(params, draws, batch)
    assert value.shape == ()
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(gradient))
    prediction = jax.jit(model.predict, static_argnums=3)(jax.random.key(3), params, batch["x"], 2)
    assert prediction.mean.shape == prediction.variance.shape == (4,)
    assert bool((prediction.variance > 0.1 - 1e-6).all())


@pytest.mark.parametrize(("dim", "inner_dim", "learned"), [(2, 4, True), (6, 2, False)])
def test_any_inner_size_trains(dim, inner_dim, learned):
    x, y = toy(dim=dim)
    model = deep_gp(
        jax.random.key(0),
        x,
        inner_dim=inner_dim,
        num_inducing=7,
        learn_hyperparameters=learned,
    )
    params = random_params(model, 1)
    objective = model.objective(len(y))
    draws = objective.sample_noise(jax.random.key(2), len(y))
    gradient = jax.jit(objective.gradient)(params, draws, model.prepare(as_data(x, y)))
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(gradient))
    assert all(bool((jnp.abs(leaf) > 0).any()) for leaf in jax.tree.leaves(gradient))


def test_preparing_the_data_changes_nothing():
    x, y = toy()
    model = deep_gp(jax.random.key(0), x, num_inducing=9)
    params = random_params(model, 1)
    data = as_data(x, y)
    prepared = model.prepare(data)
    assert prepared["projection"].shape == (40, 9)
    objective = model.objective(40)
    draws = objective.sample_noise(jax.random.key(2), 40)
    both = jax.jit(objective.value_and_gradient)
    plain, quick = both(params, draws, data), both(params, draws, prepared)
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(quick)):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3)


def test_learned_hyperparameters_start_at_the_fixed_ones():
    x, y = toy()
    fixed = deep_gp(jax.random.key(0), x, num_inducing=9)
    learned = deep_gp(jax.random.key(0), x, num_inducing=9, learn_hyperparameters=True)
    params = learned.init(jax.random.key(1))
    assert set(params["layer0"]) == {"mean", "scale", "log_variance", "log_lengthscale"}
    assert set(params["likelihood"]) == {"log_noise"}
    draws = fixed.noise.sample(jax.random.key(2), (1, 40))
    one = jax.jit(fixed.objective(40).value)(fixed.init(jax.random.key(1)), draws, as_data(x, y))
    two = jax.jit(learned.objective(40).value)(params, draws, as_data(x, y))
    assert float(one) == pytest.approx(float(two), rel=1e-4)


def test_hyperparameters_are_those_that_were_asked_for():
    """One layer of other kernel and noise, against closed-form sparse regression."""
    x, y = toy()
    chosen = {"lengthscale": 0.7, "noise_variance": 0.3}
    with jax.enable_x64(True):
        model = deep_gp(jax.random.key(1), x, num_layers=1, num_inducing=8, **chosen)
        m, S, _ = best_sparse_posterior(
            x, y, _centroids(jax.random.key(1), x, 8), 0.7 * math.sqrt(3), 0.3
        )
        params = {"layer0": {"mean": jnp.asarray(m[:, None]), "scale": jnp.asarray(pack(S)[None])}}
        draws = model.noise.sample(jax.random.key(0), (1, len(y)))
        gradient = jax.jit(model.objective(len(y)).gradient)(params, draws, as_data(x, y))
        for leaf in jax.tree.leaves(gradient):
            np.testing.assert_allclose(leaf, 0, atol=1e-6)
    scaled = deep_gp(jax.random.key(1), x, variance=2.0, inner_scale=0.3, last_scale=0.5)
    params = scaled.init(jax.random.key(0))
    assert float(params["layer0"]["scale"].max()) == pytest.approx(0.3)
    assert float(params["layer1"]["scale"].max()) == pytest.approx(0.5)
    far = scaled.predict(jax.random.key(0), params, jnp.full((1, 3), 1e3), draws=1)
    assert float(far.variance[0]) == pytest.approx(2.0 + NOISE, rel=1e-4)


@pytest.mark.parametrize("learned", [False, True])
def test_no_factorisation_per_example(learned):
    """None at all with fixed hyperparameters, and none that is batched with learned ones."""
    x, y = toy()
    model = deep_gp(jax.random.key(0), x, num_inducing=9, learn_hyperparameters=learned)
    objective = model.objective(40)
    params = model.init(jax.random.key(1))
    draws = objective.sample_noise(jax.random.key(2), 40)
    traced = jax.make_jaxpr(objective.value)(params, draws, as_data(x, y))
    factored = re.findall(r"f32\[([0-9,]+)\] = cholesky", str(traced))
    assert set(factored) == ({"9,9"} if learned else set())


def test_inducing_inputs_are_centroids_that_depend_on_the_key_alone():
    x, _ = toy(200, 2)
    one, same, other = (_centroids(jax.random.key(s), x, 10) for s in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)
    nearest = ((x[:, None] - one[None]) ** 2).sum(-1).argmin(1)
    means = np.stack([x[nearest == i].mean(0) for i in range(10)])
    np.testing.assert_allclose(one, means, atol=0.1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_inducing": 41}, "num_inducing: expected at most 40"),
        ({"num_inducing": 0}, "num_inducing: expected 1 to"),
        ({"num_layers": 0}, "num_layers: expected 1 to"),
        ({"inner_dim": 1.5}, "inner_dim: expected a whole number"),
    ],
)
def test_impossible_sizes_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        deep_gp(jax.random.key(0), toy()[0], **arguments)


def test_bad_inputs_are_refused():
    with pytest.raises(ValueError, match=r"x_train: expected finite inputs \[N, d\], got shape"):
        deep_gp(jax.random.key(0), np.ones(5))
    with pytest.raises(ValueError, match="finite numbers"):
        deep_gp(jax.random.key(0), np.full((30, 2), np.nan))


@pytest.mark.slow
def test_airfoil_no_worse_than_a_sparse_gp_with_the_same_inducing_points():
    split = datasets.airfoil(test_fraction=0.1, seed=0)
    x, y = np.asarray(split.x, np.float64), np.asarray(split.y, np.float64)
    Z = _centroids(jax.random.key(0), x, 25)
    lengthscale, noise = math.sqrt(5), NOISE
    m, _, _ = best_sparse_posterior(x, y, Z, lengthscale, noise)
    a = best_sparse_posterior(np.asarray(split.x_test), split.y_test, Z, lengthscale, noise)[2]
    sparse = math.sqrt(np.mean((a.T @ m - np.asarray(split.y_test)) ** 2))

    model = deep_gp(jax.random.key(0), split.x)
    params = quell.fit(
        jax.random.key(1),
        model.objective(split.num_data),
        model.init,
        model.prepare(split.data),
        optax.adam(optax.cosine_decay_schedule(0.01, 20000)),
        num_steps=20000,
        batch_size=100,
        hooks=[quell.silent],
    ).params
    mean = model.predict(jax.random.key(2), params, split.x_test, draws=100).mean
    deep = math.sqrt(float(((mean - split.y_test) ** 2).mean()))
    print(f"test RMSE (standardised): deep GP {deep:.3f}, sparse GP {sparse:.3f}")
    assert deep <= sparse
