"""Coefficients: their start, their learning, networks from other libraries, refusals."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _exact import SAME32, SAME64, max_error
from conformance import evidence_of, paper_network, problem

import quell
from quell import coefficients, contexts, criteria
from quell.criteria import best_multiplier
from quell.types import Sizes

pytestmark = pytest.mark.usefixtures("quick")

ADAM = optax.adam(0.05)


def sizes(basis=2, leaves=(3,)):
    return Sizes(basis=basis, leaves=leaves, dtype=jnp.zeros(()).dtype)


def started(model, key, sizes=sizes(), data=None):  # noqa: B008 — immutable
    """The state of a model at its start."""
    return model.start(key, sizes, None, data)(key)


def steps(key, model, criterion, target, num_steps=300, B=5, context_width=1):
    """Learn from random batches of `target(eps, y)`; the last Ĝ, G̃ and state."""
    noise = quell.normal(1)
    data = jax.random.uniform(key, (200, context_width), minval=-1.0)
    objective = quell.Objective(lambda params, eps, y: y.sum(), noise, num_data=200)
    control = quell.control_variate(key, objective, jnp.ones(2), data, model, criterion=criterion)

    def step(state, key):
        row_key, noise_key = jax.random.split(key)
        y = data[jax.random.randint(row_key, (B,), 0, 200)]
        draws = noise.sample(noise_key, (1, B))
        rows = target(draws[0], y)
        gradient = rows.mean(0)
        controlled, state = control.update(gradient, state, noise=draws, batch=y, per_example=rows)
        return state, (gradient, controlled)

    start = control.init(jnp.ones(2))
    state, (plain, controlled) = jax.jit(
        lambda s: jax.lax.scan(step, s, jax.random.split(key, num_steps))
    )(start)
    return plain, controlled, state


def constant_slope(eps, y):
    return jnp.concatenate([3 * eps + 1, -eps], axis=1)


def unrelated(eps, y):
    """Gradients that look random and do not depend on the size of the draws."""
    hashed = jnp.sin(1e4 * eps) + jnp.sin(1e4 * y[:, :1])
    return jnp.concatenate([hashed, -hashed], axis=1)


def slope_of_context(eps, y):
    return jnp.concatenate([3 * eps * y[:, :1], eps * jnp.abs(y[:, :1]) + 2], axis=1)


def test_the_running_average_is_the_empirical_covariance_over_the_variance(x64, key):
    """With no forgetting, against numpy on the whole history."""
    rng = np.random.default_rng(0)
    w, g = rng.normal(size=(50, 4, 2)), rng.normal(size=(50, 4, 3))
    model = coefficients.running_average(decay=1.0)
    state = started(model, key, sizes())
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
    model = paper_network((16,), ADAM, network=None if network is None else network())
    plain, controlled, state = steps(key, model, criteria.partial_gradients, slope_of_context, 800)
    assert controlled[-200:].var(0).sum() < 0.2 * plain[-200:].var(0).sum()
    assert state.skipped == 0


def test_the_default_network_is_safe_from_the_start_and_learns(key):
    """Zero at first, then gated: never noisier than without it, and quieter in the end."""
    model = coefficients.recognition_network((16,), ADAM)
    plain, controlled, _ = steps(key, model, criteria.partial_gradients, slope_of_context, 800)
    remaining = [
        float(controlled[at : at + 50].var(0).sum() / plain[at : at + 50].var(0).sum())
        for at in range(0, 800, 50)
    ]
    assert max(remaining) < 1.05
    assert max(remaining[-4:]) < 0.2


@pytest.mark.parametrize(
    "column",
    [None, lambda x: 1e6 * (1 + x), lambda x: 1990 + jnp.round(10 * x)],
    ids=["as it is", "millions", "years"],
)
def test_the_default_network_is_never_noisier_than_plain_draws(key, column):
    """At every tenth of a run, whatever the scale of the user's columns."""
    objective, params, data = problem(key, dim=4, num_data=500)
    if column is not None:
        data = {**data, "extra": column(data["x"][:, 0])}
    ratio = quell.variance_ratio(gradients=200)
    fit = quell.fit(
        key,
        objective,
        params,
        data,
        optax.adam(1e-2),
        num_steps=1000,
        batch_size=10,
        estimator=quell.controlled(quell.recognition_network((32, 32), optax.adam(1e-2))),
        hooks=[quell.monitor(ratio=ratio, every=50), quell.silent],
    )
    assert fit.history["ratio"][::50].max() < 1.05


def test_pure_noise_is_not_corrected(key):
    """A gradient that has nothing to do with the draws keeps its variance behind the gate."""
    rash = optax.adam(0.5)
    gated = coefficients.recognition_network((16,), rash)
    wild, gated = (
        steps(key, model, criteria.squared_difference, unrelated, 800)
        for model in (paper_network((16,), rash), gated)
    )
    ratios = [float(c[-400:].var(0).sum() / p[-400:].var(0).sum()) for p, c, _ in (wild, gated)]
    assert ratios[0] > 1.1
    assert ratios[1] < 1.05


def test_the_last_layer_starts_as_xavier_would_for_all_outputs(key):
    """Within ±√(6 / (H + P·D)) and filling it; the trunk's layers likewise, biases zero."""
    shape, data = sizes(basis=7, leaves=(5, 6)), jnp.ones((1, 3))
    weights = started(paper_network((40, 30)), key, shape, data).weights
    assert weights.theta.shape == (7 * 31, 11)
    for values, fan_in, fan_out in [
        (weights.theta, 31, 77),
        (weights.trunk[0].kernel, 3, 40),
        (weights.trunk[1].kernel, 40, 30),
    ]:
        bound = (6 / (fan_in + fan_out)) ** 0.5
        assert 0.9 * bound < jnp.abs(values).max() <= bound
    assert not any(layer.bias.any() for layer in weights.trunk)
    default = started(coefficients.recognition_network((40, 30)), key, shape, data).weights
    assert not default.theta.any()
    assert max_error(default.trunk, weights.trunk) == 0.0


def test_nothing_is_corrected_before_anything_was_seen(key):
    for model in (
        coefficients.context_free(ADAM),
        coefficients.recognition_network((4,), ADAM),
        paper_network((4,), ADAM),
    ):
        plain, controlled, _ = steps(key, model, criteria.gradient_sum, slope_of_context, 1)
        assert max_error(controlled, plain) == 0.0


def test_seeds_differ_and_repeat(key):
    model, data = paper_network((4,)), jnp.ones((1, 3))
    one, two = jax.random.split(key)
    first, same, other = (started(model, k, data=data).weights.theta for k in (one, one, two))
    assert max_error(first, same) == 0.0
    assert max_error(first, other) > 1e-2


@pytest.mark.parametrize("context", [contexts.raw(), contexts.standardised()])
def test_an_example_may_be_a_pytree(key, context):
    model = coefficients.recognition_network((4,), context=context)
    data = {"x": jnp.ones((5, 2)), "label": jnp.arange(5)}
    state = started(model, key, data=data)
    h = model.context_features(state, None, data, 5)
    assert h.shape == (5, 5)
    flat = jnp.concatenate([jnp.arange(5.0)[:, None], jnp.ones((5, 2))], axis=1)
    assert max_error(h, model.context_features(state, None, flat, 5)) < SAME32


def test_the_context_is_the_input_of_the_network(key):
    """The trunk of the standardised example, without the constant 1 of the context map."""
    data = 3 + 2 * jax.random.normal(key, (7, 2))
    trunk = (lambda key, x: (), lambda params, x: x)
    model = coefficients.recognition_network(network=trunk)
    h = model.context_features(started(model, key, data=data), None, data, 7)
    expected = jnp.concatenate([jnp.ones((7, 1)), (data - data.mean(0)) / data.std(0)], axis=1)
    assert max_error(h, expected) < SAME32


def test_fixed_coefficients_take_a_number_or_an_array(key):
    array = jnp.arange(6.0).reshape(2, 3)
    for value in (0.5, array):
        model = coefficients.fixed(value)
        theta = model.predict(started(model, key), jnp.eye(2))
        assert max_error(theta, jnp.broadcast_to(value, (2, 3))) == 0.0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: started(coefficients.fixed(jnp.ones(4)), jax.random.key(0)),
            ["value", "(2, 3)", "(4,)", "Rows"],
        ),
        (lambda: coefficients.running_average(0.0), ["decay", "(0, 1]", "0.0", "0.99"]),
        (lambda: coefficients.running_average(1.5), ["decay", "1.5"]),
        (lambda: coefficients.recognition_network(()), ["hidden", "at least one layer", "()"]),
        (lambda: coefficients.recognition_network((8, 0)), ["hidden", "got 0"]),
        (
            lambda: coefficients.recognition_network(network=3),
            ["network", "pair", "Flax", "Equinox", "int"],
        ),
        (lambda: coefficients.unit_scale(decay=2.0), ["decay", "(0, 1]", "2.0"]),
        (lambda: coefficients.raw_targets(0.0), ["scale", "positive", "0.0"]),
    ],
)
def test_what_cannot_work_is_refused_with_advice(make, words):
    with pytest.raises(ValueError, match=words[0]) as error:
        make()
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("criterion", [criteria.partial_gradients, criteria.squared_difference])
def test_one_gradient_far_off_does_not_inflate_what_is_subtracted_from_the_next(key, criterion):
    model = paper_network((32,), optax.adam(1e-2))
    _, _, state = steps(key, model, criterion, slope_of_context)
    before = state.coefficients
    w, y = jax.random.normal(key, (5, 1)), jnp.linspace(-1.0, 1.0, 5)[:, None]
    far = evidence_of(w, 1e4 * slope_of_context(w, y), batch=y)
    after = model.learn(before, criterion, far)
    phi = (w[:, :, None] * model.context_features(before, None, y, 5)[:, None, :]).reshape(5, -1)
    then, now = model.predict(before, phi), model.predict(after, phi)
    assert jnp.linalg.norm(now - then) < 0.5 * jnp.linalg.norm(then)
    assert max_error(before.weights, after.weights) < 0.02


@pytest.mark.parametrize("criterion", [criteria.partial_gradients, criteria.squared_difference])
@pytest.mark.parametrize("shared", [True, False])
def test_ordinary_gradients_are_learned_from_as_they_are(x64, key, criterion, shared):
    """Also where all examples of a large batch move together."""
    B, P = 400, 3
    targets = coefficients.unit_scale(per_leaf=True, gated=False)
    state = targets.init(sizes())
    for step in range(60):
        z = jax.random.normal(jax.random.fold_in(key, step), (1 if shared else B, P))
        rows = jnp.broadcast_to(7 + z, (B, P))
        evidence = evidence_of(jnp.ones((B, 1)), rows)._replace(shared=shared)
        state, scaled = targets.update(state, criterion, evidence, jnp.zeros(P))
    centre, scale = state.mean / state.weight, targets.scale(state)
    np.testing.assert_allclose(scaled.total * scale + centre, rows.mean(0), rtol=1e-9)
    if criterion.per_example:
        np.testing.assert_allclose(scaled.per_example * scale + centre, rows, rtol=1e-9)


def test_the_network_moves_at_every_finite_batch(key):
    model = paper_network((4,))
    w, y = jax.random.normal(key, (5, 1)), jnp.ones((5, 2))
    state = started(model, key, sizes(basis=1), y)
    evidence = evidence_of(w, jnp.tile(w, 3) + 1, batch=y)
    broken = evidence._replace(total=jnp.full(3, jnp.nan), finite=jnp.array(False))
    moved = []
    learn = jax.jit(
        lambda state, total, finite: model.learn(
            state, criteria.squared_difference, evidence._replace(total=total, finite=finite)
        )
    )
    for batch in (evidence, broken, evidence):
        after = learn(state, batch.total, batch.finite)
        moved.append(bool((after.weights.theta != state.weights.theta).any()))
        state = after
    assert moved == [True, False, True]
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(state))


@pytest.mark.parametrize("criterion", [criteria.partial_gradients, criteria.squared_difference])
def test_raw_targets_are_the_gradients_over_one_number(key, criterion):
    targets = coefficients.raw_targets(4.0)
    rows = jax.random.normal(key, (5, 3))
    state, scaled = targets.update((), criterion, evidence_of(rows[:, :1], rows), jnp.zeros(3))
    assert max_error(scaled.total, rows.mean(0) / 4) < SAME32
    if criterion.per_example:
        assert max_error(scaled.per_example, rows / 4) < SAME32
    else:
        assert scaled.per_example is None
    assert targets.scale(state) == 4.0


def test_the_gate_is_the_best_multiplier_minus_its_error():
    """By hand: slope Σgt / Σt², residual Σg² − slope Σgt, error √(residual / Σt² / n)."""
    g, t = np.array([1.0, 2.0, 2.5, 4.0]), np.array([2.0, 4.0, 6.0, 8.0])
    slope = (g * t).sum() / (t**2).sum()
    error = np.sqrt(((g - slope * t) ** 2).sum() / (t**2).sum() / 4)
    sums = ((g * t).sum(), (t**2).sum(), (g**2).sum())
    assert best_multiplier(*map(jnp.asarray, sums), jnp.asarray(4.0)) == pytest.approx(
        slope - error, rel=1e-4
    )
    for gt, tt, gg, expected in [(0.0, 0.0, 1.0, 0.0), (-1.0, 1.0, 2.0, 0.0), (3.0, 1.0, 9.0, 1.0)]:
        assert best_multiplier(*map(jnp.asarray, (gt, tt, gg, 4.0))) == expected
