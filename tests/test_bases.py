"""Bases: exactly zero mean for every noise they serve, the right functions, refusals."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _exact import EXACT, SAME64, expectation, max_error, nodes
from test_noise import EXPONENTIAL, FAMILIES

import quell
from quell import bases

pytestmark = pytest.mark.usefixtures("quick")

PARAMS = {"a": np.array([0.3, -0.7])}
EXAMPLE = np.array([1.5, -0.4])


def evaluate(basis, noise, eps):
    """w `[Q, D]` for draws `[Q, noise.size]` of one example."""
    return jax.vmap(lambda e: basis.apply(noise, e, PARAMS, EXAMPLE))(eps)


ANY_NOISE = {
    "linear": lambda: bases.linear(),
    "polynomial(2)": lambda: bases.polynomial(2),
    "polynomial(4)": lambda: bases.polynomial(4),
    "concatenate": lambda: bases.concatenate(bases.linear(), bases.polynomial(3)),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", ANY_NOISE)
def test_powers_have_mean_zero_under_every_noise(x64, family, name):
    noise = FAMILIES[family]()
    eps, weights = nodes(noise, 5)
    w = evaluate(ANY_NOISE[name](), noise, eps[:, 0])
    assert jnp.abs(expectation(w, weights)).max() < EXACT


@pytest.mark.parametrize("family", ["normal", "gaussian"])
@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("cross", [False, True])
def test_hermite_functions_have_mean_zero_and_are_orthonormal(x64, family, order, cross):
    noise = FAMILIES[family]()
    eps, weights = nodes(noise, 6)
    w = evaluate(bases.hermite(order, cross=cross), noise, eps[:, 0])
    size = math.comb(2 + order, order) - 1 if cross else 2 * order
    assert w.shape == (36, size)
    assert jnp.abs(expectation(w, weights)).max() < EXACT
    gram = jnp.einsum("q,qi,qj->ij", weights, w, w)
    assert jnp.abs(gram - jnp.eye(size)).max() < EXACT


def test_a_custom_basis_may_look_at_params_and_example(x64):
    def fn(draw, params, example):
        return jnp.stack([jnp.cos(example[0] * draw[0]), params["a"][1] * draw[1] ** 2])

    def mean(params, example):
        return jnp.stack([jnp.exp(-0.5 * example[0] ** 2), params["a"][1]])

    noise = quell.normal(2)
    eps, weights = nodes(noise, 32)
    w = evaluate(bases.custom(fn, mean), noise, eps[:, 0])
    assert jnp.abs(expectation(w, weights)).max() < EXACT
    plain = bases.custom(lambda draw, params, example: jnp.sum(draw**2), mean=2.0)
    assert jnp.abs(expectation(evaluate(plain, noise, eps[:, 0]), weights)).max() < EXACT


def test_a_wrong_mean_is_seen(x64):
    noise = quell.normal(1)
    eps, weights = nodes(noise, 5)
    wrong = bases.custom(lambda draw, params, example: draw**2, mean=0.9)
    assert jnp.abs(expectation(evaluate(wrong, noise, eps[:, 0]), weights)).max() > 0.05


def test_the_quadratic_is_the_papers(x64, key):
    noise = quell.normal(3)
    eps = noise.sample(key, (4,))
    w = evaluate(bases.polynomial(2), noise, eps)
    assert max_error(w, jnp.concatenate([eps, eps**2 - 1], axis=1)) < SAME64


def test_gaussian_noise_is_standardised_by_its_cholesky_factor(x64, key):
    mean, covariance = jnp.array([1.0, -2.0]), jnp.array([[2.0, 0.6], [0.6, 0.5]])
    noise = quell.normal(2, mean=mean, covariance=covariance)
    z = jax.random.normal(key, (4, 2))
    w = evaluate(bases.linear(), noise, mean + z @ jnp.linalg.cholesky(covariance).T)
    assert max_error(w, z) < SAME64


def test_no_basis_has_no_functions(key):
    assert evaluate(bases.no_basis(), quell.normal(2), jnp.zeros((3, 2))).shape == (3, 0)


def test_a_pytree_of_noise_is_seen_as_one_vector(key):
    noise = quell.normal({"a": (2, 2), "b": 1})
    w = jax.vmap(lambda e: bases.polynomial(2).apply(noise, e, PARAMS, None))(
        noise.sample(key, (3,))
    )
    assert w.shape == (3, 10)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: bases.polynomial(0), ["order", "1 to", "got 0"]),
        (lambda: bases.hermite(1.5), ["order", "a whole number", "1.5"]),
        (lambda: bases.concatenate(), ["bases", "at least one"]),
        (
            lambda: evaluate(bases.hermite(2), quell.noise.uniform(2), jnp.zeros((1, 2))),
            ["basis", "normal noise", "uniform", "quell.bases.polynomial"],
        ),
        (
            lambda: evaluate(
                bases.polynomial(3),
                quell.noise.from_moments(2, jax.random.exponential, EXPONENTIAL[:2]),
                jnp.zeros((1, 2)),
            ),
            ["moments", "order 3", "2 moments"],
        ),
        (
            lambda: evaluate(
                bases.custom(lambda e, p, y: jnp.outer(e, e), mean=0.0),
                quell.normal(2),
                jnp.zeros((1, 2)),
            ),
            ["fn", "one vector", "(2, 2)", "Flatten"],
        ),
    ],
)
def test_what_cannot_work_is_refused_with_advice(make, words):
    with pytest.raises(ValueError, match=words[0]) as error:
        make()
    for word in words:
        assert word in str(error.value)
