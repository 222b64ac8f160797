"""The training loop: what it computes, and what it leaves behind."""

import gc
import weakref
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import quell
from quell.training import fit as fit_module
from quell.training import progress
from quell.training.batches import reshuffle, with_replacement
from quell.training.fit import fit
from quell.training.hooks import Progress
from quell.training.loop import run_keys
from quell.types import Estimate, Estimator, Started

N, B, T = 23, 4, 30
DATA = {"x": jnp.linspace(-1.0, 1.0, 2 * N).reshape(N, 2), "y": jnp.sin(jnp.arange(N) * 1.7)}
PARAMS = {"w": jnp.array([0.3, -0.2]), "log_scale": jnp.array(-1.0)}


def loss(params, noise, example):
    w = params["w"] + jnp.exp(params["log_scale"]) * noise
    return 0.5 * (example["x"] @ w - example["y"]) ** 2


OBJECTIVE = quell.Objective(
    loss, quell.normal(2), N, lambda p: 0.5 * (p["w"] @ p["w"]) + jnp.exp(p["log_scale"])
)
OPTIMIZER = optax.adam(3e-2)
PLAIN = quell.monte_carlo()


def run(key, *, objective=OBJECTIVE, params=PARAMS, data=DATA, optimizer=OPTIMIZER, **changed):
    settings = {"num_steps": T, "batch_size": B, **changed}
    return fit(key, objective, params, data, optimizer, **settings)


def assert_identical(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize("batches", [reshuffle, with_replacement])
def test_a_fit_is_the_loop_written_out(key, batches):
    keys = run_keys(key)
    indices = batches(keys.batches, 0, T, N, B)
    params, state = PARAMS, OPTIMIZER.init(PARAMS)

    @jax.jit
    def step(t, params, state):
        batch = {name: leaf[indices[t]] for name, leaf in DATA.items()}
        noise = jax.random.normal(jax.random.fold_in(keys.steps, t), (1, B, 2))
        value, gradient = OBJECTIVE.value_and_gradient(params, noise, batch)
        updates, state = OPTIMIZER.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value, optax.tree.norm(gradient)

    values, norms = [], []
    for t in range(T):
        params, state, value, norm = step(t, params, state)
        values.append(value)
        norms.append(norm)

    result = run(key, batches=batches)
    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
    jax.tree.map(close, result.params, params)
    jax.tree.map(close, result.optimizer_state, state)
    close(result.history["objective"], values)
    close(result.history["gradient_norm"], norms)
    assert result.num_steps == T


def test_it_finds_the_minimum(key):
    # E[loss] + regulariser is a quadratic in w: w* = (XᵀX + I)⁻¹ Xᵀy.
    X, y = DATA["x"], DATA["y"]
    best = np.linalg.solve(X.T @ X + np.eye(2), X.T @ y)
    decay = optax.adam(optax.exponential_decay(0.1, 1000, 0.1))
    result = run(key, optimizer=decay, num_steps=4000, batch_size=N)
    np.testing.assert_allclose(result.params["w"], best, atol=0.01)


def test_cuts_do_not_change_the_run(key, monkeypatch):
    whole = run(key)
    cut = run(key, hooks=[quell.callback(lambda *_: None, every=7)])
    assert_identical(whole, cut)
    monkeypatch.setattr(fit_module, "_CHUNK_SECONDS", 0.0)  # one step per visit
    assert_identical(whole, run(key))


def test_several_keys_are_several_runs(key):
    keys = jax.random.split(key, 3)
    together = run(keys)
    assert together.history["objective"].shape == (3, T)
    assert together.params["w"].shape == (3, 2)
    assert len(np.unique(together.history["objective"][:, 0])) == 3
    for k in range(3):
        alone = run(keys[k])
        np.testing.assert_allclose(together.params["w"][k], alone.params["w"], rtol=1e-4)
        np.testing.assert_allclose(
            together.history["objective"][k], alone.history["objective"], rtol=1e-4, atol=1e-6
        )


def test_params_may_be_drawn_for_each_key(key):
    def draw(key):
        return {"w": jax.random.normal(key, 2), "log_scale": jnp.array(-1.0)}

    many = run(jax.random.split(key, 3), params=draw, num_steps=0)
    assert len(np.unique(many.params["w"])) == 6
    one = run(jax.random.split(key, 3)[1], params=draw, num_steps=0)
    np.testing.assert_array_equal(one.params["w"], many.params["w"][1])


def test_no_steps_leave_everything_as_it_was(key):
    result = run(key, num_steps=0)
    assert_identical(result.params, PARAMS)
    assert result.history["objective"].shape == (0,)
    assert result.num_steps == 0


def _counting(key, objective, params, data):
    """Plain Monte Carlo that counts its steps, and calls the count its correction."""
    plain, rows = PLAIN.start(key, objective, params, data), data["y"].shape[0]

    def estimate(key, objective, params, batch, state):
        estimated = plain.estimate(key, objective, params, batch, ())
        return Estimate(estimated.gradient, estimated.value, state + 1, 10.0 + state)

    return Started(lambda key, params: jnp.array(rows), estimate)


COUNTING = Estimator("counting", _counting)


def test_the_estimator_sees_all_data_first_and_keeps_a_state(key):
    result = run(key, estimator=COUNTING)
    assert int(result.estimator_state) == N + T
    np.testing.assert_array_equal(result.history["correction_norm"], 10.0 + N + np.arange(T))


def test_the_estimator_is_told_which_rows_a_batch_is(key):
    rows = quell.monitor(
        every=1,
        same=lambda seen: (
            seen.batch.data["y"][seen.batch.indices] == seen.batch.examples["y"]
        ).all(),
    )
    assert run(key, hooks=[rows]).history["same"].all()


def test_a_plain_estimator_corrects_nothing(key):
    np.testing.assert_array_equal(run(key).history["correction_norm"], np.zeros(T))


def test_a_control_variate_corrects_something(key):
    free = quell.coefficients.context_free(
        optax.adam(1e-2), targets=quell.coefficients.unit_scale(gated=False)
    )
    correction = run(key, estimator=quell.controlled(free)).history["correction_norm"]
    assert correction[0] == 0.0
    assert (correction[5:] > 0.0).all()


def test_monitors_are_asked_now_and_then(key):
    often = quell.monitor(
        every=8,
        step=lambda seen: seen.step,
        value=lambda seen: seen.value,
        norm=lambda seen: optax.tree.norm(seen.gradient),
        examples=lambda seen: seen.batch.examples["y"].shape[0],
        draw=lambda seen: jax.random.normal(seen.key),
        w=lambda seen: seen.params["w"][0],
    )
    seldom = quell.monitor(every=15, late=lambda seen: seen.step)
    history = run(key, hooks=[often, seldom]).history
    asked = np.arange(T) % 8 == 0
    for name, _ in often.functions:
        np.testing.assert_array_equal(np.isfinite(history[name]), asked)
    np.testing.assert_array_equal(history["step"][asked], np.arange(T)[asked])
    np.testing.assert_array_equal(history["value"][asked], history["objective"][asked])
    np.testing.assert_array_equal(history["norm"][asked], history["gradient_norm"][asked])
    assert history["examples"][0] == B
    assert history["w"][0] == PARAMS["w"][0]
    assert len(np.unique(history["draw"][asked])) == asked.sum()
    assert np.flatnonzero(np.isfinite(history["late"])).tolist() == [0, 15]


def test_a_callback_gets_params_and_history_it_may_keep(key):
    kept = []
    result = run(key, hooks=[quell.callback(lambda *seen: kept.append(seen), every=10)])
    assert [step for step, _, _ in kept] == [10, 20, 30]
    for step, params, history in kept:
        assert np.isfinite(np.asarray(params["w"])).all()
        np.testing.assert_array_equal(history["objective"], result.history["objective"][:step])
    assert_identical(kept[-1][1], result.params)


def test_the_callers_arrays_survive(key):
    result = run(key)
    again = run(key, params=result.params)
    assert not PARAMS["w"].is_deleted()
    assert not result.params["w"].is_deleted()
    assert np.isfinite(again.history["objective"]).all()


def test_a_run_of_any_length_is_traced_as_often_as_a_short_one(key):
    traces = 0

    def counted(params, noise, example):
        nonlocal traces
        traces += 1
        return loss(params, noise, example)

    objective = OBJECTIVE._replace(loss=counted)
    run(key, objective=objective, num_steps=64)
    first = traces
    assert first > 0
    run(key, objective=objective, num_steps=3000)
    assert traces == 2 * first


def test_a_run_keeps_nothing_of_its_objective_alive(key):
    big = np.zeros(3)

    def held(params, noise, example):
        return loss(params, noise, example) + big.sum()

    reference = weakref.ref(held)
    run(key, objective=OBJECTIVE._replace(loss=held))
    del held
    jax.clear_caches()  # jax remembers what it traced, quell must not
    gc.collect()
    assert reference() is None


def test_float64_is_kept(key, x64):
    wide = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), (DATA, PARAMS))
    objective = OBJECTIVE._replace(noise=quell.normal(2))
    sgd = optax.sgd(1e-3)
    result = run(key, objective=objective, params=wide[1], data=wide[0], optimizer=sgd, num_steps=3)
    assert result.params["w"].dtype == jnp.float64
    assert result.history["objective"].dtype == np.float64


def testprogress_is_told_and_closed(key):
    told, closed = [], []

    def bar(num_steps):
        assert num_steps == T
        return progress.Bar(
            lambda step, objective: told.append((step, objective)), lambda: closed.append(True)
        )

    result = run(key, hooks=[Progress(bar)])
    assert told[-1] == (T, float(result.history["objective"][-1]))
    assert closed == [True]


def test_the_bar_is_drawn_by_rich_when_it_is_worth_it(capsys, monkeypatch):
    monkeypatch.setattr(progress, "_PATIENCE", 0.0)
    short = progress.rich_bar(200)
    short.update(1, 1.5)
    short.update(100, 1.25)
    short.close()
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "_WORTHWHILE", 0.0)
    long = progress.rich_bar(200)
    long.update(1, 1.5)
    long.update(100, 1.25)
    long.close()
    drawn = capsys.readouterr().err
    assert "100/200" in drawn
    assert "1.25" in drawn


def test_there_is_no_bar_without_a_terminal(monkeypatch):
    def refuse(num_steps):
        raise AssertionError("a bar was made")

    monkeypatch.setattr(progress, "rich_bar", refuse)
    progress.default_bar(10).update(1, 0.0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with pytest.raises(AssertionError, match="a bar was made"):
        progress.default_bar(10)


def test_a_run_without_steps_is_what_it_started_from(key):
    result = run(key, num_steps=0)
    assert_identical(result.params, PARAMS)
    assert repr(result).startswith("Fit(0 steps")
