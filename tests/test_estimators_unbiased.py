"""Every estimator is unbiased, exactly: every mini-batch, and quadrature over every draw."""

import jax
import pytest
from _exact import expectation, max_error, mini_batches, nodes
from estimator_table import BATCH, ESTIMATORS, NUM_DATA, problem, take, wander

import quell
from quell import estimators as est

ORDER = 30  # the logistic loss is smooth, not a polynomial: this many nodes for 1e-9
QUADRATURE = 1e-9


def given(noise) -> est.Sampling:
    """A sampling that gives these draws."""
    return est.Sampling(lambda key, objective, B: noise)


def truth(objective, params, data):
    """∇L, by quadrature over one draw and the whole data."""
    eps, weights = nodes(objective.noise, ORDER)

    def full(params):
        losses = jax.vmap(lambda e: objective.value(params, e[:, None], data))(eps)
        return weights @ losses

    return full(params), jax.grad(full)(params)


def mean_estimate(row, objective, params, data, state, shared=False):
    """E[value] and E[G̃] over mini-batches and draws, and the largest |G̃ − Ĝ| seen."""
    drawn = 1 if shared else BATCH
    eps, weights = nodes(objective.noise, ORDER, count=drawn)

    @jax.jit
    @jax.vmap
    def one_batch(rows):
        batch = take(data, rows)

        def one_draw(noise):
            estimator = row(given(noise[None]), data)(objective)
            gradient, value, _ = estimator.estimate(jax.random.key(0), params, batch, state)
            return value, gradient, objective.gradient(params, noise[None], batch)

        return expectation(jax.vmap(one_draw)(eps), weights)

    value, gradient, plain = one_batch(mini_batches(NUM_DATA, BATCH))
    mean = jax.tree.map(lambda leaf: leaf.mean(0), (value, gradient))
    return *mean, max_error(gradient, plain)


def check(key, row, form=quell.closed_form_kl, shared=False):
    data_key, walk_key = jax.random.split(key)
    objective, params, data = problem(data_key, form=form)
    sampling = est.monte_carlo(shared=shared)
    state = wander(walk_key, row(sampling, data)(objective), params, data, 5)
    value, gradient, _ = mean_estimate(row, objective, params, data, state, shared)
    expected_value, expected = truth(objective, params, data)
    assert max_error(gradient, expected) < QUADRATURE
    assert max_error(value, expected_value) < QUADRATURE


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_mean_over_mini_batches_and_draws_is_the_full_gradient(x64, key, name):
    check(key, ESTIMATORS[name])


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if "controlled" not in name])
def test_so_it_is_when_the_entropy_is_sampled(x64, key, name):
    check(key, ESTIMATORS[name], form=quell.sampled_entropy)


@pytest.mark.parametrize("name", ["taylor", "surrogate", "svrg_held", "joint", "ensemble"])
def test_so_it_is_when_the_batch_shares_its_draws(x64, key, name):
    check(key, ESTIMATORS[name], shared=True)


def test_paired_svrg_is_off_by_the_error_of_its_full_pass_and_no_more(x64, key):
    data_key, walk_key = jax.random.split(key)
    objective, params, data = problem(data_key)

    def row(sampling, data):
        return est.svrg(sampling, data, every=100)

    state = wander(walk_key, row(est.monte_carlo(), data)(objective), params, data, 5)
    _, gradient, _ = mean_estimate(row, objective, params, data, state)
    _, expected = truth(objective, params, data)
    at_snapshot = truth(objective._replace(regulariser=None), state.snapshot, data)[1]
    error = jax.tree.map(lambda estimate, exact: estimate - exact, state.full, at_snapshot)
    off = jax.tree.map(lambda estimate, exact: estimate - exact, gradient, expected)
    assert max_error(off, error) < QUADRATURE
    assert max_error(gradient, expected) > 1e-3


def test_coefficients_that_have_seen_the_draw_are_seen_to_be_biased(x64, key):
    """The negative control: learn from a batch, then use what was learned on it again."""
    data_key, walk_key = jax.random.split(key)
    objective, params, data = problem(data_key)

    def peeking(sampling, data):
        def make(objective):
            inside = est.taylor(sampling, decay=0.5)(objective)

            def estimate(key, params, batch, state):
                learned = inside.estimate(key, params, batch, state)[2]
                return inside.estimate(key, params, batch, learned)

            return est.Estimator(inside.init, estimate)

        return make

    state = wander(walk_key, peeking(est.monte_carlo(), data)(objective), params, data, 5)
    _, gradient, _ = mean_estimate(peeking, objective, params, data, state)
    assert max_error(gradient, truth(objective, params, data)[1]) > 1e-3
