"""What `fit` refuses, and the advice it gives."""

import jax.numpy as jnp
import optax
import pytest
from test_fit import DATA, OBJECTIVE, PARAMS, N, run

import quell
from quell.training.hooks import Progress
from quell.training.progress import Bar


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"batch_size": N + 1}, "batch_size: expected 1 to 23, got 24. A batch cannot be larger"),
        ({"batch_size": 0}, "batch_size: expected 1 to 23, got 0"),
        ({"batch_size": 2.5}, "batch_size: expected a whole number, got 2.5"),
        ({"num_steps": -1}, "num_steps: expected 0 to .*, got -1"),
        ({"estimator": quell.antithetic}, "estimator: .*got antithetic. Call the"),
        ({"estimator": "plain"}, "estimator: expected an estimator.*got 'plain'"),
        ({"hooks": ["loud"]}, "hooks: expected hooks made by monitor.*got 'loud'"),
        ({"hooks": [quell.monitor(objective=len)]}, "hooks: expected monitors with different"),
        ({"optimizer": 0.1}, "optimizer: expected an optax.*, got float. .*adam"),
    ],
)  # fmt: skip
def test_arguments_that_cannot_work(key, changed, message):
    with pytest.raises(ValueError, match=message):
        run(key, **changed)


@pytest.mark.parametrize("bad", [0, jnp.array([0, 1], jnp.uint32)])
def test_keys_that_are_not_typed(bad):
    with pytest.raises(ValueError, match=r"key: expected a typed key.*jax.random.key"):
        run(bad)


def test_data_leaves_of_different_lengths(key):
    data = {"x": DATA["x"], "y": DATA["y"][:-1]}
    with pytest.raises(ValueError, match=r"data\['x'\] of length 23, data\['y'\] of length 22"):
        run(key, data=data)


def test_data_of_another_length_than_the_objective(key):
    objective = OBJECTIVE._replace(num_data=N + 1)
    with pytest.raises(ValueError, match=r"data: expected the 24 rows.*num_data=23"):
        run(key, objective=objective)


@pytest.mark.parametrize("make", [quell.callback, quell.checkpoint, quell.monitor])
def test_hooks_that_are_never_called(make):
    given = {quell.callback: [print], quell.checkpoint: ["run"], quell.monitor: []}[make]
    named = {"f": len} if make is quell.monitor else {}
    with pytest.raises(ValueError, match="every: expected 1 to"):
        make(*given, every=0, **named)


def test_monitors_that_are_no_functions():
    with pytest.raises(
        ValueError, match=r"functions: expected at least one named function.*f, which"
    ):
        quell.monitor(f=1)


def test_arguments_in_another_order(key):
    with pytest.raises(ValueError, match=r"objective: expected a quell.Objective, got dict.*order"):
        quell.fit(key, DATA, PARAMS, OBJECTIVE, optax.sgd(0.1), num_steps=1, batch_size=1)


def test_a_bar_is_closed_after_an_error(key):
    closed = []

    def fail(*_):
        raise RuntimeError("stop")

    bar = Progress(lambda num_steps: Bar(lambda *_: None, lambda: closed.append(1)))
    with pytest.raises(RuntimeError, match="stop"):
        run(key, hooks=[quell.callback(fail, every=10), bar])
    assert closed == [1]
