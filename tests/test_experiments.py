"""The tools of the experiments: variances, the bound on all data, the pair of figure 1."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from quell.diagnostics.variance import nested_parts
from quell.gaussian import packed_identity
from quell_paper import order_bias
from quell_paper.config import DEEPEST, PAPER, QUICK, OrderBias, Sampling, Variate
from quell_paper.illustration import find_pair, remaining
from quell_paper.jobs import cached, tidy
from quell_paper.order_bias import squared_mean
from quell_paper.problems import PROBLEMS, distinct, nelbo
from quell_paper.run import readable
from quell_paper.variates import control, correct


def test_draws_and_points_are_told_apart():
    rng = np.random.default_rng(0)
    points = 2.0 * rng.standard_normal((4000, 1, 3))
    draws = 1.0 * rng.standard_normal((4000, 5, 3))
    within, between = nested_parts(jnp.asarray(points + draws))
    # Standard errors of the two: 3·√(2/16000) and 3·(4 + 0.2)·√(2/4000), about.
    assert abs(within - 3 * 1.0) < 5 * 0.035
    assert abs(between - 3 * 4.0) < 5 * 0.3


def test_a_bias_is_found_where_there_is_one_and_only_there():
    rng = np.random.default_rng(0)
    shared = rng.standard_normal((400, 1, 50))  # common to the draws of a batch
    noise = jnp.asarray(shared + rng.standard_normal((400, 4, 50)))
    size, z = squared_mean(noise)
    # By batch the variance is 1 + 1/4; of the mean, 1.25/400 in each of 50 coordinates.
    assert abs(size) < 5 * np.sqrt(2 * 50) * 1.25 / 400
    assert abs(z - 1) < 5 * np.sqrt(2 / 50)
    size, z = squared_mean(noise + 0.3)
    assert abs(size - 50 * 0.09) < 5 * 2 * np.sqrt(50 * 0.09 * 1.25 / 400)
    assert z > 10


@pytest.mark.slow
def test_learning_from_a_batch_before_correcting_it_is_biased_and_after_it_is_not():
    plan = replace(
        QUICK["logistic"],
        static=replace(QUICK["logistic"].static, frozen_after=(2,), measured_after=(20,)),
        order_bias=OrderBias(
            (20,), Sampling(batches=200, draws=4), ("squared_difference",), ((8,),)
        ),
    )
    (job,) = order_bias.jobs(plan)
    z = job.run().groupby("order")["z"].mean()
    assert z["apply_then_learn"] < 3  # 1 on average over 3 seeds and 14 dependent parameters
    assert z["learn_then_apply"] > 5


@pytest.mark.slow
def test_the_bound_on_distinct_rows_is_the_bound_on_all_of_them(key):
    problem = PROBLEMS["logistic"]()
    rows = distinct("logistic")
    assert int(rows.counts.sum()) == problem.objective.num_data
    assert rows.counts.size == 24
    mean = jnp.array([0.3, -0.2, 0.5, 0.1])
    # A posterior so narrow that draws do not matter.
    narrow = {"mean": mean, "scale": packed_identity(4, 1e-6)}
    noise = problem.objective.sample_noise(key, problem.objective.num_data)
    exact = problem.objective.value(narrow, noise, problem.data)
    np.testing.assert_allclose(nelbo(key, problem.objective, narrow, rows, 3), exact, rtol=1e-5)


@pytest.mark.slow
def test_correcting_is_what_the_transformation_does_before_it_learns(key):
    problem = PROBLEMS["logistic"]()
    variate = Variate("quadratic", "squared_difference", (4,))
    params, batch = problem.init(key), jax.tree.map(lambda leaf: leaf[:10], problem.data)
    transformation = control(problem, variate, 1e-2, params, key)
    state = transformation.init(params)
    for step in range(3):
        noise = problem.objective.sample_noise(jax.random.fold_in(key, step), 10)
        gradient = problem.objective.gradient(params, noise, batch)
        expected, new = transformation.update(gradient, state, params, noise=noise, batch=batch)
        found = correct(problem, variate, gradient, state, params, noise, batch)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)
        state = new
    assert not np.allclose(found["mean"], gradient["mean"])


def test_the_pair_is_one_that_a_common_coefficient_cannot_serve():
    best = np.array([1.0, 1.1, 5.0, -4.0])
    variance = best**2 + np.array([0.5, 0.01, 0.2, 9.0])
    a, b = find_pair(best, variance, harm=1.5, served=0.2)
    assert (a, b) == (1, 2)
    shared = (best[a] + best[b]) / 2
    assert remaining(shared, best[a], variance[a]) > 1.5 * variance[a]


def test_tables_have_a_row_for_each_combination():
    value = np.arange(6.0).reshape(2, 3)
    table = tidy({"seed": [0, 1], "step": [1, 2, 3]}, value=value)
    assert table.to_dict("list") == {
        "seed": [0, 0, 0, 1, 1, 1],
        "step": [1, 2, 3, 1, 2, 3],
        "value": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0],
    }


def test_a_cached_function_computes_once_for_several_threads():
    from threading import Barrier, Thread

    calls, barrier = [], Barrier(4)

    @cached
    def slow(x):
        calls.append(x)
        return x

    def ask():
        barrier.wait()
        slow(1)

    threads = [Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls == [1]


def test_the_defaults_are_the_papers():
    for model, rate in (("logistic", 1e-2), ("deep-gp", 1e-3)):
        plan = PAPER[model]
        assert plan.main_learning_rate == rate
        assert plan.learning_rate == 1e-2
        assert plan.batch_size == 10
        assert plan.static.frozen_after == (10, 200, 1000)
        assert max(plan.static.measured_after) == 1000
        assert plan.static.rates_for("squared_difference") == (1e-2, 1e-3)
        assert rate in plan.static.rates_for("partial_gradients")
        assert plan.traces.num_steps == 2000
        assert (plan.step_time.repetitions, plan.step_time.runs) == (100, 10)
        assert DEEPEST in plan.dynamic.networks
        assert QUICK[model].seeds < plan.seeds
        assert plan.seeds == 10
    assert (PAPER["logistic"].traces.nelbo_draws, PAPER["deep-gp"].traces.nelbo_draws) == (100, 10)


def test_durations_for_people():
    assert [readable(s) for s in (0.4, 59.6, 61, 7300)] == [
        "0 s",
        "1 min 0 s",
        "1 min 1 s",
        "2 h 1 min",
    ]
