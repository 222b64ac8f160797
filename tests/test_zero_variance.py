"""Cases in which the variance that is left is known: none, or 1 − ρ² of it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _exact import EXACT, expectation, nodes
from conformance import control_for, controlled_gradient, take

import quell
from quell import bases, coefficients, criteria

pytestmark = pytest.mark.usefixtures("quick")


def variance_ratio(key, objective, control, params, data, steps, batch_size=5):
    """Total variance of G̃ over that of Ĝ, on fresh draws of fixed batches, after learning."""
    train_key, test_key = jax.random.split(key)

    def draw(key):
        row_key, noise_key = jax.random.split(key)
        rows = jax.random.randint(row_key, (batch_size,), 0, len(data["y"]))
        return take(data, rows), objective.sample_noise(noise_key, batch_size)

    def learn(state, key):
        batch, noise = draw(key)
        return controlled_gradient(objective, control, params, state, noise, batch)[2], None

    def apply(state, key):
        batch, _ = draw(key)

        def one(key):
            noise = objective.sample_noise(key, batch_size)
            return controlled_gradient(objective, control, params, state, noise, batch)[:2]

        plain, controlled = jax.vmap(one)(jax.random.split(key, 50))
        return plain["a"].var(0).sum(), controlled["a"].var(0).sum()

    @jax.jit
    def run(state):
        state, _ = jax.lax.scan(learn, state, jax.random.split(train_key, steps))
        return jax.vmap(lambda k: apply(state, k))(jax.random.split(test_key, 20))

    plain, controlled = run(control.init(params))
    return float(controlled.sum() / plain.sum())


def polynomial_problem(order, context_dependent=False):
    """∂loss/∂a = slope(y)·ε + curvature·ε² + constant: of the given order in the noise."""

    def loss(params, noise, example):
        slope = example["x"].sum() if context_dependent else 2.0
        value = slope * noise + 3.0
        if order == 2:
            value = value + 0.7 * noise**2
        return params["a"] @ value

    y = jnp.asarray(np.linspace(-1.0, 1.0, 40))
    data = {"x": y[:, None], "y": y}
    return quell.Objective(loss, quell.normal(2), 40), {"a": jnp.ones(2)}, data


FADING = optax.adam(optax.exponential_decay(0.1, 100, 0.5))
SLOWLY_FADING = optax.adam(optax.exponential_decay(0.05, 1500, 0.5))


def ungated(decay):
    return coefficients.unit_scale(decay=decay, gated=False)


@pytest.mark.parametrize("criterion", [criteria.partial_gradients, criteria.squared_difference])
@pytest.mark.parametrize("order", [1, 2])
def test_a_polynomial_gradient_is_controlled_to_variance_zero(x64, key, order, criterion):
    objective, params, data = polynomial_problem(order)
    model = coefficients.context_free(SLOWLY_FADING, targets=ungated(1.0))
    control = control_for(key, objective, params, data, bases.polynomial(order), model, criterion)
    assert variance_ratio(key, objective, control, params, data, 20_000) < 1e-6


def test_a_basis_of_too_low_an_order_leaves_variance(x64, key):
    objective, params, data = polynomial_problem(2)
    model = coefficients.context_free(FADING, targets=ungated(1.0))
    control = control_for(
        key, objective, params, data, bases.linear(), model, criteria.squared_difference
    )
    assert variance_ratio(key, objective, control, params, data, 1000) > 0.05


def test_a_fixed_coefficient_that_is_right_leaves_nothing(x64, key):
    objective, params, data = polynomial_problem(1)
    model = coefficients.fixed(40 * 2.0 * jnp.eye(2))
    control = control_for(
        key, objective, params, data, bases.linear(), model, criteria.squared_difference
    )
    assert variance_ratio(key, objective, control, params, data, 1) < 1e-20


def test_a_context_dependent_gradient_is_controlled_by_the_network_alone(key):
    objective, params, data = polynomial_problem(1, context_dependent=True)
    models = {
        "network": coefficients.recognition_network((16, 16), FADING),
        "context-free": coefficients.context_free(FADING),
        "running average": coefficients.running_average(0.99),
    }
    ratios = {}
    for name, model in models.items():
        control = control_for(
            key, objective, params, data, bases.linear(), model, criteria.partial_gradients
        )
        ratios[name] = variance_ratio(key, objective, control, params, data, 1500)
    print(ratios)
    assert ratios["network"] < 0.05
    assert ratios["context-free"] > 0.9
    assert ratios["running average"] > 0.9


def test_the_best_coefficient_leaves_one_minus_rho_squared(x64):
    """The paper prints 1 − ρ; it is 1 − ρ²."""
    eps, weights = nodes(quell.normal(1), 20)
    objective = quell.Objective(lambda p, e, y: p * jnp.exp(0.5 * e[0]), quell.normal(1), 1)
    g = jax.vmap(lambda e: objective.gradient(jnp.ones(()), e[None], jnp.zeros((1, 1))))(eps)
    w = eps[:, 0, 0]
    g_mean, w_square = expectation(g, weights), expectation(w**2, weights)
    covariance, variance = expectation(g * w, weights), expectation((g - g_mean) ** 2, weights)
    rho = covariance / jnp.sqrt(variance * w_square)
    params, data = jnp.ones(()), jnp.zeros((1, 1))
    model = coefficients.fixed(covariance / w_square)
    control = quell.control_variate(jax.random.key(0), objective, params, data, model)
    state = control.init(params)

    def correct(g, e):
        return control.update(g, state, params, noise=e[None], batch=data)[0]

    controlled = jax.vmap(correct)(g, eps)
    left = expectation((controlled - expectation(controlled, weights)) ** 2, weights)
    assert abs(left - (1 - rho**2) * variance) < EXACT
    assert abs(left - (1 - rho) * variance) > 1e-2
