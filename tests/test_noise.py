"""Base noise: moments, standardisation, mirror images, quantiles, refusals."""

import jax
import jax.numpy as jnp
import pytest
from _exact import EXACT, SAME32, agrees, expectation, nodes

import quell

pytestmark = pytest.mark.usefixtures("quick")

EXPONENTIAL = [1.0, 2.0, 6.0, 24.0, 120.0, 720.0]
FAMILIES = {
    "normal": lambda: quell.noise.normal(2),
    "gaussian": lambda: quell.noise.normal(
        2, mean=[1.0, -2.0], covariance=[[2.0, 0.6], [0.6, 0.5]]
    ),
    "uniform": lambda: quell.noise.uniform(2, -1.0, 1.0),
    "laplace": lambda: quell.noise.laplace(2),
    "exponential": lambda: quell.noise.from_moments(2, jax.random.exponential, EXPONENTIAL),
}
families = pytest.mark.parametrize("family", FAMILIES)


@families
@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_moments_are_those_of_the_standardised_draw(x64, family, k):
    noise = FAMILIES[family]()
    eps, weights = nodes(noise, 5)
    z = jax.vmap(noise.standardise)(eps[:, 0])
    assert jnp.allclose(expectation(z**k, weights), noise.moment(k), atol=EXACT)


@families
def test_samples_have_those_moments(key, family):
    noise = FAMILIES[family]()
    draws = noise.sample(key, (4000,))
    z = jax.vmap(noise.standardise)(draws)
    for k in (1, 2):
        assert agrees(z**k, noise.moment(k))
    assert agrees(z[:, 0] * z[:, 1], noise.moment(1) ** 2)


@pytest.mark.parametrize(
    "noise",
    [quell.noise.uniform(2, 3.0, 7.0), quell.noise.laplace(2, loc=5.0, scale=0.1)],
    ids=["uniform", "laplace"],
)
def test_moved_and_scaled_noise_standardises_to_unit_variance(key, noise):
    z = jax.vmap(noise.standardise)(noise.sample(key, (4000,)))
    assert agrees(z, 0.0)
    assert agrees(z**2, 1.0)


@families
def test_a_mirror_image_mirrors_the_standardised_draw(key, family):
    noise = FAMILIES[family]()
    if noise.reflect is None:
        assert family == "exponential"
        return
    eps = noise.sample(key, ())
    assert jnp.allclose(noise.standardise(noise.reflect(eps)), -noise.standardise(eps), atol=SAME32)
    assert jnp.allclose(noise.reflect(noise.reflect(eps)), eps, atol=SAME32)


@families
def test_uniforms_become_draws(key, family):
    noise = FAMILIES[family]()
    if noise.from_uniform is None:
        assert family == "exponential"
        return
    draws = noise.from_uniform(jax.random.uniform(key, (4000, 2), minval=1e-6, maxval=1 - 1e-6))
    z = jax.vmap(noise.standardise)(draws)
    for k in (1, 2):
        assert agrees(z**k, noise.moment(k))


def test_a_draw_may_be_a_pytree(key):
    noise = quell.normal({"weights": (2, 4), "bias": 1})
    eps = noise.sample(key, (3, 5))
    assert eps["weights"].shape == (3, 5, 2, 4)
    assert eps["bias"].shape == (3, 5, 1)
    assert noise.standardise(jax.tree.map(lambda e: e[0, 0], eps)).shape == (noise.size,) == (9,)
    from_uniform = noise.from_uniform(jnp.full((3, 9), 0.5))
    assert jax.tree.map(jnp.shape, from_uniform) == {"weights": (3, 2, 4), "bias": (3, 1)}


def test_dtypes_follow_jax(x64, key):
    assert quell.normal(2).sample(key, ()).dtype == jnp.float64


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: quell.normal("three"), ["shape", "an int", "three"]),
        (lambda: quell.normal((2, 2), mean=jnp.zeros(4)), ["shape", "one vector", "ravel"]),
        (lambda: quell.normal(2, mean=jnp.zeros(3)), ["mean", "(2,)", "(3,)"]),
        (lambda: quell.normal(2, covariance=-jnp.eye(2)), ["covariance", "positive definite"]),
        (lambda: quell.noise.uniform(2, 1.0, 0.0), ["low, high", "low < high"]),
        (lambda: quell.noise.laplace(2, scale=0.0), ["scale", "positive"]),
        (lambda: FAMILIES["exponential"]().moment(7), ["moments", "order 7", "6 moments"]),
    ],
)
def test_what_cannot_work_is_refused_with_advice(make, words):
    with pytest.raises(ValueError, match=words[0]) as error:
        make()
    for word in words:
        assert word in str(error.value)
