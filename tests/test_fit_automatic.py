"""The estimator that `fit` chooses when none is given."""

import jax.numpy as jnp
import optax
import pytest

import quell
from quell import _fit
from quell._recommend import Recommendation, candidates

N = 30


@pytest.fixture
def problem():
    objective = quell.Objective(lambda p, e, y: ((p + e - y) ** 2).sum(), quell.normal(2), N)
    return objective, jnp.linspace(-1, 1, 2 * N).reshape(N, 2)


@pytest.fixture
def asked(monkeypatch):
    """Every run is worth measuring, and the measurement always says antithetic; who asked."""
    calls = []

    def recommend(objective, data, params, *, key, **settings):
        calls.append(settings)
        made = candidates(key, objective, params, data)
        return Recommendation("antithetic", made["antithetic"], (), settings["batch_size"])

    monkeypatch.setattr(_fit, "_WORTH_MEASURING", 5)
    monkeypatch.setattr(_fit, "recommend", recommend)
    return calls


def run(problem, key, **changed):
    objective, data = problem
    arguments = {"num_steps": 6, "batch_size": 3, "optimizer": optax.sgd(1e-3)}
    return _fit.fit(objective, data, params=jnp.ones(2), key=key, **{**arguments, **changed})


def test_short_runs_are_not_measured(problem, asked, key):
    short = run(problem, key, num_steps=4)
    plain = run(problem, key, num_steps=4, estimator=quell.estimators.monte_carlo())
    assert not asked
    assert (short.params == plain.params).all()


@pytest.mark.slow
def test_long_runs_use_what_was_recommended(problem, asked, key):
    chosen = run(problem, key)
    pairs = run(problem, key, estimator=quell.estimators.antithetic())
    assert [settings["batch_size"] for settings in asked] == [3]
    assert (chosen.params == pairs.params).all()


@pytest.mark.slow
def test_a_resumed_run_keeps_its_estimator(problem, asked, key, tmp_path):
    run(problem, key, checkpoint=tmp_path / "run")
    resumed = run(problem, key, checkpoint=tmp_path / "run", num_steps=8)
    whole = run(problem, key, num_steps=8, estimator=quell.estimators.antithetic())
    assert len(asked) == 1
    assert (resumed.params == whole.params).all()
