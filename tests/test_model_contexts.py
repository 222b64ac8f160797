"""Contexts that are functions of the parameters: the model at ε = 0."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _exact import EXACT, SAME64, max_error, nodes, over_batches_and_draws, total_variance
from conformance import problem, take

import quell
from quell import coefficients, contexts, criteria, models
from quell.estimators._types import batch_of


def at_zero(params, example):
    """Residual and curvature of the logistic regression of the conformance table."""
    p = jax.nn.sigmoid(params["mean"] @ example["x"])
    return {"residual": p - 0.5 * (example["y"] + 1), "curvature": p * (1 - p)}


def told():
    """[1, what the model says at ε = 0] ⊗ the standardised example."""
    return contexts.computed(at_zero, contexts.standardised())


def control_of(key, objective, params, data, model):
    criterion = criteria.partial_gradients
    return quell.control_variate(key, objective, params, data, model, criterion=criterion)


MODELS = {
    "least squares": lambda: coefficients.least_squares(told(), every=1),
    "network": lambda: coefficients.recognition_network((4,), context=told()),
}


def controlled(model):
    return quell.controlled(model, criterion=criteria.partial_gradients)


@pytest.mark.parametrize("name", MODELS)
def test_it_is_unbiased_over_all_batches_and_draws(x64, key, name):
    """At parameters and coefficients it has never seen."""
    objective, params, data = problem(key, dim=1, num_data=4)
    control = control_of(key, objective, params, data, MODELS[name]())
    state = control.init(params)
    rng = np.random.default_rng(0)
    state = jax.tree.map(
        lambda leaf: leaf + 0.3 * rng.uniform(0.5, 1, leaf.shape) if leaf.dtype == float else leaf,
        state,
    )
    eps, weights = nodes(objective.noise, 5, count=2)

    def gradients(draw, index):
        noise, batch = draw[None], take(data, index)
        plain = objective.gradient(params, noise, batch)
        rows = objective.per_example_gradients(params, noise, batch)
        quieter, _ = control.update(
            plain, state, params, noise=noise, batch=batch, per_example=rows
        )
        return plain, quieter

    (plain, quieter), first = over_batches_and_draws(gradients, eps, weights, 4, 2)
    assert max_error(quieter, plain) < EXACT
    assert max_error(*first) < EXACT, "every batch by itself too"


@pytest.mark.slow
def test_a_gradient_that_it_describes_is_quiet_wherever_the_parameters_go(x64, key):
    """g = exp(θ y) ε: learned at one θ, used at another, where no fixed context would do."""
    data = jax.random.uniform(key, (12, 1))

    def loss(params, noise, y):
        return jax.lax.stop_gradient(jnp.exp(params["a"] * y[0])) * noise[0] * params["a"]

    objective, params = quell.Objective(loss, quell.normal(1), 12), {"a": jnp.array(0.5)}
    left = {}
    slope = contexts.computed(lambda params, y: jnp.exp(params["a"] * y))
    for name, context in {"raw": contexts.standardised(), "model": slope}.items():
        model = coefficients.least_squares(context, every=4, ridge=1e-9)
        estimator = controlled(model).start(key, objective, params, data)

        def step(state, inputs, estimator=estimator):
            step_key, a = inputs
            row_key, noise_key = jax.random.split(step_key)
            batch = batch_of(data, jax.random.randint(row_key, (3,), 0, 12))
            estimate = estimator.estimate(noise_key, objective, {"a": a}, batch, state)
            return estimate.state, estimate.gradient

        state = estimator.init(key, params)
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
    batch = batch_of(data, jnp.arange(10))

    def variance(estimator):
        started = estimator.start(key, objective, params, data)

        def estimate(key, params, batch, state):
            return started.estimate(key, objective, params, batch, state)

        def step(state, inputs):
            step_key, t = inputs
            row_key, noise_key = jax.random.split(step_key)
            here = jax.tree.map(lambda a, b: a + t * (b - a), params, end)
            rows = jax.random.randint(row_key, (10,), 0, 200)
            return estimate(noise_key, here, batch_of(data, rows), state).state, None

        @jax.jit
        def run(key):
            learn_key, measure_key = jax.random.split(key)
            inputs = jax.random.split(learn_key, 400), jnp.linspace(0, 1, 400)
            state, _ = jax.lax.scan(step, started.init(key, params), inputs)
            return jax.vmap(lambda k: estimate(k, end, batch, state).gradient)(
                jax.random.split(measure_key, 300)
            )

        return total_variance(run(key))

    def residual(params, example):
        p = jax.nn.sigmoid(params["mean"] @ example["x"])
        return jnp.stack([p - example["y"], p * (1 - p)])

    standardised = contexts.standardised()
    raw, told = (
        variance(controlled(coefficients.least_squares(context)))
        for context in (standardised, contexts.computed(residual, standardised))
    )
    assert told < 0.5 * raw < 0.5 * variance(quell.monte_carlo())


def test_computed_features_are_multiplied_into_the_context(x64, key):
    """h = [1, q] ⊗ h₀ with q the residual and curvature of a logistic model at ε = 0, by hand."""
    N = 40
    _, params, data = problem(key, num_data=N)
    context = told()
    h = context.apply(context.fit(key, data), params, data)
    x, y = np.asarray(data["x"]), np.asarray(data["y"])
    p = 1 / (1 + np.exp(-x @ np.asarray(params["mean"])))
    # Leaves of a dict come in the order of their names: the curvature, then the residual.
    q = np.stack([np.ones(N), p * (1 - p), p - (y + 1) / 2], axis=1)
    z = np.concatenate([x, y[:, None]], axis=1)
    z = np.concatenate([np.ones((N, 1)), (z - z.mean(0)) / z.std(0)], axis=1)
    expected = np.einsum("bq,bh->bqh", q, z).reshape(N, -1)
    np.testing.assert_allclose(h, expected, atol=SAME64)
    alone = contexts.computed(at_zero)
    np.testing.assert_allclose(alone.apply((), params, data), q, atol=SAME64)
