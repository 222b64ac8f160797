"""What `fit` refuses, and the advice it gives."""

import jax
import jax.numpy as jnp
import optax
import pytest
from test_fit import DATA, OBJECTIVE, PARAMS, B, N, run

import quell
from quell._fit import fit
from quell._progress import Progress
from quell.estimators import monte_carlo


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"batch_size": N + 1}, "batch_size: expected 1 to 23, got 24. A batch cannot be larger"),
        ({"batch_size": 0}, "batch_size: expected 1 to 23, got 0"),
        ({"batch_size": 2.5}, "batch_size: expected a whole number, got 2.5"),
        ({"num_steps": -1}, "num_steps: expected 0 to .*, got -1"),
        ({"callback_every": 0}, "callback_every: expected 1 to"),
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
        fit(OBJECTIVE, data, params=PARAMS, optimizer=optax.sgd(0.1), num_steps=1, batch_size=B,
            key=key)  # fmt: skip


def test_data_of_another_length_than_the_objective(key):
    objective = OBJECTIVE._replace(num_data=N + 1)
    with pytest.raises(ValueError, match=r"data: expected the 24 rows.*num_data=23"):
        fit(objective, DATA, params=PARAMS, optimizer=optax.sgd(0.1), num_steps=1, batch_size=B,
            key=key)  # fmt: skip


def test_an_estimator_and_a_control_variate(key):
    control = quell.control_variate(
        quell.bases.linear(),
        quell.coefficients.context_free(optax.adam(1e-2)),
        noise=OBJECTIVE.noise,
        key=key,
    )
    with pytest.raises(ValueError, match="control: expected either an estimator or a control"):
        run(key, estimator=monte_carlo(), control=control)


def test_an_objective_that_is_not_finite_at_first(key):
    params = {**PARAMS, "log_scale": jnp.array(jnp.inf)}
    with pytest.raises(ValueError, match=r"objective: expected a finite value.*check params"):
        run(key, params=params)
    with pytest.raises(ValueError, match=r"objective: expected a finite value.*check params"):
        run(jax.random.split(key, 2), params=params)


def test_data_that_is_not_finite(key):
    data = {**DATA, "y": jnp.full(N, jnp.nan)}
    with pytest.raises(ValueError, match=r"data\['y'\] holds NaN or infinity: clean it"):
        fit(OBJECTIVE, data, params=PARAMS, optimizer=optax.sgd(0.1), num_steps=1, batch_size=B,
            key=key)  # fmt: skip


def test_a_bar_is_closed_after_an_error(key):
    closed = []

    def fail(*_):
        raise RuntimeError("stop")

    def progress(num_steps):
        return Progress(lambda *_: None, lambda: closed.append(1))

    with pytest.raises(RuntimeError, match="stop"):
        run(key, callback=fail, callback_every=10, progress=progress)
    assert closed == [1]
