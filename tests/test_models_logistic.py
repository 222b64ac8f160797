"""Logistic regression and its Gaussian families, against quadrature, scipy and NUTS."""

import math

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.optimize
import scipy.stats

import quell
from quell import datasets, full_covariance, mean_field
from quell.models import logistic_regression

pytestmark = pytest.mark.usefixtures("quick")

FAMILIES = [full_covariance, mean_field]


def random_params(family, seed):
    params = family.init()
    keys = jax.random.split(jax.random.key(seed), len(params))
    return {
        name: 0.5 * jax.random.normal(key, params[name].shape) for name, key in zip(params, keys)
    }


@pytest.mark.parametrize("factory", FAMILIES)
def test_family_against_scipy(factory):
    family = factory(3)
    params = random_params(family, 1)
    mean = np.asarray(params["mean"], np.float64)
    covariance = np.asarray(family.covariance(params), np.float64)
    normal = scipy.stats.multivariate_normal(mean, covariance)  # pyright: ignore
    w = jnp.array([0.3, -1.0, 0.7])
    assert float(family.log_density(params, w)) == pytest.approx(normal.logpdf(w), rel=1e-4)
    assert float(family.entropy(params)) == pytest.approx(normal.entropy(), rel=1e-5)
    kl = 0.5 * (np.trace(covariance) + mean @ mean - 3 - np.linalg.slogdet(covariance)[1])
    assert float(family.kl(params)) == pytest.approx(kl, rel=1e-4)


@pytest.mark.parametrize("factory", FAMILIES)
def test_family_samples_have_its_mean_and_covariance(factory):
    family = factory(3)
    params = random_params(family, 2)
    # The columns of L, exactly: w(e_j) − w(0).
    zero = family.sample(params, jnp.zeros(3))
    L = jax.vmap(family.sample, in_axes=(None, 0))(params, jnp.eye(3)).T - zero[:, None]
    np.testing.assert_allclose(zero, params["mean"])
    np.testing.assert_allclose(L @ L.T, family.covariance(params), atol=1e-6)
    np.testing.assert_allclose(L, jnp.tril(L))


@pytest.mark.parametrize("factory", FAMILIES)
def test_family_starts_where_it_is_told(factory):
    family = factory(4)
    params = family.init(mean=jnp.arange(4.0), scale=0.1)
    np.testing.assert_allclose(params["mean"], np.arange(4.0))
    np.testing.assert_allclose(family.covariance(params), 0.01 * np.eye(4), atol=1e-8)
    assert float(family.kl(family.init())) == pytest.approx(0, abs=1e-6)


def test_every_packed_entry_is_used_once():
    family = full_covariance(5)
    params = random_params(family, 3)
    used = jax.jacobian(lambda s: family.covariance(params | {"scale": s}))(params["scale"])
    assert bool((jnp.abs(used).sum((0, 1)) > 0).all())
    assert params["scale"].shape == (15,)


def test_parameter_counts_and_shapes():
    model = logistic_regression(4)
    params = model.init(jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 14
    assert model.loss(params, jnp.ones(4), {"x": jnp.ones(4), "y": jnp.ones(())}).shape == ()
    prediction = model.predict(jax.random.key(1), params, jnp.ones((7, 4)), 3)
    assert prediction.mean.shape == prediction.variance.shape == (7,)
    field = logistic_regression(4, mean_field).init(jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(field)) == 8


@pytest.mark.parametrize("factory", FAMILIES)
def test_loss_is_the_negative_log_likelihood_and_finite_far_out(factory):
    model = logistic_regression(2, factory)
    assert model.family is not None
    params = model.family.init(mean=jnp.array([1.0, -2.0]), scale=1e-6)
    x = jnp.array([0.3, 0.4])
    p = 1 / (1 + math.exp(0.5))
    for y, likelihood in ((1.0, p), (0.0, 1 - p)):
        loss = model.loss(params, jnp.zeros(2), {"x": x, "y": jnp.array(y)})
        assert float(loss) == pytest.approx(-math.log(likelihood), rel=1e-5)
    far = {"x": 1e4 * x, "y": jnp.array(1.0)}
    gradient = jax.grad(model.loss)(params, jnp.ones(2), far)
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize("dim", [0, -1, 2.5])
def test_impossible_sizes_are_refused(dim):
    with pytest.raises(ValueError, match=r"dim: expected (1 to|a whole number)"):
        logistic_regression(dim)


@pytest.mark.parametrize("factory", FAMILIES)
def test_the_objective_is_the_negative_elbo_of_the_model(factory):
    """The loss, noise and regulariser of the model itself, and the structure behind them."""
    model = logistic_regression(3, factory)
    assert model.family is not None
    assert model.regulariser is not None
    objective, params = model.objective(7), random_params(model.family, 4)
    assert (objective.num_data, objective.noise.shape) == (7, model.noise.shape)
    assert objective.variational is not None
    assert objective.variational.family is model.family
    assert objective.variational.log_likelihood is model.log_likelihood
    example, eps = {"x": jnp.array([0.3, -1.0, 2.0]), "y": jnp.array(1.0)}, jnp.array([1.0, 0, -2])
    assert objective.loss(params, eps, example) == model.loss(params, eps, example)
    assert objective.regulariser is not None
    assert objective.regulariser(params) == model.regulariser(params)


def best_gaussian(model, data, counts, nodes):
    """The params that minimise the objective, its expectation by a tensor of quadrature nodes.

    Args:
      counts: how often each row of the data occurs.
      nodes: how many Gauss–Hermite nodes per dimension of the noise.
    """
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    weights = weights / weights.sum()
    grid = np.stack(np.meshgrid(*[points] * model.noise.size, indexing="ij"), -1)
    grid_weights = np.prod(np.stack(np.meshgrid(*[weights] * model.noise.size)), 0).ravel()
    eps = jnp.asarray(grid.reshape(-1, model.noise.size), float)
    counts = jnp.asarray(counts, float)
    start, unravel = jax.flatten_util.ravel_pytree(model.init(jax.random.key(0)))

    @jax.jit
    @jax.value_and_grad
    def negative_elbo(flat):
        params = unravel(flat)
        each = jax.vmap(model.loss, in_axes=(None, None, 0))
        losses = jax.vmap(lambda e: each(params, e, data) @ counts)(eps)
        return losses @ jnp.asarray(grid_weights, float) + model.regulariser(params)

    found = scipy.optimize.minimize(
        lambda flat: [np.asarray(v, np.float64) for v in negative_elbo(jnp.asarray(flat, float))],
        start,
        jac=True,
        method="L-BFGS-B",
    )
    return unravel(jnp.asarray(found.x, float)), found.fun


def test_one_weight_against_quadrature():
    """One weight, 60 points: the best Gaussian against the exact posterior on a grid."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=60)
    y = (rng.random(60) < 1 / (1 + np.exp(-1.5 * x))).astype(float)

    w = np.linspace(-8, 8, 20001)
    log_joint = scipy.stats.norm.logpdf(w) - np.logaddexp(0, np.outer(w, (1 - 2 * y) * x)).sum(-1)
    evidence = np.trapezoid(np.exp(log_joint), w)
    posterior = np.exp(log_joint) / evidence
    mean = np.trapezoid(w * posterior, w)
    deviation = math.sqrt(np.trapezoid((w - mean) ** 2 * posterior, w))

    model = logistic_regression(1)
    data = {"x": jnp.asarray(x[:, None], float), "y": jnp.asarray(y, float)}
    params, negative_elbo = best_gaussian(model, data, np.ones(60), nodes=40)
    gap = math.log(evidence) + negative_elbo
    assert -1e-4 < gap < 0.01
    assert float(params["mean"][0]) == pytest.approx(mean, abs=0.02 * deviation)
    assert abs(float(params["scale"][0])) == pytest.approx(deviation, rel=0.03)

    # predict: the probability at x = 1 by quadrature over the exact posterior.
    exact = np.trapezoid(posterior / (1 + np.exp(-w)), w)
    prediction = model.predict(jax.random.key(0), params, jnp.ones((1, 1)), draws=20000)
    assert float(prediction.mean[0]) == pytest.approx(exact, abs=0.005)
    assert float(prediction.variance[0]) == pytest.approx(exact * (1 - exact), abs=0.005)


def best_linear_log_likelihood(data):
    """The best mean log-likelihood of any linear model of the inputs, by scipy."""
    x, y = (np.asarray(data[name], np.float64) for name in ("x", "y"))

    def negative(w):
        z = x @ w
        return np.mean(np.logaddexp(0, z) - y * z), x.T @ (1 / (1 + np.exp(-z)) - y) / len(y)

    return -scipy.optimize.minimize(negative, np.zeros(x.shape[1]), jac=True).fun


@pytest.mark.parametrize("factory", FAMILIES)
def test_titanic_is_within_a_hundredth_of_the_best_linear_model(factory):
    """The best linear model of class, age, sex and bias reaches −0.5223.

    The −0.4765 of one free probability per distinct input is out of any linear model's reach.
    """
    people = datasets.titanic()
    best = best_linear_log_likelihood(people.data)
    assert best == pytest.approx(-0.5223, abs=5e-5)
    model = logistic_regression(4, factory)
    params = quell.fit(
        jax.random.key(0),
        model.objective(people.num_data),
        model.init,
        people.data,
        optax.adam(optax.cosine_decay_schedule(0.02, 3000)),
        num_steps=3000,
        batch_size=10,
        hooks=[quell.silent],
    ).params
    p = model.predict(jax.random.key(7), params, people.x).mean
    reached = float((people.y * jnp.log(p) + (1 - people.y) * jnp.log1p(-p)).mean())
    assert reached == pytest.approx(best, abs=0.01)
    at_the_mean = people.x @ params["mean"]
    linear = float((people.y * at_the_mean - jax.nn.softplus(at_the_mean)).mean())
    assert best - 0.01 <= linear <= best + 1e-5


@pytest.mark.slow
def test_posterior_against_nuts():
    """Mean and covariance of a long NUTS run, within its Monte Carlo error and the known gap.

    The gap of the best Gaussian to an almost Gaussian posterior: 0.1 deviations in the mean, and a
    tenth in the covariance.
    """
    numpyro = pytest.importorskip("numpyro")
    from numpyro.diagnostics import effective_sample_size

    people = datasets.titanic()

    def program(x, y):
        w = numpyro.sample("w", numpyro.distributions.Normal(0, 1).expand([4]).to_event(1))
        numpyro.sample("y", numpyro.distributions.Bernoulli(logits=x @ w), obs=y)

    mcmc = numpyro.infer.MCMC(
        numpyro.infer.NUTS(program), num_warmup=500, num_samples=4000, progress_bar=False
    )
    mcmc.run(jax.random.key(0), people.x, people.y)
    draws = np.asarray(mcmc.get_samples()["w"], np.float64)
    mean, covariance = draws.mean(0), np.cov(draws.T)
    deviation = np.sqrt(np.diag(covariance))
    effective = effective_sample_size(draws[None])

    model = logistic_regression(4)
    assert model.family is not None
    rows = np.concatenate([people.x, people.y[:, None]], 1)
    distinct, counts = np.unique(rows, axis=0, return_counts=True)
    data = {"x": jnp.asarray(distinct[:, :4], float), "y": jnp.asarray(distinct[:, 4], float)}
    params, _ = best_gaussian(model, data, counts, nodes=5)
    error = np.abs(np.asarray(params["mean"]) - mean)
    assert (error < (4 / np.sqrt(effective) + 0.1) * deviation).all()
    ratio = np.linalg.solve(covariance, np.asarray(model.family.covariance(params)))
    eigenvalues = np.linalg.eigvals(ratio).real
    tolerance = 0.1 + 4 * math.sqrt(2 / effective.min())
    assert (np.abs(eigenvalues - 1) < tolerance).all()
