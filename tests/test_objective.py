"""The doubly stochastic objective: scale, gradients, draws, batches, refusals."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from _exact import EXACT, SAME64, expectation, max_error, mini_batches, nodes

import quell

pytestmark = pytest.mark.usefixtures("quick")


def loss(params, noise, example):
    """A smooth loss that is linear in nothing."""
    weight = params["mean"] + jnp.exp(params["scale"]) * noise
    return jnp.logaddexp(0.0, -example["y"] * weight @ example["x"])


def regulariser(params):
    return 0.5 * (params["mean"] ** 2).sum() + (params["scale"] ** 2).sum()


def problem(key, num_data=5, dim=2, **kwargs):
    mean_key, x_key, y_key = jax.random.split(key, 3)
    params = {"mean": jax.random.normal(mean_key, (dim,)), "scale": jnp.full((dim,), -0.3)}
    x = jax.random.normal(x_key, (num_data, dim))
    y = jnp.sign(jax.random.normal(y_key, (num_data,)))
    objective = quell.Objective(loss, quell.normal(dim), num_data, **kwargs)
    return objective, params, {"x": x, "y": y}


def rows(data, index):
    return jax.tree.map(lambda leaf: leaf[index], data)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("draws", [1, 3])
def test_value_is_the_scaled_sum_over_examples_and_draws(x64, key, draws, shared):
    objective, params, batch = problem(key, num_data=4, regulariser=regulariser)
    objective = objective._replace(num_data=100)
    noise = objective.sample_noise(key, 4, draws=draws, shared=shared)
    assert noise.shape == (draws, 1 if shared else 4, 2)
    total = sum(
        loss(params, noise[s, 0 if shared else b], rows(batch, b))
        for s in range(draws)
        for b in range(4)
    )
    expected = 100 / (4 * draws) * total + regulariser(params)
    assert max_error(objective.value(params, noise, batch), expected) < SAME64
    value, gradient = objective.value_and_gradient(params, noise, batch)
    assert max_error(value, expected) < SAME64
    assert max_error(gradient, objective.gradient(params, noise, batch)) < SAME64


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("draws", [1, 3])
def test_per_example_gradients_average_to_the_gradient(x64, key, draws, shared):
    objective, params, batch = problem(key)
    noise = objective.sample_noise(key, 5, draws=draws, shared=shared)
    per_example = jax.jit(objective.per_example_gradients)(params, noise, batch)
    mean = jax.tree.map(lambda g: g.mean(0), per_example)
    assert max_error(mean, jax.jit(objective.gradient)(params, noise, batch)) < SAME64
    first = jax.jit(partial(objective.per_example_gradients, first=2))(params, noise, batch)
    assert max_error(first, rows(per_example, slice(0, 2))) < SAME64


@pytest.mark.parametrize("shared", [False, True])
def test_few_examples_of_a_large_batch_have_the_same_gradients(x64, key, shared):
    objective, params, batch = problem(key)
    large = jax.tree.map(lambda y: jnp.concatenate([y] * 7), batch)
    noise = objective.sample_noise(key, 35, shared=shared)
    compute = objective.value_gradient_and_examples
    expected = jax.jit(compute)(params, noise, large)
    few = jax.jit(partial(compute, first=2))(params, noise, large)
    assert max_error(few[:2], expected[:2]) < SAME64
    assert max_error(few[2], rows(expected[2], slice(0, 2))) < SAME64


def test_per_example_gradients_of_chosen_leaves_leave_the_rest_out(x64, key):
    objective, params, batch = problem(key)
    noise = objective.sample_noise(key, 5)
    every = objective.per_example_gradients(params, noise, batch)
    some = objective.per_example_gradients(params, noise, batch, leaves=lambda p: p == "mean")
    assert some["scale"] is None
    assert max_error(some["mean"], every["mean"]) < SAME64


def test_the_mean_over_all_mini_batches_is_the_full_gradient(x64, key):
    objective, params, data = problem(key, regulariser=regulariser)
    noise = objective.sample_noise(key, 5, draws=2)
    full = objective.gradient(params, noise, data)
    index = mini_batches(5, 2)
    gradients = jax.jit(jax.vmap(lambda i: objective.gradient(params, noise[:, i], rows(data, i))))(
        index
    )
    assert max_error(jax.tree.map(lambda g: g.mean(0), gradients), full) < SAME64


def test_the_mean_over_batches_and_draws_is_the_gradient_of_the_objective(x64, key):
    objective, params, data = problem(key, num_data=3, dim=1, regulariser=regulariser)
    eps, weights = nodes(objective.noise, 5)

    def exact(params):
        losses = jax.vmap(
            lambda e: jax.vmap(loss, in_axes=(None, None, 0))(params, e[0], data).sum()
        )(eps)
        return weights @ losses + regulariser(params)

    pairs, pair_weights = nodes(objective.noise, 5, count=2)

    def one_batch(index):
        batch = rows(data, index)
        gradients = jax.vmap(lambda e: objective.gradient(params, e[None], batch))(pairs)
        return expectation(gradients, pair_weights)

    mean = jax.tree.map(lambda g: g.mean(0), jax.jit(jax.vmap(one_batch))(mini_batches(3, 2)))
    assert max_error(mean, jax.jit(jax.grad(exact))(params)) < EXACT


def test_a_batch_larger_than_the_data_set_and_a_batch_of_one_work(x64, key):
    objective, params, batch = problem(key)
    noise = objective.sample_noise(key, 5)
    small = objective._replace(num_data=2)
    ratio = small.value(params, noise, batch) / objective.value(params, noise, batch)
    assert abs(ratio - 2 / 5) < SAME64
    one = objective.per_example_gradients(params, noise[:, :1], rows(batch, slice(0, 1)))
    alone = objective.gradient(params, noise[:, :1], rows(batch, slice(0, 1)))
    assert max_error(jax.tree.map(lambda g: g[0], one), alone) < SAME64


def test_noise_and_batch_may_be_pytrees(key):
    noise = quell.normal({"a": (2,), "b": ()})

    def loss(params, noise, example):
        return params["w"] @ noise["a"] + noise["b"] * example[0].sum() + example[1]

    objective = quell.Objective(loss, noise, num_data=7)
    batch = (jnp.ones((3, 2)), jnp.zeros(3))
    draws = objective.sample_noise(key, 3, draws=2)
    gradient = jax.jit(objective.gradient)({"w": jnp.ones(2)}, draws, batch)
    assert jnp.allclose(gradient["w"], 7 * draws["a"].mean((0, 1)), rtol=1e-5)


@pytest.mark.parametrize("shape", [(5, 2), (1, 4, 2), (1, 5, 3), (1, 5)])
def test_draws_of_the_wrong_shape_are_refused_with_advice(key, shape):
    objective, params, batch = problem(key)
    with pytest.raises(ValueError, match=r"noise: expected .*sample_noise"):
        jax.jit(objective.gradient)(params, jnp.zeros(shape), batch)


def test_ragged_batches_are_refused_with_advice(key):
    objective, params, batch = problem(key)
    batch["y"] = batch["y"][:3]
    with pytest.raises(ValueError, match=r"batch: expected .*one row per example"):
        objective.value(params, jnp.zeros((1, 5, 2)), batch)


def test_unknown_leaves_are_refused_with_advice(key):
    objective, params, batch = problem(key)
    noise = objective.sample_noise(key, 5)
    with pytest.raises(ValueError, match=r"leaves: expected .*mean.*scale.*other"):
        objective.per_example_gradients(params, noise, batch, leaves={"other": True})
    with pytest.raises(ValueError, match=r"leaves: expected at least one"):
        objective.per_example_gradients(params, noise, batch, leaves=lambda path: False)


def vector_problems():
    """Objectives one of whose functions returns a vector, by the name of the function."""
    family, weights = quell.mean_field(2), {"mean": jnp.ones(2), "scale": jnp.ones(2)}

    def scalar(w, y):
        return -0.5 * ((y["x"] - w) ** 2).sum()

    def vector(w, y):
        return -0.5 * (y["x"] - w) ** 2

    noise = quell.normal(2)
    return {
        "loss": quell.Objective(lambda p, e, y: vector(p["mean"] + e, y), noise, 5),
        "regulariser": quell.Objective(
            lambda p, e, y: scalar(p["mean"] + e, y), noise, 5, lambda p: p["mean"] ** 2
        ),
        "log_likelihood": quell.negative_elbo(vector, family, num_data=5),
        "log_prior": quell.negative_elbo(scalar, family, num_data=5, log_prior=lambda w: -(w**2)),
    }, weights


@pytest.mark.parametrize("name", ["loss", "regulariser", "log_likelihood", "log_prior"])
@pytest.mark.parametrize("method", ["value", "gradient", "value_gradient_and_examples"])
def test_anything_but_a_scalar_is_refused_while_tracing(key, name, method):
    problems, params = vector_problems()
    objective, batch = problems[name], {"x": jnp.ones((5, 2))}
    message = (
        rf"^{name}: expected a function that returns a scalar, .*got shape \(2,\)\. .*\.sum\(\)"
    )
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(getattr(objective, method), params, objective.sample_noise(key, 5), batch)


def test_a_complex_loss_is_refused(key):
    objective = quell.Objective(lambda p, e, y: y * (1 + 1j), quell.normal(1), 3)
    with pytest.raises(ValueError, match=r"^loss: .*got dtype complex64\. .*one real number"):
        objective.value(jnp.ones(1), objective.sample_noise(key, 3), jnp.ones(3))


def test_a_pair_from_the_loss_is_refused(key):
    objective = quell.Objective(lambda p, e, y: (y, y), quell.normal(1), 3)
    with pytest.raises(ValueError, match=r"^loss: .*got 2 arrays"):
        objective.value(jnp.ones(1), objective.sample_noise(key, 3), jnp.ones(3))
