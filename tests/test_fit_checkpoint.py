"""Checkpoints: a run that was killed goes on as if nothing had happened."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from estimator_table import BATCH, ESTIMATORS, problem
from test_fit import (
    COUNTING,
    DATA,
    OBJECTIVE,
    OPTIMIZER,
    PARAMS,
    T,
    assert_identical,
    loss,
    run,
)

import quell
from quell import callback, checkpoint, monitor
from quell.training.batches import with_replacement
from quell.training.checkpoint import in_directory
from quell.training.identity import _WORDS
from quell.types import Estimator, Started

SLOW_CHILD = """
import sys, time
sys.path.insert(0, {tests!r})
import jax
from quell import callback, checkpoint
from test_fit import COUNTING, run
hooks = [checkpoint({directory!r}, every=20), callback(lambda *_: time.sleep(0.2), every=10)]
run(jax.random.key(7), estimator=COUNTING, num_steps=400, hooks=hooks)
"""


def saved_steps(directory):
    return sorted(int(path.name) for path in Path(directory).glob("*") if path.name.isdigit())


def contents(directory):
    """Every file of every checkpoint, with its bytes."""
    found = {path: path.read_bytes() for path in Path(directory).rglob("*") if path.is_file()}
    return {path: content for path, content in found.items() if path.name != "lock"}


def test_a_killed_process_continues_bit_for_bit(tmp_path):
    directory = tmp_path / "run"
    code = SLOW_CHILD.format(tests=str(Path(__file__).parent), directory=str(directory))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    child = subprocess.Popen([sys.executable, "-c", code], env=environment)
    try:
        deadline = time.monotonic() + 120
        while not saved_steps(directory) and child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.5)  # somewhere between two checkpoints
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert child.returncode == -signal.SIGKILL
    assert 0 < saved_steps(directory)[-1] < 400

    seen = []
    watch = callback(lambda step, *_: seen.append(step), every=10)
    settings = {"estimator": COUNTING, "num_steps": 400}
    resumed = run(jax.random.key(7), hooks=[checkpoint(directory, every=20), watch], **settings)
    assert seen[0] > 10
    uninterrupted = run(jax.random.key(7), **settings)
    assert_identical(resumed, uninterrupted)


class StopError(Exception):
    pass


def stop_at(limit, every):
    def stop(step, params, history):
        if step >= limit:
            raise StopError

    return callback(stop, every=every)


@pytest.mark.slow
def test_an_interrupted_run_of_several_keys_continues(key, tmp_path):
    keys = jax.random.split(key, 2)
    with pytest.raises(StopError):
        run(keys, hooks=[checkpoint(tmp_path, every=8), stop_at(20, every=20)])
    assert saved_steps(tmp_path)[-1] == 16
    resumed = run(keys, hooks=[checkpoint(tmp_path, every=8)])
    assert_identical(resumed, run(keys))
    assert saved_steps(tmp_path)[-1] == T


def test_a_finished_run_is_returned_and_can_be_extended(key, tmp_path):
    saved = checkpoint(tmp_path)
    short = run(key, hooks=[saved])
    again = run(key, hooks=[saved, stop_at(0, every=1)])
    assert_identical(short, again)
    assert_identical(run(key, hooks=[saved], num_steps=2 * T), run(key, num_steps=2 * T))


def _keyed(key, objective, params, data):
    """An estimator whose state holds a key and something empty."""
    counting = COUNTING.start(key, objective, params, data)

    def estimate(key, objective, params, batch, state):
        counted = counting.estimate(key, objective, params, batch, state[0])
        noisy = jax.tree.map(lambda g: g + jax.random.normal(state[1], g.shape), counted.gradient)
        state = (counted.state, jax.random.fold_in(state[1], 1), state[2])
        return counted._replace(gradient=noisy, state=state)

    return Started(
        lambda key, params: (counting.init(key, params), key, jnp.zeros((0, 3))), estimate
    )


@pytest.mark.slow
def test_states_may_hold_keys_and_empty_arrays(key, tmp_path):
    keyed = Estimator("keyed", _keyed)
    with pytest.raises(StopError):
        run(key, estimator=keyed, hooks=[checkpoint(tmp_path, every=8), stop_at(10, every=10)])
    resumed = run(key, estimator=keyed, hooks=[checkpoint(tmp_path)])
    whole = run(key, estimator=keyed)
    assert_identical(resumed.params, whole.params)
    np.testing.assert_array_equal(
        *(jax.random.key_data(r.estimator_state[1]) for r in (resumed, whole))
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The directory of a finished run, which refused runs leave as it is."""
    directory = tmp_path_factory.mktemp("finished")
    run(jax.random.key(3), hooks=[checkpoint(directory)])
    return directory


def warmed_up(rate):
    return optax.adam(optax.linear_schedule(0.0, rate, 100))


NOISIER = OBJECTIVE._replace(loss=lambda p, e, y: loss(p, 1.1 * e, y))
FREER = OBJECTIVE._replace(regulariser=lambda p: 0.4 * (p["w"] @ p["w"]))
OTHERS = {
    "batch size": ({"batch_size": 5}, "batch_size=4"),
    "key": ({"key": jax.random.key(0)}, "another key"),
    "monitors": ({"hooks": [monitor(m=lambda seen: seen.value)]}, "the monitors \\['objective"),
    "data": ({"data": {**DATA, "y": DATA["y"].at[20].add(1e-5)}}, "other data"),
    "dtype": ({"data": {**DATA, "y": DATA["y"].astype(jnp.float16)}}, "other data"),
    "params": ({"params": {**PARAMS, "w": PARAMS["w"] + 1e-3}}, "other initial params"),
    "rate": ({"optimizer": optax.adam(3.1e-2)}, "another optimizer or learning rate"),
    "momentum": ({"optimizer": optax.adam(3e-2, b1=0.8)}, "another optimizer or learning rate"),
    "optimizer": ({"optimizer": optax.sgd(3e-2)}, "another optimizer or learning rate"),
    "loss": ({"objective": NOISIER}, "another objective"),
    "regulariser": ({"objective": FREER}, "another objective"),
    "noise": ({"objective": OBJECTIVE._replace(noise=quell.noise.uniform(2))}, "another objective"),
    "estimator": ({"estimator": quell.antithetic()}, "the estimator monte_carlo"),
    "two": ({"batch_size": 5, "optimizer": optax.sgd(1.0)}, "batch_size=4 and with another opt"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_checkpoints_of_another_run_are_refused(quick, finished, name):
    changed, what = OTHERS[name]
    before = contents(finished)
    hooks = [checkpoint(finished), *changed.get("hooks", [])]
    expected = f"checkpoint: expected .*{finished}, which holds a run with {what}.*Name a new dire"
    with pytest.raises(ValueError, match=expected) as refusal:
        run(**{"key": jax.random.key(3), "num_steps": 2 * T, **changed, "hooks": hooks})
    assert contents(finished) == before
    assert ("objective" in str(refusal.value)) <= ("objective" in what)  # nothing else is blamed


@pytest.mark.parametrize(
    "changed",
    [{"batches": with_replacement}, {"optimizer": warmed_up(0.2)}],
    ids=["batches", "warm-up"],
)
def test_settings_that_show_in_the_first_steps_alone_are_refused_too(key, tmp_path, changed):
    saved = checkpoint(tmp_path)
    run(key, hooks=[saved], **{"optimizer": warmed_up(0.1)})
    with pytest.raises(ValueError, match=r"another optimizer|first 3 steps came out otherwise"):
        run(key, **{"optimizer": warmed_up(0.1), "hooks": [saved], **changed})


def test_fewer_steps_than_saved_are_refused(finished):
    with pytest.raises(ValueError, match="num_steps: expected at least the 30 steps"):
        run(jax.random.key(3), hooks=[checkpoint(finished)], num_steps=T - 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_finished_run_is_extended_with_every_estimator(key, tmp_path, quick, name):
    objective, params, data = problem(key)

    def several(num_steps, hooks):
        estimator = ESTIMATORS[name](quell.monte_carlo())
        args = key, objective, params, data, OPTIMIZER
        settings = {"batch_size": BATCH, "estimator": estimator, "num_steps": num_steps}
        return quell.fit(*args, **settings, hooks=hooks)

    saved = checkpoint(tmp_path)
    several(12, [saved])
    assert_identical(several(25, [saved]), several(25, []))


@pytest.fixture
def interruptible():
    """Ctrl-C as at a terminal: a shell lets its background jobs ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_saves_where_the_run_is_and_says_how_to_go_on(key, tmp_path, capsys):
    def press(step, params, history):
        if step == 14:
            signal.raise_signal(signal.SIGINT)  # the same as Ctrl-C

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run(key, hooks=[checkpoint(tmp_path), callback(press, every=7)])
    assert signal.getsignal(signal.SIGINT) is before
    assert saved_steps(tmp_path) == [14]
    said = capsys.readouterr().err
    assert f"Stopped at step 14 of 30 and saved in {tmp_path}. The same call" in said
    assert_identical(run(key, hooks=[checkpoint(tmp_path)]), run(key))


@pytest.mark.usefixtures("interruptible")
def test_a_second_ctrl_c_stops_at_once_and_saves_nothing_more(key, tmp_path):
    def press(step, params, history):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("it should have stopped")

    with pytest.raises(KeyboardInterrupt):
        run(key, hooks=[checkpoint(tmp_path, every=7), callback(press, every=10)])
    assert saved_steps(tmp_path) == [7]


@pytest.mark.usefixtures("interruptible")
def test_without_checkpoints_ctrl_c_is_left_alone(key):
    def press(step, params, history):
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("it should have stopped")

    with pytest.raises(KeyboardInterrupt):
        run(key, hooks=[callback(press, every=10)])


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.int4, bool])
def test_a_checkpoint_keeps_every_dtype(tmp_path, dtype):
    tree = {"a": jnp.array([0, 1, 1], dtype), "empty": jnp.zeros((0, 2)), "key": jax.random.key(1)}
    with in_directory(tmp_path, dict.fromkeys(_WORDS)) as opened:
        assert opened.save(1, tree)
    with in_directory(tmp_path, dict.fromkeys(_WORDS)) as opened:
        back = opened.restore(tree)
    assert back["a"].dtype == tree["a"].dtype
    np.testing.assert_array_equal(back["a"], tree["a"])
    assert back["key"] == tree["key"]


def test_anything_but_a_path_is_refused():
    with pytest.raises(ValueError, match="directory: expected the path of a directory, got 3"):
        checkpoint(3)
