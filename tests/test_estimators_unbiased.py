"""Every estimator is unbiased, exactly: every mini-batch, and quadrature over every draw."""

import jax
import jax.numpy as jnp
import pytest
from _exact import expectation, max_error, mini_batches, nodes
from estimator_table import (
    BATCH,
    ESTIMATORS,
    NESTED,
    NUM_DATA,
    Replayed,
    problem,
    svrg,
    unit_prior,
    wander,
)

from quell import estimators as est
from quell._jit import quick_jit
from quell.estimators._types import batch_of
from quell.types import Estimator, Started

ORDER = 30  # the logistic loss is smooth, not a polynomial: this many nodes for 1e-9
NESTED_ORDER = 36  # products of its variates vary faster
QUADRATURE = 1e-9


def truth(objective, params, data, order=ORDER):
    """∇L, by quadrature over one draw and the whole data."""
    eps, weights = nodes(objective.noise, order)

    def full(params):
        losses = jax.vmap(lambda e: objective.value(params, e[:, None], data))(eps)
        return weights @ losses

    return full(params), jax.grad(full)(params)


def means(key, row, log_prior=None, shared=False, mirrored=False, repeated=False, order=ORDER):
    """E[value] and E[G̃] at an arbitrary learned state, the true ones, and that state."""
    data_key, start_key, walk_key = jax.random.split(key, 3)
    objective, params, data = problem(data_key, log_prior=log_prior)
    if repeated:
        data = jax.tree.map(lambda leaf: leaf.at[2].set(leaf[0]), data)
    eps, weights = nodes(objective.noise, order, count=1 if shared else BATCH)
    draws = jnp.stack([eps, -eps], 1) if mirrored else eps[:, None]
    replayed = Replayed(shared=shared)
    started = row(replayed.estimator).start(start_key, objective, params, data)
    batches = mini_batches(NUM_DATA, BATCH)

    def one(rows, noise, state):
        replayed.noise = noise
        found = started.estimate(jax.random.key(0), objective, params, batch_of(data, rows), state)
        return found.value, found.gradient

    @quick_jit
    def everything(key):
        state = wander(key, started, objective, params, data, 5)
        every = jax.vmap(lambda e: jax.vmap(lambda rows: one(rows, e, state))(batches))(draws)
        found = jax.tree.map(lambda leaf: leaf.mean(0), expectation(every, weights))
        return found, truth(objective, params, data, order), state

    return (*everything(walk_key), objective, data)


def check(key, row, **kwargs):
    (value, gradient), (true_value, true_gradient), *_ = means(key, row, **kwargs)
    assert max_error(gradient, true_gradient) < QUADRATURE
    assert max_error(value, true_value) < QUADRATURE


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_mean_over_mini_batches_and_draws_is_the_full_gradient(x64, key, name):
    check(key, ESTIMATORS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", ESTIMATORS)
def test_so_it_is_over_antithetic_pairs(x64, key, name):
    check(key, ESTIMATORS[name], mirrored=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", NESTED)
def test_so_it_is_for_every_wrapper_over_any_estimator(x64, key, name):
    check(key, NESTED[name], order=NESTED_ORDER)


# One of each kind of change: a term of the score, of the draws, of the table, of the snapshot.
@pytest.mark.parametrize(
    "row",
    [
        lambda sampling: svrg(est.score_function(sampling)),
        lambda sampling: est.taylor(svrg(sampling)),
        lambda sampling: est.sticking_the_landing(est.joint(sampling)),
        # The second time there is nothing left to subtract but rounding.
        lambda sampling: est.taylor(est.taylor(sampling, pooling=None)),
    ],
    ids=["svrg of scores", "taylor of svrg", "landing of joint", "taylor of taylor"],
)
def test_so_it_is_for_wrappers_in_any_order(x64, key, row):
    check(key, row, order=NESTED_ORDER)


@pytest.mark.parametrize("name", ["sticking_the_landing", "score_function_controlled", "joint"])
def test_so_it_is_when_the_divergence_is_sampled(x64, key, name):
    check(key, ESTIMATORS[name], log_prior=unit_prior)


@pytest.mark.parametrize("name", ["taylor", "svrg", "joint"])
def test_so_it_is_when_the_batch_shares_its_draws(x64, key, name):
    check(key, ESTIMATORS[name], shared=True)


def test_so_it_is_for_the_joint_variate_when_rows_of_the_data_repeat(x64, key):
    check(key, ESTIMATORS["joint"], repeated=True)


@pytest.mark.slow
def test_paired_svrg_is_off_by_the_error_of_its_full_pass_and_no_more(x64, key):
    def row(sampling):
        return est.svrg(sampling, every=100)

    (_, gradient), (_, expected), state, objective, data = means(key, row)
    snapshot = state.snapshot
    at_snapshot = truth(objective._replace(regulariser=None), snapshot.params, data)[1]
    error = jax.tree.map(jnp.subtract, snapshot.full, at_snapshot)
    off = jax.tree.map(jnp.subtract, gradient, expected)
    assert max_error(off, error) < QUADRATURE
    assert max_error(gradient, expected) > 1e-3


def test_coefficients_that_have_seen_the_draw_are_seen_to_be_biased(x64, key):
    """The negative control: learn from a batch, then use the coefficients on that batch again."""

    def peeking(sampling):
        inner = est.taylor(sampling, decay=0.5)

        def start(*problem):
            inside = inner.start(*problem)

            def estimate(key, objective, params, batch, state):
                learned = inside.estimate(key, objective, params, batch, state).state
                return inside.estimate(key, objective, params, batch, learned)

            return Started(inside.init, estimate)

        return Estimator("peeking", start)

    (_, gradient), (_, expected), *_ = means(key, peeking)
    assert max_error(gradient, expected) > 1e-3
