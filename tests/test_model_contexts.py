"""Contexts that include what the model says of an example at ε = 0, and what has no known mean."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _exact import EXACT, max_error, nodes, over_batches_and_draws, total_variance
from conformance import problem, take

import quell
from quell import bases, coefficients, contexts, criteria, estimators, models


def at_zero(params, example):
    """Residual and curvature of the logistic regression of the conformance table."""
    p = jax.nn.sigmoid(params["mean"] @ example["x"])
    return {"residual": p - 0.5 * (example["y"] + 1), "curvature": p * (1 - p)}


def control_of(key, objective, data, model, **kwargs):
    return quell.control_variate(
        bases.linear(),
        model,
        criteria.partial_gradients,
        noise=objective.noise,
        context=data,
        key=key,
        **{"at_zero": at_zero, **kwargs},
    )


MODELS = {
    "draws": (lambda: coefficients.least_squares(draws=contexts.at_zero(), every=1), False),
    "intercept": (lambda: coefficients.least_squares(contexts.at_zero(), every=1), False),
    "both noises": (
        lambda: coefficients.least_squares(
            contexts.standardised(), draws=contexts.at_zero(), every=1
        ),
        True,
    ),
    "network": (lambda: coefficients.recognition_network((4,)), False),
}


@pytest.mark.parametrize("name", MODELS)
def test_it_is_unbiased_over_all_batches_and_draws(x64, key, name):
    """At parameters and coefficients it has never seen."""
    objective, params, data = problem(key, dim=1, num_data=4)
    model, points = MODELS[name]
    control = control_of(key, objective, data, model(), points=points)
    state = control.init(params)
    rng = np.random.default_rng(0)
    state = jax.tree.map(
        lambda leaf: leaf + 0.3 * rng.uniform(0.5, 1, leaf.shape) if leaf.dtype == float else leaf,
        state,
    )
    if points:
        mean = control.init(params).coefficients.mean
        state = state._replace(coefficients=state.coefficients._replace(mean=mean))
        fitted = control.init(params).coefficients.contexts
        state = state._replace(coefficients=state.coefficients._replace(contexts=fitted))
    eps, weights = nodes(objective.noise, 5, count=2)

    def gradients(draw, index):
        noise, batch = draw[None], take(data, index)
        plain = objective.gradient(params, noise, batch)
        rows = objective.per_example_gradients(params, noise, batch)
        quieter, _ = control.update(
            plain, state, params, noise=noise, context=batch, per_example=rows
        )
        return plain, quieter

    (plain, quieter), first = over_batches_and_draws(gradients, eps, weights, 4, 2)
    assert max_error(quieter, plain) < EXACT
    if not points:
        assert max_error(*first) < EXACT, "every batch by itself too"


@pytest.mark.slow
def test_a_gradient_that_it_describes_is_quiet_wherever_the_parameters_go(x64, key):
    """g = exp(θ y) ε: learned at one θ, used at another, where no fixed context would do."""
    data = jax.random.uniform(key, (12, 1))

    def loss(params, noise, y):
        return jax.lax.stop_gradient(jnp.exp(params["a"] * y[0])) * noise[0] * params["a"]

    objective = quell.Objective(
        loss, quell.normal(1), 12, at_zero=lambda params, y: jnp.exp(params["a"] * y)
    )
    left = {}
    told = contexts.at_zero(contexts.constant())
    for name, draws in {"raw": contexts.standardised(), "model": told}.items():
        model = coefficients.least_squares(
            contexts.constant(), draws=draws, every=4, ridges=(1e-9,)
        )
        control = control_of(key, objective, data, model, at_zero=objective.at_zero)
        estimator = estimators.controlled(estimators.monte_carlo(), control)(objective)

        def step(state, inputs, estimator=estimator):
            step_key, a = inputs
            row_key, noise_key = jax.random.split(step_key)
            batch = data[jax.random.randint(row_key, (3,), 0, 12)]
            gradient, _, state = estimator.estimate(noise_key, {"a": a}, batch, state)
            return state, gradient

        params = {"a": jnp.array(0.5)}
        state = estimator.init(key, params, data)
        keys = jax.random.split(key, 40)
        where = jnp.where(jnp.arange(40) < 32, 0.5, 3.0)
        _, seen = jax.jit(lambda s, k, where, step=step: jax.lax.scan(step, s, (k, where)))(
            state, keys, where
        )
        left[name] = float(jnp.square(seen["a"][32:]).mean())
    assert left["model"] < 1e-2 * left["raw"]


@pytest.mark.slow
def test_the_draws_of_a_training_are_quieter_than_with_the_raw_context(quick, key):
    rng = np.random.default_rng(0)
    x = np.concatenate([np.ones((200, 1)), rng.normal(size=(200, 1))], axis=1)
    data = {"x": jnp.asarray(x, jnp.float32), "y": jnp.asarray(x[:, 1] > 0.3, jnp.float32)}
    model = models.logistic_regression(2)
    objective, params = model.objective(200), model.init(key)
    end = jax.tree.map(lambda leaf: leaf * 0.3, params) | {"mean": jnp.array([-1.0, 4.0])}
    batch = take(data, jnp.arange(10))

    def variance(control):
        make = estimators.monte_carlo()
        if control is not None:
            make = estimators.controlled(make, control)
        estimator = make(objective)

        def step(state, inputs):
            step_key, t = inputs
            row_key, noise_key = jax.random.split(step_key)
            here = jax.tree.map(lambda a, b: a + t * (b - a), params, end)
            rows = jax.random.randint(row_key, (10,), 0, 200)
            return estimator.estimate(noise_key, here, take(data, rows), state)[2], None

        @jax.jit
        def run(key):
            learn_key, measure_key = jax.random.split(key)
            inputs = jax.random.split(learn_key, 400), jnp.linspace(0, 1, 400)
            state, _ = jax.lax.scan(step, estimator.init(key, params, data), inputs)
            return jax.vmap(lambda k: estimator.estimate(k, end, batch, state)[0])(
                jax.random.split(measure_key, 300)
            )

        return total_variance(run(key))

    plain = variance(None)
    raw, told = (
        variance(
            control_of(
                key,
                objective,
                data,
                coefficients.least_squares(contexts.standardised(), draws=draws),
                at_zero=objective.at_zero,
            )
        )
        for draws in (contexts.standardised(), contexts.at_zero())
    )
    assert told < 0.5 * raw < 0.5 * plain


def test_the_logistic_model_offers_residual_and_curvature():
    model = models.logistic_regression(2)
    params = model.init(jax.random.key(0)) | {"mean": jnp.array([1.0, -2.0])}
    example = {"x": jnp.array([1.0, 0.5]), "y": jnp.array(1.0)}
    np.testing.assert_allclose(model.objective(5).at_zero(params, example), [-0.5, 0.25], rtol=1e-6)


def test_a_map_that_looks_at_the_model_cannot_control_the_points(key):
    objective, _, data = problem(key)
    model = coefficients.least_squares(contexts.at_zero())
    with pytest.raises(ValueError, match=r"points: .*no known mean.*does not look at the model"):
        control_of(key, objective, data, model, points=True)


def test_a_map_that_looks_at_the_model_must_be_told_what_to_look_at(key):
    objective, params, data = problem(key)
    model = coefficients.least_squares(draws=contexts.at_zero())
    control = control_of(key, objective, data, model, at_zero=None)
    with pytest.raises(ValueError, match=r"at_zero: .*control_variate"):
        control.init(params)


def test_what_the_model_says_needs_parameters_and_contexts(key):
    objective, params, data = problem(key)
    control = control_of(key, objective, data, coefficients.fixed(0.5))
    noise = objective.sample_noise(key, 6)
    rows = objective.per_example_gradients(params, noise, data)
    with pytest.raises(ValueError, match=r"params: .*at_zero"):
        control.update(params, control.init(params), noise=noise, context=data, per_example=rows)
    with pytest.raises(ValueError, match=r"context: .*at_zero"):
        control_of(key, objective, None, coefficients.fixed(0.5)).init(params)


@pytest.mark.parametrize("given", ["nothing", "shapes"])
def test_a_stream_without_a_known_mean_cannot_control_the_points(key, given):
    objective, params, data = problem(key)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), data)
    context = None if given == "nothing" else shapes
    model = coefficients.least_squares(contexts.constant(), draws=contexts.constant())
    with pytest.raises(ValueError, match=r"context: .*all the data.*stream.*points=False"):
        control_of(key, objective, context, model, points=True, at_zero=None)
    if given == "shapes":  # the draws alone may be controlled
        state = control_of(key, objective, context, model, at_zero=None).init(params)
        assert state.coefficients.theta.shape == (3, 4)
