"""The transformation: the contraction, odd batches, inside optax."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _exact import SAME32, SAME64, max_error
from conformance import (
    BATCH,
    control_for,
    controlled_gradient,
    paper_network,
    problem,
    take,
    trace_counting_step,
)

import quell
from quell import bases, coefficients, criteria
from quell.contexts import as_matrix

pytestmark = pytest.mark.usefixtures("quick")


def ungated(optimizer):
    """Coefficients that correct from their second batch on, without a gate to be opened first."""
    return coefficients.context_free(optimizer, targets=coefficients.unit_scale(gated=False))


def linear_control(key, objective, params, data):
    return quell.control_variate(key, objective, params, data, ungated(optax.adam(0.1)))


def of_draws(noise, num_data):
    """A problem that is nothing but its noise, for gradients that a test makes up."""
    return quell.Objective(lambda params, eps, y: y[0], noise, num_data), jnp.ones((num_data, 1))


# The correction


def dense_correction(state, w, y):
    """1/|B| Σ_b c_bᵀ w_b as the paper writes it: the network's outputs c `[B, P, D]` formed."""
    weights, targets = state.coefficients.weights, state.coefficients.targets
    h = y
    for layer in weights.trunk:
        h = jax.nn.relu(h @ layer.kernel + layer.bias)
    h = jnp.concatenate([jnp.ones((len(y), 1)), h], axis=1)
    P, D = weights.theta.shape[1], w.shape[1]
    c = jnp.einsum("bh,dhp->bpd", h, weights.theta.reshape(D, -1, P))
    scale = jnp.sqrt(targets.square / targets.weight)
    return jnp.einsum("bpd,bd->p", c, w) / len(y) * scale


def correction_against_dense(key, tolerance):
    objective, params, data = problem(key)
    parts = (bases.polynomial(2), paper_network((5, 4), optax.adam(0.05)))
    control = control_for(key, objective, params, data, *parts, criteria.squared_difference)

    @jax.jit
    def step(params, state, noise, batch):
        return controlled_gradient(objective, control, params, state, noise, batch)

    state = control.init(params)
    for k in jax.random.split(key, 4):
        batch, noise = take(data, slice(0, 3)), objective.sample_noise(k, 3)
        before = state
        gradient, controlled, state = step(params, state, noise, batch)
    w = jnp.concatenate([noise[0], noise[0] ** 2 - 1], axis=1)
    dense = jax.jit(dense_correction)(before, w, as_matrix(batch))
    ours = jnp.concatenate([gradient[leaf] - controlled[leaf] for leaf in ("mean", "scale")])
    size = jnp.abs(jnp.concatenate([gradient["mean"], gradient["scale"]])).max()
    assert max_error(ours / size, dense / size) < tolerance
    assert jnp.abs(dense).max() > 1e-3


def test_the_correction_is_that_of_the_dense_formula(key):
    correction_against_dense(key, SAME32)
    with jax.enable_x64(True):
        correction_against_dense(key, SAME64)


def test_nothing_of_size_batch_times_parameters_times_basis_is_formed(key):
    """No array in the compiled step has as many entries as the coefficients c `[B, P, D]`."""
    B, P, D = 30, 70, 11
    objective = quell.Objective(lambda p, e, y: (p * e.sum()).sum() * y[0], quell.normal(D), B)
    batch, params = jnp.ones((B, 1)), jnp.ones(P)
    network = coefficients.recognition_network((8,))
    control = quell.control_variate(key, objective, params, batch, network)

    def step(state, noise):
        gradient = objective.gradient(params, noise, batch)
        return control.update(gradient, state, params, noise=noise, batch=batch)

    noise = objective.sample_noise(key, B)
    jaxpr = jax.make_jaxpr(step)(control.init(params), noise)
    assert max(largest_arrays(jaxpr.jaxpr)) < B * P * D


def largest_arrays(jaxpr):
    for equation in jaxpr.eqns:
        for variable in equation.outvars:
            yield variable.aval.size
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else [value]:
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from largest_arrays(inner)


# Scale


@pytest.mark.parametrize(
    "model",
    [
        lambda: coefficients.context_free(optax.adam(0.1)),
        lambda: coefficients.recognition_network((4,), optax.adam(0.1)),
        lambda: coefficients.running_average(0.9),
    ],
    ids=["context_free", "recognition_network", "running_average"],
)
def test_leaves_of_any_scale_are_controlled_alike(x64, key, model):
    """Multiplying a leaf's gradient by 10⁴ multiplies its correction by 10⁴: no rate to retune."""
    noise = quell.normal(2)
    objective, batch = of_draws(noise, 3)
    scales = {"a": 1.0, "b": 1e4, "c": 1e-4}
    params = {name: jnp.ones(2) for name in scales}
    control = quell.control_variate(key, objective, params, batch, model())
    state = control.init(params)
    # The same start for each leaf.
    state = jax.tree.map(
        lambda s: jnp.tile(s[..., :2], 3) if s.ndim and s.shape[-1] == 6 else s, state
    )
    update = jax.jit(control.update)
    for k in jax.random.split(key, 20):
        draws = noise.sample(k, (1, 3))
        g = 3 * draws.mean((0, 1)) + 1.0
        gradient = {name: scale * g for name, scale in scales.items()}
        controlled, state = update(gradient, state, params, noise=draws, batch=batch)
    correction = {n: (gradient[n] - controlled[n]) / scales[n] for n in scales}
    assert jnp.abs(correction["a"]).max() > 1e-3
    for name in ("b", "c"):
        assert max_error(correction[name], correction["a"]) < 1e-8


# Odd batches


def test_a_batch_that_is_not_finite_passes_through_and_teaches_nothing(key):
    objective, params, data = problem(key)
    control = linear_control(key, objective, params, data)
    batch, noise = take(data, slice(0, BATCH)), objective.sample_noise(key, BATCH)
    gradient = jax.jit(objective.gradient)(params, noise, batch)
    update = partial(jax.jit(control.update), params=params, noise=noise, batch=batch)
    state = control.init(params)
    for scale in (1.0, 0.5, 2.0):
        _, state = update(optax.tree.scale(scale, gradient), state)
    assert state.skipped == 0
    bad = [
        {**gradient, "mean": gradient["mean"].at[0].set(jnp.nan)},
        {**gradient, "scale": gradient["scale"].at[1].set(jnp.inf)},
        {**gradient, "mean": gradient["mean"].at[1].set(1e30)},  # its square overflows
    ]
    for count, wrong in enumerate(bad, start=1):
        seen, after = update(wrong, state)
        np.testing.assert_array_equal(seen["mean"], wrong["mean"])
        np.testing.assert_array_equal(seen["scale"], wrong["scale"])
        assert max_error(after.coefficients, state.coefficients) == 0.0
        assert after.skipped == count
        state = after
    recovered, _ = update(gradient, state)
    assert max_error(recovered, gradient) > 1e-4


def test_noise_that_is_not_finite_is_not_learned_from(key):
    objective, params, data = problem(key)
    control = linear_control(key, objective, params, data)
    gradient = jax.tree.map(jnp.ones_like, params)
    draws = {"noise": jnp.full((1, BATCH, 2), jnp.nan), "batch": take(data, slice(0, BATCH))}
    seen, state = jax.jit(control.update)(gradient, control.init(params), params, **draws)
    assert max_error(seen, gradient) == 0.0
    assert state.skipped == 1


@pytest.mark.parametrize(("B", "dim", "draws"), [(1, 1, 1), (1, 2, 3), (5, 1, 2)])
@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
def test_small_batches_and_several_draws_work(key, B, dim, draws, shared):
    objective, params, data = problem(key, dim=dim)
    parts = (bases.polynomial(2), paper_network((3,)), criteria.partial_gradients)
    control = control_for(key, objective, params, data, *parts)
    objective = objective._replace(num_data=2)  # N may be below |B|
    step, _ = trace_counting_step(objective, control)
    batch = take(data, slice(0, B))
    noise = objective.sample_noise(key, B, draws=draws, shared=shared)
    state = control.init(params)
    for scale in (1.0, 0.3, 2.0):
        controlled, state = step(params, state, scale * noise, batch)
    assert state.skipped == 0
    assert max_error(controlled, jax.jit(objective.gradient)(params, 2.0 * noise, batch)) > 0


def test_draws_may_be_given_with_fewer_axes(key):
    noise, params = quell.normal(2), jnp.ones(3)
    objective, batch = of_draws(noise, 4)
    control = linear_control(key, objective, params, batch)
    draws = noise.sample(key, (4,))
    update = partial(jax.jit(control.update), batch=batch)
    states = [control.init(params)] * 2
    for g in (params, 3 * params, params):
        one, states[0] = update(g, states[0], params, noise=draws)
        two, states[1] = update(g, states[1], params, noise=draws[None])
    assert max_error(one, two) == 0.0


def test_one_draw_for_a_batch_is_seen_as_shared(key):
    """Given one draw and the gradients of several examples, all criteria learn the same."""
    noise = quell.normal(2)
    objective, batch = of_draws(noise, 5)
    rows = jax.random.normal(key, (5, 3))
    draws = [noise.sample(k, (1, 1)) for k in jax.random.split(key, 4)]
    seen = []
    for criterion in (criteria.partial_gradients, criteria.gradient_sum):
        model = coefficients.running_average()
        control = quell.control_variate(key, objective, rows[0], batch, model, criterion=criterion)
        state, update = control.init(rows[0]), jax.jit(control.update)
        for draw in draws:
            g = rows * draw.sum()
            out, state = update(g.mean(0), state, noise=draw, batch=batch, per_example=g)
        seen.append(out)
    assert max_error(*seen) < SAME32


# Inside optax


def test_a_mask_leaves_the_rest_untouched(key):
    objective, params, data = problem(key)
    batch, noise = take(data, slice(0, BATCH)), objective.sample_noise(key, BATCH)
    gradient = jax.jit(objective.gradient)(params, noise, batch)
    rows = jax.jit(objective.per_example_gradients)(params, noise, batch)
    only = {"mean": True, "scale": False}

    def run(control):
        state, update = control.init(params), jax.jit(control.update)
        extra = {"batch": batch, "per_example": rows}
        for k in range(3):
            seen, state = update(gradient, state, params, noise=(k + 1.0) * noise, **extra)
        return seen

    def make(leaves=None, params=params):
        return quell.control_variate(
            key,
            objective,
            params,
            data,
            coefficients.running_average(0.9),
            criterion=criteria.partial_gradients,
            leaves=leaves,
        )

    by_predicate = run(make(lambda path: path == "mean"))
    assert max_error(by_predicate["scale"], gradient["scale"]) == 0.0
    assert max_error(by_predicate["mean"], gradient["mean"]) > 1e-3
    assert max_error(run(make(only)), by_predicate) == 0.0
    alone = make(params={"mean": params["mean"]})
    assert max_error(run(optax.masked(alone, only)), by_predicate) == 0.0


def test_a_chain_in_a_compiled_loop_is_the_steps_one_by_one(key):
    objective, params, data = problem(key)
    control = linear_control(key, objective, params, data)
    optimizer = optax.chain(control, optax.adam(1e-2))
    batch = take(data, slice(0, BATCH))

    def step(carry, key):
        params, state = carry
        noise = objective.sample_noise(key, BATCH)
        gradient = objective.gradient(params, noise, batch)
        updates, state = optimizer.update(gradient, state, params, noise=noise, batch=batch)
        return (optax.apply_updates(params, updates), state), None

    keys = jax.random.split(key, 5)
    start = (params, optimizer.init(params))
    looped, _ = jax.jit(lambda start: jax.lax.scan(step, start, keys))(start)
    single, carry = jax.jit(step), start
    for k in keys:
        carry, _ = single(carry, k)
    assert max_error(looped, carry) < SAME32


def test_hyperparameters_may_be_injected(key):
    noise, params = quell.normal(2), jnp.ones(3)
    objective, batch = of_draws(noise, 4)
    inner = optax.inject_hyperparams(optax.adam)(learning_rate=0.1)
    static = ("key", "params", "data", "leaves", "order")
    outer = optax.inject_hyperparams(quell.control_variate, static_args=static)(
        key, objective, params, batch, ungated(inner)
    )
    plain = linear_control(key, objective, params, batch)
    draws = {"noise": noise.sample(key, (1, 4)), "batch": batch}
    states, updates = [outer.init(params), plain.init(params)], [outer.update, plain.update]
    for g in (params, 2 * params, 3 * params):
        seen = []
        for i in range(2):
            out, states[i] = jax.jit(updates[i])(g, states[i], params, **draws)
            seen.append(out)
    assert max_error(seen[0], seen[1]) < SAME32
    learning_rate = states[0].inner_state.coefficients.optimizer.hyperparams["learning_rate"]
    assert jnp.allclose(learning_rate, 0.1)
