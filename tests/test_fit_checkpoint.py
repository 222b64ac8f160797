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
from test_fit import COUNTING, OPTIMIZER, T, assert_identical, run

from quell import callback, checkpoint, monitor
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


def test_checkpoints_of_another_run_are_refused(key, tmp_path):
    saved = checkpoint(tmp_path)
    run(key, hooks=[saved])
    for changed, what in [
        ({"batch_size": 5}, "batch_size"),
        ({"key": jax.random.key(0)}, "key"),
        ({"optimizer": optax.sgd(0.1)}, "leaves"),
        ({"hooks": [saved, monitor(m=lambda seen: seen.value)]}, "columns"),
    ]:
        with pytest.raises(ValueError, match=rf"checkpoint: expected .* with {what} .*directory"):
            run(**{"key": key, "optimizer": OPTIMIZER, "hooks": [saved], **changed})
    with pytest.raises(ValueError, match="num_steps: expected at least the 30 steps"):
        run(key, hooks=[saved], num_steps=T - 1)


def test_without_orbax_the_error_names_the_extra(key, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)
    with pytest.raises(ImportError, match=r"quell\[checkpoint\]"):
        run(key, hooks=[checkpoint(tmp_path)])
