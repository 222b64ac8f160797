"""What `fit` refuses, and the advice it gives."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from test_fit import DATA, OBJECTIVE, PARAMS, N, run

import quell
from quell.training.hooks import Progress
from quell.training.progress import Bar

KEYS = jax.random.split(jax.random.key(0), 2)
ASTRAY = optax.GradientTransformation(lambda params: (), lambda grads, state, params: ({}, state))
ASKING = quell.contexts.computed(lambda params, row: row["z"])
WITHOUT = quell.bases.custom(lambda draw, params, row: row["z"], mean=0.0)
ZERO_ONE = OBJECTIVE._replace(loss=lambda params, noise, row: (noise > 0).sum())


def beyond(key, step, num_steps, num_data, batch_size):
    return jnp.full((num_steps, batch_size), 99)


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
        ({"optimizer": optax.lbfgs()}, "optimizer: .*update.*'grad' and 'value_fn'.*search"),
        ({"optimizer": ASTRAY}, "optimizer: expected .*got ValueError: .*tree"),
        ({"batches": lambda key: 0}, r"batches: expected a function called as batches\(key, step,"),
        ({"batches": lambda *_: jnp.zeros(3, int)}, r"batches: .*to 22, got shape \(3,\) of int32"),
        ({"batches": beyond}, "batches: expected whole numbers .* from 0 to 22, got 99 to 99"),
        ({"hooks": [quell.monitor(w=lambda seen: seen.params["w"])]}, r"monitor w: .*shape \(2,\)"),
        ({"data": {**DATA, "y": np.array(["a"] * N)}}, r"data: .*got data\['y'\], .* array of <U1"),
        ({"objective": ZERO_ONE}, "loss: .*returns a scalar.*got dtype int32"),
        ({"estimator": quell.closed_form(select=lambda row: row["z"])}, "select: .*KeyError: 'z'"),
        ({"estimator": quell.closed_form(basis=WITHOUT)}, r"fn: .* fn\(draw, .*KeyError: 'z'"),
        ({"estimator": quell.controlled(quell.recognition_network((4,), context=ASKING))},
         "function: expected .*KeyError: 'z'"),
    ],
)  # fmt: skip
def test_arguments_that_cannot_work(key, changed, message):
    with pytest.raises(ValueError, match=message):
        run(key, **changed)


@pytest.mark.parametrize("bad", [0, jnp.array([0, 1], jnp.uint32), KEYS[:0]])
def test_keys_that_are_not_typed(bad):
    with pytest.raises(ValueError, match=r"key: expected a typed key.*jax.random.key"):
        run(bad)


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap])
def test_within_a_transformation_the_sentence_says_so(transform):
    with pytest.raises(ValueError, match=r"fit: expected arrays.*got traced arrays.*several keys"):
        transform(lambda key: run(key).params)(KEYS if transform is jax.vmap else KEYS[0])


def test_a_callback_that_takes_other_arguments():
    with pytest.raises(
        ValueError, match=r"function: .* called as function\(step, params, history\)"
    ):
        quell.callback(lambda step: None)


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
