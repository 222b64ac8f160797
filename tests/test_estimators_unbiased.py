"""Every estimator is unbiased, exactly: every mini-batch, and quadrature over every draw."""

import jax
import jax.numpy as jnp
import pytest
from _exact import expectation, max_error, mini_batches, nodes
from estimator_table import BATCH, ESTIMATORS, NUM_DATA, problem, quick_jit, take, wander

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


def means(key, row, form=quell.closed_form_kl, shared=False):
    """E[value] and E[G̃] at an arbitrary learned state, what they should be, and that state."""
    data_key, walk_key = jax.random.split(key)
    objective, params, data = problem(data_key, form=form)
    eps, weights = nodes(objective.noise, ORDER, count=1 if shared else BATCH)
    batches = mini_batches(NUM_DATA, BATCH)

    @quick_jit
    def everything(key):
        drawing = row(est.monte_carlo(shared=shared), data)(objective)
        state = wander(key, drawing, params, data, 5)

        def one(rows, noise):
            estimator = row(given(noise[None]), data)(objective)
            return estimator.estimate(jax.random.key(0), params, take(data, rows), state)[:2]

        values = jax.vmap(lambda e: jax.vmap(lambda rows: one(rows, e))(batches))(eps)
        gradient, value = jax.tree.map(lambda leaf: leaf.mean(0), expectation(values, weights))
        return (value, gradient), truth(objective, params, data), state

    return (*everything(walk_key), objective, data)


def check(key, row, **kwargs):
    (value, gradient), (true_value, true_gradient), *_ = means(key, row, **kwargs)
    assert max_error(gradient, true_gradient) < QUADRATURE
    assert max_error(value, true_value) < QUADRATURE


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_mean_over_mini_batches_and_draws_is_the_full_gradient(x64, key, name):
    check(key, ESTIMATORS[name])


@pytest.mark.parametrize("name", ["sticking_the_landing", "black_box", "joint"])
def test_so_it_is_when_the_entropy_is_sampled(x64, key, name):
    check(key, ESTIMATORS[name], form=quell.sampled_entropy)


@pytest.mark.parametrize("name", ["taylor", "svrg_held", "joint"])
def test_so_it_is_when_the_batch_shares_its_draws(x64, key, name):
    check(key, ESTIMATORS[name], shared=True)


@pytest.mark.slow
def test_paired_svrg_is_off_by_the_error_of_its_full_pass_and_no_more(x64, key):
    def row(sampling, data):
        return est.svrg(sampling, data, every=100)

    (_, gradient), (_, expected), state, objective, data = means(key, row)
    at_snapshot = truth(objective._replace(regulariser=None), state.snapshot, data)[1]
    error = jax.tree.map(jnp.subtract, state.full, at_snapshot)
    off = jax.tree.map(jnp.subtract, gradient, expected)
    assert max_error(off, error) < QUADRATURE
    assert max_error(gradient, expected) > 1e-3


def test_coefficients_that_have_seen_the_draw_are_seen_to_be_biased(x64, key):
    """The negative control: learn from a batch, then use what was learned on it again."""

    def peeking(sampling, data):
        def make(objective):
            inside = est.taylor(sampling, decay=0.5)(objective)

            def estimate(key, params, batch, state):
                learned = inside.estimate(key, params, batch, state)[2]
                return inside.estimate(key, params, batch, learned)

            return est.Estimator(inside.init, estimate)

        return make

    (_, gradient), (_, expected), *_ = means(key, peeking)
    assert max_error(gradient, expected) > 1e-3
