"""The tools of the experiments: variances, the bound on all data, the pair of figure 1."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from quell.diagnostics.variance import nested_parts
from quell.training.loop import run_keys
from quell_paper import order_bias
from quell_paper.config import (
    BATCH_SIZE,
    DEEPEST,
    EXPERIMENTS,
    FULL,
    LITERAL,
    NETWORKS,
    PAPER,
    QUICK,
    SUM,
    UNIT,
    OrderBias,
    Sampling,
    Variate,
)
from quell_paper.illustration import find_pair, remaining
from quell_paper.jobs import cached, number_of_weights, tidy
from quell_paper.order_bias import squared_mean
from quell_paper.problems import PROBLEMS, distinct, exact_nelbo, sampled_nelbo
from quell_paper.reproduce import all_jobs
from quell_paper.run import readable
from quell_paper.training import streams
from quell_paper.variates import control, correct, xavier_without_bias

_QUICK = QUICK["logistic"]  # before other tests shrink it


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
        seeds=3,
        order_bias=OrderBias(
            (20,), Sampling(batches=200, draws=4), networks=((8,),), scales=(UNIT,)
        ),
    )
    (job,) = order_bias.jobs(plan)
    z = job.run().groupby("order")["z"].mean()
    assert z["apply_then_learn"] < 3  # 1 on average over 3 seeds and 14 dependent parameters
    assert z["learn_then_apply"] > 5


def test_the_exact_bound_is_the_mean_of_sampled_bounds(key):
    problem = PROBLEMS["logistic"]()
    rows = distinct("logistic")
    assert int(rows.counts.sum()) == problem.objective.num_data
    assert rows.counts.size == 24
    params = problem.init(key) | {"mean": jnp.array([1.3, -0.2, 2.5, -1.1])}
    exact = exact_nelbo(problem.objective, params, rows)
    keys = jax.random.split(key, 400)
    sample = jax.vmap(lambda k: sampled_nelbo(k, problem.objective, params, rows, 50))
    sampled = np.asarray(sample(keys))
    assert abs(exact - sampled.mean()) < 5 * sampled.std() / np.sqrt(len(sampled))


def test_the_exact_bound_is_that_of_a_finer_rule(key):
    problem, rows = PROBLEMS["logistic"](), distinct("logistic")
    params = problem.init(key) | {"mean": jnp.array([3.0, -2.0, 1.0, 0.5])}
    x, y = np.asarray(rows.rows["x"], float), np.asarray(rows.rows["y"], float)
    nodes, weights = np.polynomial.hermite_e.hermegauss(200)
    mean, spread = x @ np.asarray(params["mean"]), np.linalg.norm(x, axis=1)  # q starts at N(m, I)
    z = mean[:, None] + spread[:, None] * nodes
    losses = np.logaddexp(0, z) - y[:, None] * z
    expected = rows.counts @ (losses @ weights / weights.sum()) + problem.objective.regulariser(
        params
    )
    np.testing.assert_allclose(exact_nelbo(problem.objective, params, rows), expected, rtol=1e-5)


def test_streams_of_keys_are_independent_and_seeds_keep_theirs():
    plan = replace(PAPER["logistic"], seeds=4)
    keys = [np.asarray(jax.random.key_data(stream)) for stream in streams(plan)]
    later = [np.asarray(jax.random.key_data(s)) for s in streams(replace(plan, batch=1))]
    everything = np.concatenate(keys + later)
    assert len(np.unique(everything, axis=0)) == len(everything)
    of_runs = jax.vmap(lambda k: jnp.stack([jax.random.key_data(x) for x in run_keys(k)]))
    run = np.asarray(of_runs(streams(plan).run)).reshape(-1, 2)
    assert len(np.unique(np.concatenate([everything, run]), axis=0)) == len(everything) + len(run)
    larger = np.asarray(jax.random.key_data(streams(replace(plan, seeds=8)).lessons))
    lessons = streams(plan)._fields.index("lessons")
    np.testing.assert_array_equal(larger, np.concatenate([keys[lessons], later[lessons]]))


def test_raw_targets_are_the_papers_formula(key):
    """One step of the literal procedure, written out: Θ moves along −∂/∂Θ (G − Σ c_b w_b)²."""
    problem = PROBLEMS["logistic"]()
    params, batch = problem.init(key), jax.tree.map(lambda leaf: leaf[:BATCH_SIZE], problem.data)
    noise = problem.objective.sample_noise(key, BATCH_SIZE)
    gradient = problem.objective.gradient(params, noise, batch)
    G = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(gradient)])
    N, rate = problem.objective.num_data, 0.1
    for scale, total, kept in ((FULL, G, 1.0), (SUM, G * BATCH_SIZE / N, N / BATCH_SIZE)):
        variate = Variate("linear", "squared_difference", (), scale, "learn_then_apply")
        transformation = control(problem, variate, rate, params, key)
        args = {"noise": noise, "batch": batch}
        found, _ = transformation.update(gradient, transformation.init(params), params, **args)
        w = noise[0].sum(0)  # the coefficients start at zero, and Adam's first step is a sign
        c = rate * jnp.sign(w[:, None] * total)
        expected = G - kept * (w @ c)
        found = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(found)])
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-2)


def test_the_last_layer_starts_without_bias(key):
    layer = xavier_without_bias(key, (5, 8), jnp.float32)
    assert layer.shape == (5, 8)
    assert not layer[-1].any()
    assert layer[:-1].all()


def test_weights_are_counted_as_the_networks_have_them(key):
    problem = PROBLEMS["logistic"]()
    params = problem.init(key)
    for hidden in NETWORKS:
        variate = Variate("linear", "squared_difference", hidden, *LITERAL)
        state = jax.eval_shape(control(problem, variate, 0.1, params, key).init, params)
        leaves = jax.tree.leaves(state.coefficients.weights)
        assert sum(leaf.size for leaf in leaves) == number_of_weights("logistic", hidden)


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
        assert BATCH_SIZE == 10
        assert plan.static.frozen_after == (10, 200, 1000)
        assert max(plan.static.measured_after) == 1000
        assert plan.static.settings[0] == (FULL, rate)
        assert {rate for _, rate in plan.static.settings} == {1e-2, 1e-3}
        assert plan.traces.num_steps == 2000
        assert (plan.step_time.repetitions, plan.step_time.runs) == (100, 10)
        assert DEEPEST in plan.dynamic.networks
        assert LITERAL in plan.traces.procedures
    assert PAPER["deep-gp"].traces.nelbo_draws == 10


def test_the_quick_form_of_logistic_regression_is_a_part_of_the_full_run():
    plans = (_QUICK, PAPER["logistic"])
    quick, full = (
        {job.identity for job in all_jobs({"logistic": plan}, EXPERIMENTS) if not job.alone}
        for plan in plans
    )
    assert quick < full
    assert (plans[0].seeds, plans[0].looks) == (plans[1].seeds, plans[1].looks)


def test_durations_for_people():
    assert [readable(s) for s in (0.4, 59.6, 61, 7300)] == [
        "0 s",
        "1 min 0 s",
        "1 min 1 s",
        "2 h 1 min",
    ]
