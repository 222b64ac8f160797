"""Data, steps and losses that are not finite: named, skipped, counted, and never in a result."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from test_fit import DATA, OBJECTIVE, PARAMS, B, N, T, loss, run

import quell
from quell.training import fit as fit_module
from quell.training.batches import reshuffle
from quell.training.loop import PATIENCE, run_keys

pytestmark = pytest.mark.usefixtures("quick")

NETWORK = quell.estimators.controlled(quell.recognition_network((4,)))
MARKED = {**DATA, "bad": jnp.zeros(N).at[5].set(1.0)}  # a row at which the loss is not finite


def broken(value):
    """The objective of the tests of `fit`, with this value at the marked row."""

    def changed(params, noise, example):
        factor = jnp.where(example["bad"] > 0, value, 1.0)
        return loss(params, noise, example) * factor

    return OBJECTIVE._replace(loss=changed)


def falling(params, noise, example):
    """A loss that pushes the parameters over an edge, behind which there is no value."""
    w = params["w"][0]
    return loss(params, noise, example) + jnp.where(w < 0.2, jnp.nan, 20 * w)


def rows_of_batches(key, steps=T):
    return np.asarray(reshuffle(run_keys(key).batches, 0, steps, N, B))


@pytest.mark.parametrize("leaf", ["x", "y"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_data_are_refused_by_leaf_and_row(key, leaf, bad):
    data = {**DATA, leaf: DATA[leaf].at[17].set(bad)}
    problem = (key, OBJECTIVE, PARAMS, data)
    message = rf"data\['{leaf}'\]: expected finite numbers, got {bad} in row 17"
    calls = [
        lambda: run(key, data=data),
        lambda: quell.measure(*problem, quell.closed_form(), batch_size=4),
        lambda: quell.recommend(*problem, batch_size=4),
        lambda: quell.compare(*problem, {}, batch_sizes=(4,)),
        lambda: quell.control_variate(*problem, quell.recognition_network((4,))),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=message):
            call()


def test_finite_data_whose_sum_overflows_are_accepted(key):
    run(key, data={**DATA, "unused": jnp.full(N, 3e38)}, num_steps=1)


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
def test_parameters_are_refused_by_leaf(key, bad):
    params = {**PARAMS, "log_scale": jnp.array(bad)}
    for keys in (key, jax.random.split(key, 2)):
        with pytest.raises(ValueError, match=r"params\['log_scale'\]: expected finite numbers"):
            run(keys, params=params)
    with pytest.raises(ValueError, match=r"params\['log_scale'\]: expected finite numbers"):
        run(key, params=lambda key: params)


@pytest.mark.parametrize("value", [jnp.nan, jnp.inf])
@pytest.mark.parametrize("estimator", [quell.monte_carlo(), quell.closed_form(), NETWORK], ids=str)
def test_a_step_that_is_not_finite_is_skipped_and_counted(key, value, estimator):
    settings = {"objective": broken(value), "data": MARKED, "estimator": estimator}
    with pytest.warns(RuntimeWarning, match="fit: step") as seen:
        result = run(key, **settings)
    bad = (rows_of_batches(key) == 5).any(1)
    assert 0 < bad.sum() < T
    np.testing.assert_array_equal(result.history["skipped"], bad)
    assert result.skipped == bad.sum()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.params))
    assert len(seen) == 1
    assert f"step {bad.argmax()}" in str(seen[0].message)
    assert seen[0].filename.endswith("test_fit.py")  # the caller's line
    assert f"{result.skipped} skipped" in repr(result)


def test_a_skipped_step_changes_neither_parameters_nor_states(key):
    key = next(k for k in jax.random.split(key, 9) if 5 not in rows_of_batches(k)[0])
    bad = int((rows_of_batches(key) == 5).any(1).argmax())
    rows = rows_of_batches(key)[bad]
    settings = {"objective": broken(jnp.nan), "data": MARKED}
    before = run(key, num_steps=bad, **settings)
    with pytest.warns(RuntimeWarning, match=f"step {bad} was.*{', '.join(map(str, rows))}"):
        after = run(key, num_steps=bad + 1, **settings)
    for a, b in zip(jax.tree.leaves(before[:3]), jax.tree.leaves(after[:3])):
        np.testing.assert_array_equal(a, b)


def test_several_runs_skip_steps_of_their_own(key):
    keys = jax.random.split(key, 3)
    with pytest.warns(RuntimeWarning, match="of run"):
        together = run(keys, objective=broken(jnp.nan), data=MARKED)
    assert np.shape(together.skipped) == (3,)
    for k in range(3):
        bad = (rows_of_batches(keys[k]) == 5).any(1)
        np.testing.assert_array_equal(together.history["skipped"][k], bad)


def test_cuts_do_not_change_what_is_skipped(key, monkeypatch):
    objective = OBJECTIVE._replace(loss=falling)
    with pytest.warns(RuntimeWarning, match="fit: st"):
        whole = run(key, objective=objective, num_steps=400)
    monkeypatch.setattr(fit_module, "_CHUNK_SECONDS", 0.0)  # one step per visit
    with pytest.warns(RuntimeWarning, match="fit: st"):
        cut = run(key, objective=objective, num_steps=400)
    jax.tree.map(np.testing.assert_array_equal, whole, cut)


@pytest.mark.parametrize("seeds", [None, 2])
def test_many_in_a_row_stop_the_run_at_its_last_finite_parameters(key, seeds):
    keys = key if seeds is None else jax.random.split(key, seeds)
    with pytest.warns(RuntimeWarning, match="fit: st") as seen:
        result = run(keys, objective=OBJECTIVE._replace(loss=falling), num_steps=1000)
    taken = result.num_steps - PATIENCE
    assert 0 < taken < 20
    assert len(seen) == 2
    assert f"the last {PATIENCE} of which" in str(seen[1].message)
    np.testing.assert_array_less(PATIENCE - 1, result.skipped)
    assert result.history["objective"].shape[-1] == result.num_steps
    again = run(keys, objective=OBJECTIVE._replace(loss=falling), num_steps=taken)
    jax.tree.map(np.testing.assert_array_equal, again.params, result.params)


def test_a_run_may_recover(key):
    """Not finite for a while, by the clock of the data's order rather than for good."""
    with pytest.warns(RuntimeWarning, match="skipped"):
        result = run(key, objective=broken(jnp.inf), data=MARKED, num_steps=300, batch_size=1)
    assert result.num_steps == 300
    assert result.skipped == (np.asarray(reshuffle(run_keys(key).batches, 0, 300, N, 1)) == 5).sum()


@pytest.mark.parametrize("seeds", [None, 2])
def test_a_run_without_a_finite_step_is_refused(key, seeds):
    keys = key if seeds is None else jax.random.split(key, seeds)
    never = OBJECTIVE._replace(loss=lambda p, e, y: loss(p, e, y) * jnp.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for steps in (1, 20, 500):
            with pytest.raises(ValueError, match=r"objective: expected a finite value.*Check log"):
                run(keys, objective=never, num_steps=steps)


def test_updates_that_are_not_finite_are_skipped_too(key):
    def update(updates, state, params=None, **_):
        wild = jax.tree.map(lambda g: jnp.where(state == 3, jnp.inf, -0.01 * g), updates)
        return wild, state + 1

    wild: Any = optax.GradientTransformationExtraArgs(
        lambda params: jnp.zeros((), jnp.int32), update
    )
    with pytest.warns(RuntimeWarning, match="step 3 was"):
        result = run(key, optimizer=wild, num_steps=20)
    assert result.optimizer_state == 3  # it is tried again and again, without harm
    assert result.skipped == 17


@pytest.mark.parametrize("call", ["measure", "recommend", "compare", "compare trained"])
def test_objectives_without_a_finite_value_are_refused_everywhere(key, call):
    never = OBJECTIVE._replace(loss=lambda p, e, y: loss(p, e, y) * jnp.nan)
    problem = (key, never, PARAMS, DATA)
    calls = {
        "measure": lambda: quell.measure(*problem, quell.closed_form(), batch_size=4, seconds=0.2),
        "recommend": lambda: quell.recommend(*problem, batch_size=4, seconds=0.2, num_steps=10),
        "compare": lambda: quell.compare(*problem, {}, batch_sizes=(4,), seconds=0.2),
        "compare trained": lambda: quell.compare(
            *problem, {}, batch_sizes=(4,), seconds=0.2, num_steps=10
        ),
    }
    with pytest.raises(ValueError, match=r"objective: expected .*finite"):
        calls[call]()
