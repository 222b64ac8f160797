"""The closed form: its regression against numpy, both noises unbiased, never noisier, choices."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _exact import EXACT, SAME32, max_error, mini_batches, nodes, total_variance
from conformance import problem
from estimator_table import Replayed

import quell
from quell import bases, estimators
from quell import noise as noises
from quell._jit import quick_jit
from quell.contexts import columns, computed, raw, standardised
from quell.estimators._closed_form import affordable_basis, multiplier
from quell.estimators._regression import regressed
from quell.estimators._snapshot import plan, smallest, telling_leaves
from quell.estimators._types import batch_of
from quell.training.loop import compiled_loop, next_visit, run_keys

PAIRS = estimators.antithetic().sampling


def every_leaf(path):
    return True


def test_the_regression_is_numpys_with_an_intercept(x64):
    """Where the gates are one, Θ is the least-squares solution."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 5)) * [1, 10, 0.1, 3, 1] + [0, 100, 0, 0, -7]
    g = x @ rng.normal(size=(5, 3)) + 4.0
    theta, square = regressed(jnp.asarray(x), jnp.asarray(g))
    expected = np.linalg.lstsq(np.c_[x, np.ones(400)], g, rcond=None)[0][:-1]
    np.testing.assert_allclose(theta, expected, rtol=2e-3, atol=5e-3)  # a ridge of 1e-4
    np.testing.assert_allclose(square, g.var(0), rtol=2e-3)


def test_the_gates_are_those_of_regressions_that_left_each_row_out(x64):
    rng = np.random.default_rng(1)
    x, e = rng.normal(size=(60, 8)), rng.normal(size=(60, 2))
    g = e + [1.0, 0.0] * x[:, :1]  # the first parameter can be predicted, the second cannot
    theta, _ = regressed(jnp.asarray(x), jnp.asarray(g))
    z = (x - x.mean(0)) / x.std(0)
    A = z.T @ z + 1e-4 * 60 * np.eye(8)
    plain = np.linalg.solve(A, z.T @ (g - g.mean(0))) / x.std(0)[:, None]
    predicted = []
    for i in range(60):
        rows = np.arange(60) != i
        zi, gi = z[rows] - z[rows].mean(0), g[rows] - g[rows].mean(0)
        solved = np.linalg.solve(zi.T @ zi + 1e-4 * 60 * np.eye(8), zi.T @ gi)
        predicted.append((z[i] - z[rows].mean(0)) @ solved + g[rows].mean(0) - g.mean(0))
    t, d = np.array(predicted), g - g.mean(0)
    slope = (t * d).sum(0) / (t**2).sum(0)
    error = np.sqrt(((d**2).sum(0) - slope * (t * d).sum(0)) / (t**2).sum(0) / 60)
    gate = np.clip(slope - 2 * error, 0, 1)
    np.testing.assert_allclose(theta, plain * gate, rtol=1e-6, atol=1e-9)
    assert gate[0] > 0.2 > gate[1]


def test_features_that_are_constant_or_not_finite_explain_nothing(key):
    x = jax.random.normal(key, (50, 3)).at[:, 1].set(1e6).at[3, 2].set(jnp.nan)
    theta, square = regressed(x, 2 * x[:, :1])
    assert float(theta[0, 0]) == pytest.approx(2, rel=1e-2)
    assert theta[1:].tolist() == [[0.0], [0.0]]
    assert np.isfinite(square).all()


@pytest.fixture(scope="module")
def regression():
    """A linear regression with noise in its weights: both noises are there to remove."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(200, 2)), jnp.float32)
    data = {"x": x, "y": x @ jnp.array([1.0, -2.0])}

    def loss(params, noise, example):
        w = params["mean"] + jnp.exp(params["scale"]) * noise
        return 0.5 * (w @ example["x"] - example["y"]) ** 2

    params = {"mean": jnp.zeros(2), "scale": jnp.full(2, -1.0)}
    return quell.Objective(loss, quell.normal(2), 200), params, data


def measured(objective, data, started, number=400, B=5):
    """`gradients(key, params, state)` at fixed parameters and a fixed state, `[number, ...]`."""

    @jax.jit
    def gradients(key, params, state):
        def one(key):
            row_key, noise_key = jax.random.split(key)
            batch = batch_of(data, jax.random.randint(row_key, (B,), 0, objective.num_data))
            return started.estimate(noise_key, objective, params, batch, state).gradient

        return jax.vmap(one)(jax.random.split(key, number))

    return gradients


def frozen(key, objective, params, data, estimator, state=None, **settings):
    """Gradients of an estimator at fixed parameters, in its first state or in a given one."""
    started = estimator.start(key, objective, params, data)
    state = started.init(key, params) if state is None else state
    return measured(objective, data, started, **settings)(key, params, state)


def refreshed(key, objective, params, data, estimator, B=5):
    started = estimator.start(key, objective, params, data)
    state = started.init(key, params)
    return jax.jit(lambda s: started.refresh.run(key, objective, params, data, B, s))(state)


def test_one_refresh_removes_nearly_everything(key, regression):
    ours = quell.closed_form()
    state = refreshed(key, *regression, ours)
    left = total_variance(frozen(key, *regression, ours, state))
    pairs = total_variance(frozen(key, *regression, quell.antithetic()))
    assert left < 0.02 * pairs


def test_before_the_first_refresh_it_is_its_sampling(key, regression):
    ours = quell.closed_form()
    started = ours.start(key, *regression)
    state = started.init(key, regression[1])
    plain = frozen(key, *regression, quell.antithetic(), number=8)
    assert max_error(frozen(key, *regression, ours, state, number=8), plain) < SAME32


@pytest.mark.parametrize("kept", [True, False], ids=["a table", "features anew"])
@pytest.mark.parametrize("sampling", ["one draw", "a pair"])
def test_both_noises_are_unbiased_over_all_batches_and_draws(x64, key, sampling, kept, monkeypatch):
    """At parameters away from the snapshot, with coefficients and multipliers at random."""
    if not kept:
        monkeypatch.setattr("quell.estimators._snapshot._TABLE", 0)
    objective, params, data = problem(key, dim=1, num_data=4)
    basis = bases.linear() if sampling == "one draw" else bases.hermite(2, odd=False)
    replayed = Replayed()
    ours = quell.closed_form(sampling=replayed.estimator, basis=basis, leaves=every_leaf)
    state = refreshed(key, objective, params, data, ours, 2)
    theta = jax.random.normal(key, state.snapshot.theta.shape)
    evidence = state.evidence._replace(gt=0.3 * jnp.ones(2), tt=jnp.ones(2))
    state = state._replace(snapshot=state.snapshot._replace(theta=theta), evidence=evidence)
    assert (state.snapshot.table.size > 0) == kept
    here = jax.tree.map(lambda p: p + 0.5, params)
    started = ours.start(key, objective, params, data)
    eps, weights = nodes(objective.noise, 5, count=2)
    draws = eps[:, None] if sampling == "one draw" else jnp.stack([eps, -eps], 1)

    def gradients(noise, rows):
        replayed.noise = noise
        batch = batch_of(data, rows)
        quieter = started.estimate(key, objective, here, batch, state).gradient
        return quieter, objective.gradient(here, noise, batch.examples)

    @quick_jit
    def everything():
        found = jax.vmap(lambda e: jax.vmap(lambda rows: gradients(e, rows))(BATCHES))(draws)
        return jax.tree.map(lambda leaf: jnp.tensordot(weights, leaf, 1), found)

    quieter, plain = everything()
    for a, b in zip(jax.tree.leaves(quieter), jax.tree.leaves(plain)):
        np.testing.assert_allclose(a.mean(0), b.mean(0), atol=EXACT)
        assert np.abs(a - b).max() > 1e-2, "single batches are moved"


BATCHES = mini_batches(4, 2)


def test_useless_features_are_gated(key, regression):
    """A context that says nothing, and no leaf to tell the examples apart."""
    objective, params, data = regression
    silent = objective._replace(  # noise of the points that the gradient at ε = 0 does not show
        loss=lambda p, e, y: jnp.sin(1e4 * y["x"][0]) * p["mean"] @ e + 0 * p["scale"].sum()
    )
    ours = quell.closed_form(sampling=quell.monte_carlo(), basis=bases.no_basis())
    state = refreshed(key, silent, params, data, ours)
    left = frozen(key, silent, params, data, ours, state, number=2000)
    plain = frozen(key, silent, params, data, quell.monte_carlo(), number=2000)
    assert total_variance(left) < 1.02 * total_variance(plain)


def remaining(key, regression, where, marks, B=5):
    """The noise left of pairs' at the marked steps, along given means `[T, 2]`, with refreshes."""
    objective, params, data = regression

    def follow(updates, state, params=None):
        new = where[jnp.minimum(state + 1, len(where) - 1)]
        return {"mean": new - params["mean"], "scale": jnp.zeros(2)}, state + 1

    optimizer = optax.GradientTransformation(lambda params: jnp.zeros((), int), follow)
    started = quell.closed_form().start(key, objective, params, data)
    pairs = quell.antithetic().start(key, objective, params, data)
    settings = {"batch_size": B, "length": 256}
    loop = compiled_loop(started, objective, optimizer, quell.with_replacement, **settings)
    keys = run_keys(key)
    carried = loop.start(keys, params | {"mean": where[0]})
    ours, theirs = (measured(objective, data, each) for each in (started, pairs))
    step, found = 0, []
    for mark in marks:
        while step < mark:
            carried = loop.refresh(keys, carried, data, step)
            steps = min(mark, loop.next_visit(step)) - step
            carried, _ = loop.advance(keys, carried, data, step, steps)
            step += steps
        left = total_variance(ours(key, carried.params, carried.estimator_state))
        found.append(left / total_variance(theirs(key, carried.params, ())))
    return found


def test_it_is_not_noisier_than_its_pairs_while_the_parameters_race_away(key, regression):
    """A twentieth of a posterior standard deviation in each step, past the optimum and on."""
    where = 0.02 * jnp.arange(60)[:, None] * jnp.array([1.0, -1.0])
    found = remaining(key, regression, where, (1, 5, 9, 20, 31, 40, 59))
    assert max(found) < 1.05, found


def test_it_recovers_when_the_parameters_jump(key, regression):
    where = jnp.where(jnp.arange(700) < 330, 0.0, 5.0)[:, None] * jnp.ones(2)
    before, jumped, after = remaining(key, regression, where, (329, 350, 600))
    assert before < 0.04
    assert jumped < 1.05
    assert after < 0.04, "the first visit that can be paid for refreshes what no longer predicts"


def test_a_batch_that_is_not_finite_teaches_nothing(key, regression):
    objective, params, data = regression
    ours = quell.closed_form()
    state = refreshed(key, objective, params, data, ours)
    started = ours.start(key, objective, params, data)
    broken = batch_of({**data, "y": data["y"].at[0].set(jnp.nan)}, jnp.arange(5))
    found = jax.jit(lambda s: started.estimate(key, objective, params, broken, s))(state)
    jax.tree.map(np.testing.assert_array_equal, found.state.evidence, state.evidence)
    assert found.correction_norm == 0


def test_the_multiplier_follows_the_evidence_and_never_amplifies(key, regression):
    evidence = refreshed(key, *regression, quell.closed_form()).evidence
    size = len(evidence.gt)
    made = evidence._replace(
        gt=jnp.array([2.0, -1.0, 0.5, 0.0][:size]), tt=jnp.array([1.0, 1.0, 1.0, 0.0][:size])
    )
    assert multiplier(made).tolist() == [1.0, 0.0, 0.5, 0.0]


def test_categories_are_told_apart_by_their_dtype():
    """Levels that are no magnitudes: an indicator each predicts what one number cannot."""
    codes = np.arange(60) % 5
    numbers = columns({"c": jnp.asarray(codes, jnp.float32)})
    indicators = columns({"c": jnp.asarray(codes), "b": jnp.asarray(codes > 2)})
    assert (numbers.width, indicators.width) == (1, 4 + 1)
    h = np.asarray(indicators.apply({"c": jnp.asarray(codes), "b": jnp.asarray(codes > 2)}))
    np.testing.assert_allclose(h.mean(0), 0, atol=1e-6)
    assert np.linalg.matrix_rank(np.c_[np.ones(60), h]) == 5


def test_many_levels_are_bounded_and_images_are_magnitudes():
    many = columns({"c": jnp.arange(1000)})
    assert many.width == 64
    image = columns({"x": jnp.asarray(np.random.default_rng(0).integers(0, 256, (50, 64)))})
    assert image.width == 64


def test_the_leaves_that_tell_examples_apart_are_differentiated(key, regression):
    objective, params, data = regression
    assert telling_leaves(objective, params, data, jnp.zeros(2)) == {"mean": True, "scale": False}
    assert smallest({"a": jnp.zeros(5), "b": jnp.zeros(3)}, 4) == {"a": False, "b": True}


def test_fit_says_where_there_is_nothing_to_learn_from(key):
    data = {"x": jnp.asarray(np.random.default_rng(0).normal(size=(50, 400)), jnp.float32)}

    def loss(params, noise, example):  # one leaf, too large to control, and a context too wide
        return (((params + noise) - example["x"]) ** 2).sum()

    objective = quell.Objective(loss, quell.normal(400), 50)
    given = (objective, jnp.zeros(400), data, optax.adam(0.01))
    with pytest.warns(RuntimeWarning, match=r"fit: closed_form\(\) finds nothing to learn") as seen:
        quell.fit(
            key, *given, num_steps=2, batch_size=5, estimator=quell.closed_form(),
            hooks=[quell.silent],
        )  # fmt: skip
    assert seen[0].filename == __file__


@pytest.mark.parametrize("make", [raw, standardised, lambda: computed(lambda params, y: y)])
def test_every_context_map_starts_with_one(key, make):
    y = jnp.asarray(np.random.default_rng(0).integers(0, 3, size=(40, 2)), jnp.float32)
    context = make()
    fitted = context.fit(key, y)
    h = jax.jit(lambda y: context.apply(fitted, {}, y))(y)
    assert h.shape[0] == 40
    np.testing.assert_array_equal(h[:, 0], 1.0)


def test_shapes_alone_are_refused_where_a_map_is_fitted(key):
    shapes = jax.ShapeDtypeStruct((10, 2), jnp.float32)
    with pytest.raises(ValueError, match=r"data: .*shapes alone"):
        standardised().fit(key, shapes)


def test_the_basis_is_affordable_and_not_cancelled_by_the_sampling():
    one = estimators.monte_carlo().sampling
    exponential = noises.from_moments(3, jax.random.exponential, [1.0, 2.0])
    cases = {
        "pairs": (quell.normal(4), PAIRS, 5),
        "many": (quell.normal(50), PAIRS, 5),
        "wide context": (quell.normal(4), PAIRS, 64),
        "single": (quell.normal(4), one, 5),
        "no mirror": (exponential, one, 5),
    }
    size = {
        name: affordable_basis(noise, *of).apply(noise, jnp.ones(noise.size), {}, None).size
        for name, (noise, *of) in cases.items()
    }
    assert size == {"pairs": 10, "many": 0, "wide context": 0, "single": 4, "no mirror": 3}


def test_rows_beyond_those_of_the_regression_are_clipped_and_their_mean_is_exact(key):
    """One row of 4,000 is a thousand times larger: the regression has not seen it."""
    x = jax.random.normal(key, (4000, 2)).at[17].multiply(1000.0)
    objective = quell.Objective(
        lambda p, e, y: 0.5 * ((p["mean"] + 0.1 * e) @ y["x"] - y["x"][0]) ** 2,
        quell.normal(2),
        4000,
    )
    params = {"mean": jnp.zeros(2)}
    found = refreshed(key, objective, params, {"x": x}, quell.closed_form()).snapshot
    inside = jnp.delete(found.table, 17, 0)
    assert float(jnp.abs(found.table[17]).max()) < 2 * float(jnp.abs(inside).max())
    np.testing.assert_allclose(found.mean, found.table.mean(0), atol=1e-4)


def test_a_layer_below_zeros_is_differentiated_too():
    """At the start the last layer is zero, and no gradient reaches the layer below."""

    def loss(params, noise, example):
        return (example["y"] - params["last"] @ jnp.tanh(params["first"] * example["x"])) ** 2

    x = jnp.linspace(-1, 1, 300)
    data = {"x": jnp.stack([x, x**2], 1), "y": x}
    params = {"first": jnp.ones(2), "last": jnp.zeros(2)}
    found = telling_leaves(quell.Objective(loss, quell.normal(1), 300), params, data, jnp.zeros(1))
    assert found == {"first": True, "last": True}


@pytest.mark.parametrize("batch_size", [5, 20])
def test_refreshes_grow_rarer_and_are_paid_for(key, regression, batch_size):
    """The steps before which a run of 300 epochs is refreshed, and the price of all refreshes."""
    objective, params, data = regression
    N, sampling = objective.num_data, estimators.antithetic().sampling
    basis = affordable_basis(objective.noise, sampling, 3)
    laid = plan(objective, params, data, sampling, basis, None, None)
    price = laid.evaluations / (2 * batch_size + 64)  # in steps of two draws
    started = quell.closed_form().start(key, objective, params, data)
    due = jax.jit(started.refresh.due, static_argnums=1)
    state, found, step = started.init(key, params), [], 0
    while step < 300 * N // batch_size:
        if bool(due(state._replace(step=jnp.asarray(step)), batch_size)):
            found.append(step)
            state = state._replace(refreshed=jnp.asarray(step), refreshes=state.refreshes + 1)
        step = next_visit(step)
    assert len(found) > 2
    assert all(b >= 1.7 * a for a, b in itertools.pairwise(found[1:]))
    for epochs, share in ((1, 1 / 2), (10, 1 / 5), (300, 1 / 5)):
        steps = epochs * N // batch_size
        paid = price * sum(step < steps for step in found)
        assert paid / (paid + steps) <= share + 1e-6
