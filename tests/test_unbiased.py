"""Unbiasedness, exactly: quadrature over every draw of the batch, enumeration of mini-batches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _exact import EXACT, expectation, max_error, mini_batches, nodes
from conformance import (
    BASES,
    BATCH,
    COEFFICIENTS,
    CRITERIA,
    NUM_DATA,
    control_for,
    controlled_gradient,
    loss,
    problem,
    regulariser,
    take,
    train,
)

import quell
from quell import bases, coefficients, criteria
from quell import noise as noises
from quell.coefficients._targets import Statistics

# The models that learn from every batch; least squares may find a batch not worth learning from.
LEARNED = ["context_free", "recognition_network", "running_average"]


def elsewhere(state):
    """Another state: every number larger, so that positive ones stay so, and every gate open."""
    rng = np.random.default_rng(0)

    def move(leaf):
        moved = leaf + 0.3 * np.abs(rng.normal(size=leaf.shape))
        return jnp.asarray(moved if jnp.issubdtype(leaf.dtype, jnp.inexact) else leaf, leaf.dtype)

    def open_gate(node):
        """Evidence that the corrections t were the gradients g: Σgt = Σt² = Σg²."""
        if not isinstance(node, Statistics):
            return node
        much = jnp.full_like(node.tt, 1e6)
        return node._replace(gt=much, tt=much, gg=much)

    moved = jax.tree.map(move, state)
    return jax.tree.map(open_gate, moved, is_leaf=lambda node: isinstance(node, Statistics))


def bias(key, basis, model, criterion, noise=None, draws=1, shared=False, nodes_each=3, **kwargs):
    """The exact |E[G̃] − E[Ĝ]| at an arbitrary learned state, and the size of the correction.

    The state has learned along random draws of random batches, and was then moved elsewhere.
    """
    data_key, init_key, path_key = jax.random.split(key, 3)
    dim = 2 if noise is None else noise.size
    objective, params, data = problem(data_key, dim=dim, noise=noise)
    control = control_for(init_key, objective, params, data, basis, model, criterion, **kwargs)
    drawn = 1 if shared else BATCH
    eps, weights = nodes(objective.noise, nodes_each, count=draws * drawn)
    eps = eps.reshape(-1, draws, drawn, dim)

    @jax.jit
    def every_draw(state, index):
        batch = take(data, index)
        return jax.vmap(
            lambda noise: controlled_gradient(objective, control, params, state, noise, batch)
        )(eps)

    state = control.init(params)
    path = np.asarray(jax.random.randint(path_key, (3, 1 + BATCH), 0, 10_000))
    for step in path:
        states = every_draw(state, step[1:] % NUM_DATA)[2]
        state = take(states, step[0] % len(eps))
    state = elsewhere(state)
    plain, controlled, _ = every_draw(state, np.arange(BATCH))
    difference = max_error(expectation(controlled, weights), expectation(plain, weights))
    return difference, max_error(controlled, plain)


def triples():
    """Every basis × model × criterion; the short run has all pairs of them."""
    for i, basis in enumerate(BASES):
        for j, model in enumerate(COEFFICIENTS):
            for k, criterion in enumerate(CRITERIA):
                short = basis == "linear" or k == (i + j) % len(CRITERIA)
                marks = [] if short else [pytest.mark.slow]
                name = f"{basis}-{model}-{criterion}"
                yield pytest.param(basis, model, criterion, id=name, marks=marks)


@pytest.mark.parametrize(("basis", "model", "criterion"), list(triples()))
def test_the_controlled_gradient_is_unbiased(x64, key, basis, model, criterion):
    error, size = bias(key, BASES[basis](), COEFFICIENTS[model](), CRITERIA[criterion])
    assert error < EXACT
    assert size > 1e-2, "the correction does something"


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("model", LEARNED)
def test_learning_first_is_seen_to_be_biased(x64, key, model, criterion):
    """The negative control: the same check, the paper's order."""
    order = quell.learn_then_apply
    error, _ = bias(key, bases.linear(), COEFFICIENTS[model](), CRITERIA[criterion], order=order)
    assert error > 1e-4


@pytest.mark.parametrize("model", COEFFICIENTS)
@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
def test_several_draws_and_shared_draws_are_unbiased(x64, key, model, shared):
    error, size = bias(
        key,
        bases.polynomial(2),
        COEFFICIENTS[model](),
        criteria.partial_gradients,
        noise=quell.normal(1),
        draws=2,
        shared=shared,
    )
    assert error < EXACT
    assert size > 1e-2


NOISES = {
    "gaussian": lambda: quell.normal(1, mean=[1.0], covariance=[[4.0]]),
    "uniform": lambda: noises.uniform(1),
    "laplace": lambda: noises.laplace(1),
    "exponential": lambda: noises.from_moments(1, jax.random.exponential, [1.0, 2.0, 6.0]),
}


@pytest.mark.parametrize("noise", NOISES)
def test_every_noise_with_known_moments_is_unbiased(x64, key, noise):
    basis, model = bases.polynomial(3), COEFFICIENTS["recognition_network"]()
    error, size = bias(key, basis, model, criteria.squared_difference, noise=NOISES[noise]())
    assert error < EXACT
    assert size > 1e-2


def test_only_the_chosen_leaves_are_corrected_and_they_are_unbiased(x64, key):
    model = COEFFICIENTS["context_free"]()
    error, size = bias(
        key,
        bases.linear(),
        model,
        criteria.partial_gradients,
        leaves=lambda path: path == "mean",
    )
    assert error < EXACT
    assert size > 1e-2


@pytest.mark.parametrize("model", COEFFICIENTS)
def test_the_mean_over_mini_batches_and_draws_is_the_full_gradient(x64, key, model):
    """Both kinds of randomness at once: E over B and ε of G̃ is ∇L, to quadrature."""
    data_key, init_key, train_key = jax.random.split(key, 3)
    objective, params, data = problem(data_key, dim=1, num_data=4)
    parts = bases.linear(), COEFFICIENTS[model](), criteria.gradient_sum
    control = control_for(init_key, objective, params, data, *parts)
    state = train(train_key, objective, control, params, data, 6)
    eps, weights = nodes(objective.noise, 5, count=2)

    @jax.jit
    @jax.vmap
    def one_batch(index):
        batch = take(data, index)
        controlled = jax.vmap(
            lambda e: controlled_gradient(objective, control, params, state, e[None], batch)[1]
        )(eps)
        return expectation(controlled, weights)

    def full(params):
        single, single_weights = nodes(objective.noise, 5)
        losses = jax.vmap(
            lambda e: jax.vmap(loss, in_axes=(None, None, 0))(params, e[0], data).sum()
        )(single)
        return single_weights @ losses + regulariser(params)

    mean = jax.tree.map(lambda g: g.mean(0), one_batch(mini_batches(4, 2)))
    assert max_error(mean, jax.grad(full)(params)) < EXACT


def test_a_basis_whose_mean_is_not_zero_is_seen_to_be_biased(x64, key):
    """Another negative control: the check sees a wrong mean."""
    wrong = bases.custom(lambda e, params, y: e**2, mean=0.9)
    error, _ = bias(key, wrong, coefficients.fixed(0.7), criteria.squared_difference)
    assert error > 1e-2
