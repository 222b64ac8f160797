"""Coefficient models: what they learn, how they start, networks from other libraries, refusals."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _exact import SAME32, SAME64, max_error
from conformance import evidence_of

import quell
from quell import bases, coefficients, criteria
from quell.coefficients import Sizes, _adam, _steps, _targets
from quell.coefficients._network import multilayer

pytestmark = pytest.mark.usefixtures("quick")

ADAM = optax.adam(0.05)


def sizes(basis=2, leaves=(3,), context=None):
    return Sizes(basis=basis, leaves=leaves, context=context, dtype=jnp.float32)


def steps(key, model, criterion, target, num_steps=300, B=5, context_width=1):
    """Learn from random batches of `target(eps, y)`; the last Ĝ, G̃ and state."""
    noise = quell.normal(1)
    spec = jax.ShapeDtypeStruct((1, context_width), float)
    control = quell.control_variate(
        bases.linear(), model, criterion, noise=noise, context=spec, key=key
    )

    def step(state, key):
        y_key, noise_key = jax.random.split(key)
        y = jax.random.uniform(y_key, (B, context_width), minval=-1.0)
        draws = noise.sample(noise_key, (1, B))
        rows = target(draws[0], y)
        gradient = rows.mean(0)
        controlled, state = control.update(
            gradient, state, noise=draws, context=y, per_example=rows
        )
        return state, (gradient, controlled)

    start = control.init(jnp.ones(2))
    state, (plain, controlled) = jax.jit(
        lambda s: jax.lax.scan(step, s, jax.random.split(key, num_steps))
    )(start)
    return plain, controlled, state


def constant_slope(eps, y):
    return jnp.concatenate([3 * eps + 1, -eps], axis=1)


def slope_of_context(eps, y):
    return jnp.concatenate([3 * eps * y[:, :1], eps * jnp.abs(y[:, :1]) + 2], axis=1)


def test_the_running_average_is_the_empirical_covariance_over_the_variance(x64, key):
    """With no forgetting, against numpy on the whole history."""
    rng = np.random.default_rng(0)
    w, g = rng.normal(size=(50, 4, 2)), rng.normal(size=(50, 4, 3))
    model = coefficients.running_average(decay=1.0)
    state = model.init(None, Sizes(basis=2, leaves=(3,), context=None, dtype=jnp.float64))
    learn = jax.jit(lambda s, w, g: model.learn(s, criteria.partial_gradients, evidence_of(w, g)))
    for step in range(50):
        state = learn(state, w[step], g[step])
    means = np.cumsum(g.mean(1), axis=0) / np.arange(1, 51)[:, None]
    covariance = np.einsum("tbd,tbp->dp", w, g - means[:, None]) / 4
    expected = covariance / (w**2).sum((0, 1))[:, None] * 4
    assert max_error(model.predict(state, jnp.eye(2)), expected) < SAME64


@pytest.mark.parametrize("criterion", ["partial_gradients", "gradient_sum", "squared_difference"])
@pytest.mark.parametrize(
    "model",
    [coefficients.context_free(ADAM), coefficients.running_average(0.99)],
    ids=["context_free", "running_average"],
)
def test_context_free_models_learn_a_constant_slope(key, model, criterion):
    plain, controlled, _ = steps(key, model, getattr(criteria, criterion), constant_slope, 600)
    assert controlled[-200:].var(0).sum() < 0.2 * plain[-200:].var(0).sum()


def flax_trunk():
    class Trunk(nn.Module):
        @nn.compact
        def __call__(self, y):
            return nn.relu(nn.Dense(16)(y))

    return Trunk()


def equinox_trunk():
    return eqx.nn.MLP(1, 16, 16, 1, final_activation=jax.nn.relu, key=jax.random.key(0))


def pair():
    def init(key, y):
        return jax.random.normal(key, (y.shape[1], 16))

    return init, lambda w, y: jnp.sin(y @ w)


@pytest.mark.parametrize(
    "network", [None, flax_trunk, equinox_trunk, pair], ids=["own", "flax", "equinox", "pair"]
)
def test_networks_learn_a_slope_that_depends_on_the_context(key, network):
    model = coefficients.recognition_network(
        (16,), ADAM, network=None if network is None else network()
    )
    plain, controlled, state = steps(key, model, criteria.partial_gradients, slope_of_context, 800)
    assert controlled[-200:].var(0).sum() < 0.2 * plain[-200:].var(0).sum()
    assert state.skipped == 0


def test_the_last_layer_starts_as_xavier_would_for_all_outputs(key):
    """Within ±√(6 / (H + P·D)) and filling it; the trunk's layers likewise, biases zero."""
    model = coefficients.recognition_network((40, 30))
    weights = model.init(key, sizes(basis=7, leaves=(5, 6), context=jnp.ones((1, 3)))).weights
    assert weights.theta.shape == (11, 7 * 31)
    for values, fan_in, fan_out in [
        (weights.theta, 31, 77),
        (weights.trunk[0][:-1], 3, 40),
        (weights.trunk[1][:-1], 40, 30),
    ]:
        bound = (6 / (fan_in + fan_out)) ** 0.5
        assert 0.9 * bound < jnp.abs(values).max() <= bound
    assert not any(layer[-1].any() for layer in weights.trunk)


def test_nothing_is_corrected_before_anything_was_seen(key):
    for model in (coefficients.context_free(ADAM), coefficients.recognition_network((4,), ADAM)):
        plain, controlled, _ = steps(key, model, criteria.gradient_sum, slope_of_context, 1)
        assert max_error(controlled, plain) == 0.0


def test_seeds_differ_and_repeat(key):
    model, context = coefficients.recognition_network((4,)), jnp.ones((1, 3))
    one, two = jax.random.split(key)
    first = model.init(one, sizes(context=context)).weights.theta
    assert max_error(first, model.init(one, sizes(context=context)).weights.theta) == 0.0
    assert max_error(first, model.init(two, sizes(context=context)).weights.theta) > 1e-2


def test_a_context_may_be_a_pytree(key):
    model = coefficients.recognition_network((4,))
    context = {"x": jnp.ones((5, 2)), "label": jnp.arange(5)}
    state = model.init(key, sizes(context=context))
    h = model.context_features(state, context, 5)
    assert h.shape == (5, 5)
    flat = jnp.concatenate([jnp.arange(5.0)[:, None], jnp.ones((5, 2))], axis=1)
    assert max_error(h, model.context_features(state, flat, 5)) < SAME32


def test_fixed_coefficients_take_a_number_or_an_array():
    array = jnp.arange(6.0).reshape(2, 3)
    for value in (0.5, array):
        model = coefficients.fixed(value)
        theta = model.predict(model.init(None, sizes()), jnp.eye(2))
        assert max_error(theta, jnp.broadcast_to(value, (2, 3))) == 0.0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: coefficients.fixed(jnp.ones(4)).init(None, sizes()),
            ["value", "(2, 3)", "(4,)", "Rows"],
        ),
        (lambda: coefficients.running_average(0.0), ["decay", "(0, 1]", "0.0", "0.99"]),
        (lambda: coefficients.running_average(1.5), ["decay", "1.5"]),
        (lambda: coefficients.recognition_network(()), ["hidden", "at least one layer", "()"]),
        (lambda: coefficients.recognition_network((8, 0)), ["hidden", "(8, 0)"]),
        (
            lambda: coefficients.recognition_network(network=3),
            ["network", "pair", "Flax", "Equinox", "int"],
        ),
        (
            lambda: coefficients.recognition_network((3,)).init(jax.random.key(0), sizes()),
            ["context", "None", "context_free"],
        ),
    ],
)
def test_what_cannot_work_is_refused_with_advice(make, words):
    with pytest.raises(ValueError, match=words[0]) as error:
        make()
    for word in words:
        assert word in str(error.value)


def test_its_adam_takes_the_steps_of_adam(x64, key):
    ours, theirs = _adam.adam(1e-2), optax.adam(1e-2)
    params = {"a": jax.random.normal(key, (3, 2)), "b": jnp.ones(4)}
    states = ours.init(params), theirs.init(params)
    for i in range(5):
        gradient = jax.tree.map(lambda p, i=i: p * jnp.cos(7.0 * i) + 0.1, params)
        mine, first = ours.update(gradient, states[0], params)
        expected, second = theirs.update(gradient, states[1], params)
        states = first, second
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9), mine, expected)


@pytest.mark.parametrize("criterion", [criteria.partial_gradients, criteria.squared_difference])
def test_one_gradient_far_off_does_not_inflate_what_is_subtracted_from_the_next(key, criterion):
    model = coefficients.recognition_network((32,), optax.adam(1e-2))
    _, _, state = steps(key, model, criterion, slope_of_context)
    before = state.coefficients
    w, y = jax.random.normal(key, (5, 1)), jnp.linspace(-1.0, 1.0, 5)[:, None]
    far = evidence_of(w, 1e4 * slope_of_context(w, y))._replace(context=y)
    after = model.learn(before, criterion, far)
    phi = (w[:, :, None] * model.context_features(before, y, 5)[:, None, :]).reshape(5, -1)
    then, now = model.predict(before, phi), model.predict(after, phi)
    assert jnp.linalg.norm(now - then) < 0.5 * jnp.linalg.norm(then)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=0.02), before[0], after[0])


@pytest.mark.parametrize("criterion", [criteria.partial_gradients, criteria.squared_difference])
@pytest.mark.parametrize("shared", [True, False])
def test_ordinary_gradients_are_learned_from_as_they_are(x64, key, criterion, shared):
    """Also where all examples of a large batch move together."""
    B, P = 400, 3
    state = _targets.init(P, jnp.float64)
    for step in range(60):
        z = jax.random.normal(jax.random.fold_in(key, step), (1 if shared else B, P))
        rows = jnp.broadcast_to(7 + z, (B, P))
        evidence = evidence_of(jnp.ones((B, 1)), rows)._replace(shared=shared)
        state, scaled = _targets.update(state, criterion, evidence, 0.99)
    centre, scale = state.mean / state.weight, _targets.scale(state)
    np.testing.assert_allclose(scaled.total * scale + centre, rows.mean(0), rtol=1e-9)
    if criterion.per_example:
        np.testing.assert_allclose(scaled.rows * scale + centre, rows, rtol=1e-9)


@pytest.mark.parametrize("every", [1, 3])
def test_steps_are_on_the_mean_gradient_of_so_many_batches(x64, key, every):
    gradients = 1 + jax.random.normal(key, (4, every, 5))
    move = _steps.steps(ADAM, every)

    def ours(carried, gradient):
        weights, state = move.take(_steps.Weights((), gradient), *carried[::-1], None)
        return (weights, state), weights.theta

    def theirs(carried, gradient):
        weights, state = carried
        updates, state = ADAM.update(gradient, state)
        weights = optax.apply_updates(weights, updates)
        return (weights, state), weights

    zeros = jnp.zeros(5)
    weights = _steps.Weights((), zeros)
    _, path = jax.lax.scan(ours, (weights, move.init(weights, None)), gradients.reshape(-1, 5))
    _, steps = jax.lax.scan(theirs, (zeros, ADAM.init(zeros)), gradients.mean(1))
    before = jnp.concatenate([zeros[None], steps[:-1]])
    assert max_error(path[every - 1 :: every], steps) < SAME64
    assert max_error(path[::every], steps if every == 1 else before) < SAME64


def test_the_network_moves_after_as_many_finite_batches_as_it_is_told(key):
    model = coefficients.recognition_network((4,), every=3)
    state = model.init(key, sizes(basis=1, context=jax.ShapeDtypeStruct((1, 2), float)))
    w, y = jax.random.normal(key, (5, 1)), jnp.ones((5, 2))
    evidence = evidence_of(w, jnp.tile(w, 3) + 1)._replace(context=y)
    broken = evidence._replace(total=jnp.full(3, jnp.nan), finite=jnp.array(False))
    moved = []
    learn = jax.jit(
        lambda state, total, finite: model.learn(
            state, criteria.squared_difference, evidence._replace(total=total, finite=finite)
        )
    )
    for batch in (evidence, broken, evidence, evidence, evidence):
        after = learn(state, batch.total, batch.finite)
        moved.append(bool((after.weights.theta != state.weights.theta).any()))
        state = after
    assert moved == [False, False, False, True, False]
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(state))


@pytest.mark.parametrize(
    ("criterion", "apart"),
    [
        (criteria.squared_difference, "large"),
        (criteria.gradient_sum, "shared"),
        (criteria.partial_gradients, "few rows"),
    ],
)
def test_batches_that_wait_move_the_network_as_those_that_do_not(x64, key, criterion, apart):
    """Alike or not, small before large or after, and beside some that cannot wait."""
    own = multilayer((6, 4))
    kind = {"optimizer": ADAM, "every": 3}
    waiting = coefficients.recognition_network((6, 4), **kind)
    at_once = coefficients.recognition_network(network=(own.init, own.apply), **kind)
    context = jax.ShapeDtypeStruct((1, 2), float)
    shape = Sizes(2, (3,), context, jnp.float64, criterion.per_example)
    states = waiting.init(key, shape), at_once.init(key, shape)
    assert states[1].optimizer.waiting is None

    def learner(model):
        def learn(state, w, rows, y, shared, R):
            seen = evidence_of(w, rows)._replace(context=y, shared=shared)
            return model.learn(state, criterion, seen._replace(rows=rows[:R]))

        return jax.jit(learn, static_argnums=(4, 5))

    learn = learner(waiting), learner(at_once)
    start, numbers, other = states[0].weights, [], 90 if apart == "large" else 7
    batches = 5, 5, 5, 3, 5, 5, 5, 3, 3, 0, 5, 5, 5, 3, 0, 0, 0, 0, 5, 5, 5
    for step, size in enumerate(batches):
        B = size or other
        w, g, y = jax.random.normal(jax.random.fold_in(key, step), (3, B, 3))
        shared, R = not size and apart == "shared", 4 if not size and apart == "few rows" else B
        seen = w[:, :2], g + w, y[:, :2], shared, R
        states = [f(state, *seen) for f, state in zip(learn, states)]
        numbers.append(int(states[0].optimizer.waiting.number))
    assert numbers == [1, 2, 0] * 3 + [0, 1, 0] + [1, 2, 0] + [0, 0, 0] + [1, 2, 0]
    assert max_error(states[0].weights, start) > 0.1
    assert max_error(states[0].weights, states[1].weights) < SAME64


def test_gradients_of_examples_wait_where_there_is_room_for_them(key):
    model = coefficients.recognition_network((4,))

    def waiting(P, per_example):
        context = jax.ShapeDtypeStruct((1, 2), float)
        shape = Sizes(1, (P,), context, jnp.float32, per_example)
        return jax.eval_shape(lambda k: model.init(k, shape), key).optimizer.waiting

    assert waiting(100, True).rows.shape == (8, 32, 100)
    assert waiting(10**6, True) is None
    assert waiting(10**6, False).rows is None


@pytest.mark.parametrize("every", [0, 1.5])
def test_a_network_refuses_what_is_not_a_number_of_batches(every):
    with pytest.raises(ValueError, match="every"):
        coefficients.recognition_network(every=every)
