"""Comparisons: who wins, by how much, and what cannot be compared."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from test_measure import linear_loss

import quell
from quell import estimators as est
from quell._compare import _compare, compare
from quell._compare._training import Training, seconds_to_target, trained
from quell._fit import fit
from quell._measure import Estimate, Noisiness, Parts, followed_state, largest_prime, stepper
from quell._objective import Objective
from quell.estimators import Estimator

N = 12


@pytest.fixture
def toy(key):
    a_key, b_key = jax.random.split(key)
    data = {
        "a": 3.0 + jax.random.normal(a_key, (N,)),
        "b": 0.7 + jax.random.normal(b_key, (N,)),
        "c": jnp.ones((N, 2)),
    }
    params = {"slope": jnp.ones(()), "other": jnp.ones(2)}
    noise = quell.normal(2)

    def regulariser(params):
        return 10.0 * (params["slope"] ** 2 + (params["other"] ** 2).sum())

    return Objective(linear_loss, noise, N, regulariser), params, data


def impossible(objective):
    raise ValueError("objective: expected a density, got none. Give it one.")


def watching(objective):
    """Plain, and remembers every parameter it was shown."""
    plain = est.monte_carlo()(objective)

    def estimate(key, params, batch, state):
        gradient, value, _ = plain.estimate(key, params, batch, ())
        return gradient, value, (params, state[1] + 1)

    return Estimator(lambda key, params, batch: (params, jnp.zeros(())), estimate)


@pytest.mark.slow
def test_antithetic_kills_a_linear_dependence_and_the_impossible_is_listed(key, toy, tmp_path):
    objective, params, data = toy
    found = compare(
        key,
        objective,
        {"antithetic": est.antithetic(), "impossible": impossible},
        params,
        data,
        baselines={"plain": est.monte_carlo()},
        batch_sizes=(3,),
        num_steps=5,
        seconds=2.0,
    )
    rows = {row.name: row for row in found.rows}
    assert set(rows) == {"plain", "antithetic"}
    assert found.unavailable == {
        "impossible": "not available: objective: expected a density, got none. Give it one."
    }
    pair, plain = rows["antithetic"], rows["plain"]
    assert pair.variance_draws.value < 1e-5 * plain.variance_draws.value
    assert pair.variance_points.value == pytest.approx(plain.variance_points.value, rel=0.2)
    assert plain.efficiency_vs_plain == 1.0
    assert found.best_baseline == ("plain", 3)
    ratio = (plain.error * plain.seconds_per_step) / (pair.error * pair.seconds_per_step)
    assert pair.efficiency_vs_plain == pytest.approx(ratio)
    assert found.num_steps == 5

    assert "impossible: not available" in str(found)
    found.save(tmp_path / "found.json")
    document = json.loads((tmp_path / "found.json").read_text())
    wanted = "name variance_total variance_draws variance_points seconds_per_step"
    wanted = {*wanted.split(), "efficiency_vs_plain", "efficiency_vs_best"}
    assert all(wanted <= set(row) for row in document["estimators"])
    assert [row["name"] for row in document["estimators"]] == [row.name for row in found.rows]
    found.plot(tmp_path / "found.png")
    assert (tmp_path / "found.png").stat().st_size > 1000


def candidate(total, *, bias_z=0.0, squared_bias=0.0):
    """An estimator of which only the noise is known."""
    number = Estimate(total, total, total)
    parts = Parts(number, number, number, number, number)
    found = Noisiness(parts, {}, number, 0.0, bias_z, squared_bias, 1)
    return _compare._Candidate(None, (), found)  # pyright: ignore


def test_efficiency_is_the_ratio_of_variance_times_time():
    candidates = {
        ("plain", 10): candidate(8.0),
        ("plain", 100): candidate(0.8),
        ("pair", 10): candidate(2.0),
        ("clever", 10): candidate(0.1),
        ("perfect", 10): candidate(0.0),
        ("biased", 10): candidate(0.1, bias_z=9.0, squared_bias=5.9),
        ("hardly biased", 10): candidate(0.1, bias_z=1.0, squared_bias=5.9),
    }
    seconds = [1.0, 4.0, 2.0, 10.0, 10.0, 1.0, 100.0]
    rows, best = _compare._rows(candidates, dict(zip(candidates, seconds)), {"plain", "pair"})
    assert best == ("plain", 100)
    versus = {(r.name, r.batch_size): (r.efficiency_vs_plain, r.efficiency_vs_best) for r in rows}
    assert versus["plain", 10] == pytest.approx((1.0, 0.4))
    assert versus["plain", 100] == pytest.approx((1.0, 1.0))
    assert versus["pair", 10] == pytest.approx((2.0, 0.8))
    assert versus["clever", 10] == pytest.approx((8.0, 3.2))
    assert versus["biased", 10] == pytest.approx((8.0 / 6.0, 3.2 / 6.0))
    assert versus["hardly biased", 10] == pytest.approx((0.8, 0.32))
    # The one to pick comes first.
    assert [row.name for row in rows] == [
        "perfect", "clever", "plain", "pair", "biased", "plain", "hardly biased"
    ]  # fmt: skip


@pytest.mark.slow
def test_estimators_follow_the_recorded_run(key, toy):
    objective, params, data = toy
    training = Training(optax.sgd(1e-3), num_steps=9, batch_size=4, driver=est.monte_carlo())
    end, path = trained(key, objective, params, data, training)
    seen = []
    straight = fit(
        objective, data, params=params, optimizer=training.optimizer, num_steps=9,
        batch_size=4, key=key, callback=lambda step, p, _: seen.append(p), callback_every=1,
    )  # fmt: skip
    jax.tree.map(np.testing.assert_allclose, end, straight.params)
    assert path["slope"].shape == (largest_prime(9),) == (7,)
    # The parameters before each of the last seven steps: after steps 2, …, 8.
    np.testing.assert_allclose(path["slope"], [p["slope"] for p in seen[1:8]], rtol=1e-6)
    loop = stepper(watching(objective), params, data, 2)
    state = watching(objective).init(key, params, data)
    for seconds, expected in ((math.inf, 7), (1e-9, 1)):
        last, steps = followed_state(key, loop, state, path, seconds=seconds)
        assert steps == expected
        jax.tree.map(np.testing.assert_allclose, last, jax.tree.map(lambda p: p[-1], path))


def test_time_to_target_counts_the_steps_until_it_is_reached(key, toy):
    objective, params, data = toy
    training = Training(optax.sgd(1e-3), num_steps=0, batch_size=N, driver=est.monte_carlo())
    values = [
        seconds_to_target(
            key,
            objective,
            est.antithetic(),
            params,
            data,
            training,
            target=target,
            seconds_per_step=2.0,
            num_steps=200,
        )
        for target in (1e9, 20.0, -1e9)
    ]
    assert values[0] == 0.0
    assert 0.0 < values[1] < 400.0
    assert values[2] is None


def test_bad_arguments_are_refused(key, toy):
    objective, params, data = toy
    with pytest.raises(ValueError, match="batch_sizes"):
        compare(key, objective, {}, params, data, batch_sizes=())
    with pytest.raises(ValueError, match="plain"):
        compare(key, objective, {}, params, data, baselines={})
