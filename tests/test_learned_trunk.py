"""A trunk that learns under a solved last layer: unbiased at any state, safe, and it learns."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _exact import EXACT, max_error, nodes, over_batches_and_draws
from conformance import contexts as context_of
from conformance import control_for, controlled_gradient, problem, take, train

import quell
from quell import bases, coefficients, contexts, criteria, estimators


def test_both_noises_are_unbiased_over_all_batches_and_draws(x64, key):
    """After trunks have taken over from trunks, under a Θ that nobody has learned."""
    objective, params, data = problem(key, dim=1, num_data=4)
    model = coefficients.learned_trunk((3,), optax.adam(0.3), refresh=3, every=1)
    control = control_for(
        key, objective, data, bases.linear(), model, criteria.partial_gradients, points=True
    )
    first = control.init(params).coefficients
    learned = train(key, objective, control, params, data, 30)
    used, trial = learned.coefficients.used, learned.coefficients.trial
    assert max_error(trial.contexts, first.used.contexts) > 1e-3, "the trunk has moved"
    # The trunk on trial takes over with its mean, which is that over the data.
    theta = jax.random.normal(key, used.theta.shape)
    state = learned._replace(
        coefficients=learned.coefficients._replace(used=trial._replace(theta=theta))
    )
    centred = model.point_features(state.coefficients, context_of(data))
    assert jnp.abs(centred.mean(0)).max() < EXACT
    eps, weights = nodes(objective.noise, 5, count=2)

    def gradients(draw, index):
        batch = take(data, index)
        return controlled_gradient(objective, control, params, state, draw[None], batch)[:2]

    (plain, controlled), first = over_batches_and_draws(gradients, eps, weights, 4, 2)
    assert max_error(controlled, plain) < EXACT
    assert max_error(*first) > 1e-3, "single batches are moved"


N = 300


def wavy(params, noise, y):
    """A gradient that bends with its context: no straight line through it is of use."""
    turn = jnp.sin(6 * y[0] * y[1] + 2 * y[0])
    return params["a"] * (turn * noise[0] + jnp.cos(5 * y[0]))


def variances(key, model, steps):
    """Variance of the controlled gradient, in stretches of 250 steps, over that of the sampling."""
    data = jax.random.uniform(jax.random.key(0), (N, 2), minval=-1.0)
    objective, params = quell.Objective(wavy, quell.normal(1), N), {"a": jnp.array(1.0)}
    control = quell.control_variate(
        bases.linear(),
        model,
        criteria.partial_gradients,
        noise=objective.noise,
        context=data,
        key=key,
        points=True,
    )
    plain = estimators.monte_carlo()
    ours, theirs = estimators.controlled(plain, control)(objective), plain(objective)

    def step(state, key):
        row_key, noise_key = jax.random.split(key)
        batch = data[jax.random.randint(row_key, (10,), 0, N)]
        gradient, _, state = ours.estimate(noise_key, params, batch, state)
        other, _, _ = theirs.estimate(noise_key, params, batch, ())
        return state, (gradient["a"], other["a"])

    run = jax.jit(lambda state, keys: jax.lax.scan(step, state, keys)[1])
    found = run(ours.init(key, params, data), jax.random.split(key, steps))
    quieter, loud = (np.asarray(side).reshape(-1, 250).var(1) for side in found)
    return quieter / loud


@pytest.mark.slow
def test_it_learns_what_a_small_fixed_context_cannot(quick, key):
    fixed = variances(key, coefficients.least_squares(contexts.standardised()), 1000)
    learned = variances(key, coefficients.learned_trunk((24, 24)), 3000)
    assert fixed[-2:].mean() > 0.7
    assert learned[-3:].mean() < 0.25
    assert learned[-3:].mean() < 0.6 * learned[1:3].mean(), "better than the trunk it began with"
    assert learned.max() < 1.05, "and never worse than without it"


def test_a_trunk_that_bursts_is_replaced(quick, key):
    """An optimiser that throws the weights to infinity leaves the gradient finite."""
    objective, params, data = problem(key)
    burst = optax.chain(optax.scale(jnp.inf))
    model = coefficients.learned_trunk((3,), burst, refresh=2, every=1)
    control = control_for(
        key, objective, data, bases.linear(), model, criteria.partial_gradients, points=True
    )
    state = train(key, objective, control, params, data, 20)
    assert int(state.skipped) == 0
    assert bool(jnp.isfinite(state.coefficients.used.theta).all())
    assert all(bool(jnp.isfinite(w).all()) for w in jax.tree.leaves(state.coefficients.trunk))


def test_a_trial_begins_as_least_squares_does(key):
    """All zeros but for the trunk and its mean: what `judge` starts a trial from."""
    objective, params, data = problem(key)
    model = coefficients.learned_trunk((3,))
    control = control_for(key, objective, data, bases.linear(), model, criteria.partial_gradients)
    first = control.init(params).coefficients.used
    rest = first._replace(contexts=(), mean=jnp.zeros(()))
    assert all(not np.asarray(leaf).any() for leaf in jax.tree.leaves(rest))


@pytest.mark.parametrize("refresh", [0, 2.5])
def test_a_refresh_that_is_no_number_of_steps_is_refused(refresh):
    with pytest.raises(ValueError, match="refresh: expected an int"):
        coefficients.learned_trunk(refresh=refresh)
