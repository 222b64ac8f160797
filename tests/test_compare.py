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
from quell.diagnostics import ranking
from quell.diagnostics.cells import Spot, loop_of, measured_cell, metric_at
from quell.diagnostics.compare import compare
from quell.diagnostics.recommend import Run, candidates, recommend, recommendation
from quell.diagnostics.reference import no_reference
from quell.diagnostics.statistics import Interval, Parts
from quell.diagnostics.stepper import Stepper, largest_prime, state_after_path, stepper
from quell.diagnostics.target import seconds_to_target
from quell.diagnostics.timing import refresh_seconds
from quell.diagnostics.variance import Coordinates, VarianceComponents
from quell.estimators import antithetic, monte_carlo
from quell.objective import Objective
from quell.training.short import short_training
from quell.types import Estimator, Started

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


def refuse(key, objective, params, data):
    raise ValueError("objective: expected a density, got none. Give it one.")


def watch(key, objective, params, data):
    """Plain, and remembers the last parameters it was shown and the number of steps."""
    plain = monte_carlo().start(key, objective, params, data)

    def estimate(key, objective, params, batch, state):
        found = plain.estimate(key, objective, params, batch, ())
        return found._replace(state=(params, state[1] + 1))

    return Started(lambda key, params: (params, jnp.zeros(())), estimate)


@pytest.mark.slow
def test_antithetic_kills_a_linear_dependence_and_the_impossible_is_listed(key, toy, tmp_path):
    objective, params, data = toy
    found = compare(
        key,
        objective,
        params,
        data,
        {"antithetic": antithetic(), "impossible": Estimator("impossible", refuse)},
        baselines={"plain": monte_carlo()},
        batch_sizes=(3,),
        num_steps=5,
        seconds=30.0,
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
    assert repr(found).startswith("Comparison(2 rows, best: antithetic at batch size 3, ")
    found.save(tmp_path / "found.json")
    document = json.loads((tmp_path / "found.json").read_text())
    wanted = "name variance_total variance_draws variance_points seconds_per_step"
    wanted = {*wanted.split(), "efficiency_vs_plain", "efficiency_vs_best"}
    assert all(wanted <= set(row) for row in document["estimators"])
    assert [row["name"] for row in document["estimators"]] == [row.name for row in found.rows]
    found.plot(tmp_path / "found.png")
    assert (tmp_path / "found.png").stat().st_size > 1000


def noise(total, *, bias_z=0.0, squared_bias=0.0):
    """Noise of which only the variance and the bias matter."""
    number = Interval(total, total, total)
    parts = Parts(number, number, number, number, number)
    each = Coordinates(np.full(2, total), np.zeros(2), np.zeros(2))
    return VarianceComponents(parts, parts, each, {}, number, 0.0, bias_z, squared_bias, 1)


def test_efficiency_is_the_ratio_of_variance_times_time():
    found = {
        ("plain", 10): noise(8.0),
        ("plain", 100): noise(0.8),
        ("pair", 10): noise(2.0),
        ("clever", 10): noise(0.1),
        ("perfect", 10): noise(0.0),
        ("biased", 10): noise(0.1, bias_z=9.0, squared_bias=5.9),
        ("hardly biased", 10): noise(0.1, bias_z=1.0, squared_bias=5.9),
    }
    seconds = [1.0, 4.0, 2.0, 10.0, 10.0, 1.0, 100.0]
    times = {at: Interval(taken, taken, taken) for at, taken in zip(found, seconds)}
    rows, best = ranking._rows(found, times, {"plain", "pair"})
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
    sgd, W = optax.sgd(1e-3), largest_prime(9)
    end, path, _ = short_training(
        key, objective, params, data, monte_carlo(), sgd, num_steps=9, batch_size=4, path=W
    )
    seen = []
    straight = quell.fit(
        key, objective, params, data, sgd, num_steps=9, batch_size=4,
        hooks=[quell.callback(lambda step, p, _: seen.append(p), every=1)],
    )  # fmt: skip
    jax.tree.map(np.testing.assert_allclose, end, straight.params)
    assert path["slope"].shape == (W,) == (7,)
    # The parameters before each of the last seven steps: after steps 2, …, 8.
    np.testing.assert_allclose(path["slope"], [p["slope"] for p in seen[1:8]], rtol=1e-6)
    started = watch(key, objective, params, data)
    loop = stepper(objective, params, data, started, 2)
    for seconds, expected in ((math.inf, 7), (1e-9, 1)):
        state = started.init(key, params)
        (last, counted), steps, _ = state_after_path(key, loop, state, path, seconds=seconds)
        assert steps == counted == expected
        jax.tree.map(np.testing.assert_allclose, last, jax.tree.map(lambda p: p[-1], path))


def test_time_to_target_counts_the_steps_until_it_is_reached(key, toy):
    objective, params, data = toy
    values = [
        seconds_to_target(
            key,
            objective,
            params,
            data,
            antithetic(),
            optax.sgd(1e-3),
            batch_size=N,
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
        compare(key, objective, params, data, {}, batch_sizes=())
    with pytest.raises(ValueError, match="plain"):
        compare(key, objective, params, data, {}, baselines={})
    with pytest.raises(ValueError, match="Call the factory"):
        compare(key, objective, params, data, {"pairs": antithetic})  # pyright: ignore


def row(name, nats, seconds, *, batch_size=10, points=0.0, noisier=0.0):
    """A row of which only noise and time matter."""
    number, time = Interval(1.0, 1.0, 1.0), Interval(seconds, seconds, seconds)
    parts = [Interval(value, value, value) for value in (nats + points, nats, points)]
    return ranking.Row(
        name, batch_size, number, number, number, *parts, noisier, 0.0, 1.0, seconds, time, 1.0, 1.0
    )


def advice(rows, estimators=None, times=None):
    times = {} if times is None else times
    known = {(row.name, row.batch_size): row.seconds_interval for row in rows}
    return recommendation(estimators or ESTIMATORS, rows, {**known, **times}, RUN)


ESTIMATORS = {"plain": monte_carlo(), "antithetic": antithetic()}
RUN = Run(100, 1000, 1000, False, True)


def test_the_soonest_to_a_nat_is_recommended_and_the_simpler_of_equals():
    plain = row("plain", 900.0, 1e-3)
    won = advice([row("antithetic", 100.0, 1e-3), plain])
    assert (won.name, won.estimator) == ("antithetic", ESTIMATORS["antithetic"])
    assert repr(won) == "Recommendation(antithetic at batch size 10, 6.33 × sooner than plain)"
    dear = advice([row("antithetic", 100.0, 7e-3), plain])
    assert dear.name == "plain"
    tie = advice([row("antithetic", 890.0, 1e-3), plain])
    assert tie.name == "plain"


def test_of_equals_the_quieter_is_recommended():
    """Both take about as long; half of the steps of plain draws are there for their noise."""
    rows = [row("plain", 50.0, 1e-3), row("antithetic", 1.0, 2.3e-3)]
    assert advice(rows).name == "plain"  # 200 ms against 235
    rows = [row("plain", 50.0, 1e-3), row("antithetic", 10.0, 1.68e-3)]
    assert advice(rows).name == "antithetic"  # 200 ms against 202, 100 of them against 34


def test_rounding_is_no_reason_to_prefer_an_estimator():
    rows = [row("antithetic", 3e-13, 1e-3), row("plain", 0.0, 1e-3)]
    assert advice(rows).name == "plain"
    rows = [row("antithetic", 0.0, 1e-3), row("plain", 2e-4, 1e-3)]
    assert advice(rows).name == "plain"


def test_an_estimator_that_makes_many_coordinates_noisier_is_dropped_and_says_so():
    rows = [row("antithetic", 1.0, 1e-3, noisier=0.06), row("plain", 900.0, 1e-3)]
    found = advice(rows)
    assert found.name == "plain"
    assert "6 % of coordinates noisier" in str(found)


def test_the_best_batch_size_follows_from_noise_and_time():
    # A step costs 1 + |B|/100 ms; noise 5000 · 10/|B|: the best of 100 + 100000/|B| steps.
    plain, times = {"plain": monte_carlo()}, {("plain", 160): Interval(2.6e-3, 2.6e-3, 2.6e-3)}
    found = advice([row("plain", 5000.0, 1.1e-3)], plain, times)

    def seconds(B):
        return (1e-3 + 1e-5 * B) * (100 + 100_000 / B)

    assert found.batch_size == min([10 * 2**k for k in range(7)], key=seconds)
    assert found.choices[0].seconds == pytest.approx(seconds(found.batch_size))
    # Points have no noise left in a batch of all the data.
    same = {("plain", 160): Interval(1e-3, 1e-3, 1e-3)}
    assert advice([row("plain", 0.0, 1e-3, points=1e6)], plain, same).batch_size == 1000
    # Without a second time there is no choice of the batch size.
    assert advice([row("plain", 5000.0, 1.1e-3)], plain).batch_size == 10


def test_no_noise_at_all_is_no_trouble():
    found = {("plain", 10): noise(0.0), ("pair", 10): noise(1e-14)}
    times = dict.fromkeys(found, Interval(1.0, 1.0, 1.0))
    rows, best = ranking._rows(found, times, {"plain"})
    assert best == ("plain", 10)
    assert all(0 <= row.efficiency_vs_plain <= 1 for row in rows)


def test_candidates_are_ordered_from_the_simplest():
    problem = quell.Objective(lambda p, e, y: p * e * y["y"], quell.normal(1), 4)
    assert list(candidates(problem)) == ["plain", "antithetic", "closed-form"]
    one_sided = problem._replace(noise=problem.noise._replace(reflect=None))
    assert list(candidates(one_sided)) == ["plain", "closed-form"]


def test_what_does_not_fit_into_the_time_is_left_out_by_name(key, quick, toy):
    objective, params, data = toy
    found = compare(
        key, objective, params, data, {}, batch_sizes=(3, 6), seconds=1e-3,
        baselines={"plain": monte_carlo(), "pairs": antithetic()},
    )  # fmt: skip
    assert {row.name for row in found.rows} == {"plain", "pairs"}  # one to compare with, at least
    assert set(found.unavailable) == {"plain, batch size 6", "pairs, batch size 6"}
    assert "size 6; pairs, batch size 6: left out: 0.001 s do not suffice to compile" in str(found)
    assert "longer than asked: compiling alone takes longer" in str(found)


def test_an_estimator_learns_even_if_compiling_has_taken_the_time(key, quick, toy):
    """Otherwise the refresh before its first step would count as one in every step."""
    objective, params, data = toy
    path = jax.tree.map(lambda p: jnp.repeat(p[None], 300, 0), params)
    spot = Spot(objective, params, path, data, optax.adam(1e-2), no_reference(3))
    started = quell.closed_form().start(key, objective, params, data)
    loop = loop_of(spot, started, 4)
    at = (objective, params, spot.optimizer, loop, started.init(key, params))
    metric = metric_at(key, *at, seconds=0.01)
    cell = measured_cell(key, spot, metric, started, loop, 4, precise=0.0, seconds=1e-3)
    assert cell.learned.steps > 100
    assert cell.learned.refreshes < 10


def test_rare_work_has_a_time_even_if_none_is_left(key):
    calls = []
    loop = Stepper(None, None, None, 1, None, lambda key, state: calls.append(key))
    assert 0 <= refresh_seconds(key, loop, (), seconds=-1.0) < 1
    assert len(calls) == 1


def test_what_is_not_timed_at_a_larger_size_grows_as_plain_and_is_named(key, quick, toy):
    objective, params, data = toy
    found = recommend(key, objective, params, data, batch_size=3, seconds=1e-3, num_steps=0)
    assert {choice.name for choice in found.choices} == {"plain", "antithetic"}
    assert {choice.batch_size for choice in found.choices} == {3}
    assert "left out: 0.001 s do not suffice" in found.unavailable["closed-form"]
    assert "batch size is left as it is" in found.unavailable["plain, batch size 12"]
    assert "Note: it took" in str(found)
    # Both may choose the size, although plain alone was timed at the larger one.
    rows = [row("antithetic", 4500.0, 1.1e-3), row("plain", 5000.0, 1.1e-3)]
    both = advice(rows, times={("plain", 160): Interval(2.6e-3, 2.6e-3, 2.6e-3)})
    assert all(choice.batch_size > 10 for choice in both.choices)


def test_an_interruption_keeps_what_was_measured(key, quick, toy, monkeypatch):
    objective, params, data = toy
    monkeypatch.setattr(ranking.Budget, "left", lambda self: 0.5)  # however slow the machine

    def interrupt(name, size):
        if name == "pairs":
            raise KeyboardInterrupt

    settings = {"batch_sizes": (3,), "seconds": 0.5, "report": interrupt}
    baselines = {"plain": monte_carlo(), "pairs": antithetic()}
    found = compare(key, objective, params, data, {}, baselines=baselines, **settings)
    assert [row.name for row in found.rows] == ["plain"]
    assert found.unavailable == {"pairs, batch size 3": "interrupted"}


@pytest.mark.slow
def test_recommend_measures_and_says_why(key, quick, toy):
    objective, params, data = toy
    found = recommend(key, objective, params, data, batch_size=5, seconds=60, num_steps=40)
    names = [choice.name for choice in found.choices]
    assert sorted(names) == ["antithetic", "closed-form", "plain"]
    assert found.name in names
    assert found.name in str(found)
    assert found.to_json()["name"] == found.name
    fitted = quell.fit(
        key, objective, params, data, optax.sgd(1e-4), num_steps=3, batch_size=5,
        estimator=found.estimator,
    )  # fmt: skip
    assert jax.tree.structure(fitted.params) == jax.tree.structure(params)
    with pytest.raises(ValueError, match="batch_size"):
        recommend(key, objective, params, data, batch_size=N + 1)
