"""The instruments of the race: its bound, its clock and its choice, on small problems."""

import math
import signal
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import quell

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from _race import bounds, files, page, runs, tuning
from _race.problems import Problem

from quell.models import crossed_effects, logistic_regression, poisson_regression

pytestmark = pytest.mark.usefixtures("quick")


def problem(model, bound, data):
    N = jax.tree.leaves(data)[0].shape[0]
    return Problem("small", model.objective(N), model.init, data, bound, (N,), 1.0)


def small(name):
    """A model with eight rows, its bound, and params that are not the first."""
    rng = np.random.default_rng(3)
    x, y = jnp.asarray(rng.normal(size=(8, 2)), float), jnp.asarray(rng.integers(0, 2, 8), float)
    if name == "crossed":
        model, bound = crossed_effects((3, 2)), bounds.crossed((3, 2), (16, 24))
        levels = np.stack([rng.integers(0, 3, 8), rng.integers(0, 2, 8)], 1)
        data = {"levels": jnp.asarray(levels), "y": y}
    else:
        make, expected = {
            "logistic": (logistic_regression, bounds.logistic),
            "poisson": (poisson_regression, bounds.poisson),
        }[name]
        model, bound = make(2), bounds.linear(expected, quell.full_covariance)
        data = {"x": x, "y": y}
    start = model.init(jax.random.key(0))
    params = jax.tree.map(lambda p: p + 0.2 * jnp.asarray(rng.normal(size=p.shape), p.dtype), start)
    return problem(model, bound, data), params


@pytest.mark.parametrize("name", ["logistic", "poisson", "crossed"])
def test_the_bound_is_the_mean_of_the_objective(name):
    """Against 4,000 pairs of draws, within four standard errors."""
    given, params = small(name)
    objective, data = given.objective, given.data

    def value(key):
        half = objective.sample_noise(key, 8)
        noise = jax.tree.map(lambda e: jnp.concatenate([e, -e]), half)
        return objective.value(params, noise, data)

    seen = np.asarray(jax.jit(jax.vmap(value))(jax.random.split(jax.random.key(1), 4000)), float)
    exact = float(given.bound.value(params, data).sum() + given.bound.prior(params))
    assert abs(exact - seen.mean()) < 4 * seen.std() / math.sqrt(len(seen))


@pytest.mark.slow
def test_the_ranking_is_the_gap_on_all_rows():
    """With all rows, the linear part at the optimum sums to zero."""
    given, params = small("logistic")
    judge = bounds.evaluator(given)
    stacked = jax.tree.map(lambda p: np.stack([p, 0.5 * p]), params)
    gaps = judge.full(stacked) - judge.optimum
    assert (gaps > 0).all()
    np.testing.assert_allclose(judge.rough(stacked), gaps, atol=1e-5)


def test_a_target_is_reached_between_two_marks():
    seconds, gaps = np.array([0.1, 0.2, 0.4]), np.array([100.0, 10.0, 0.1])
    assert page.crossing(seconds, gaps, 10.0) == pytest.approx(0.2)
    assert page.crossing(seconds, gaps, 1.0) == pytest.approx(0.2 * math.sqrt(2))
    assert page.crossing(seconds, gaps, 0.01) == math.inf


def test_times_of_marks_lie_between_visits():
    run = runs.Run([0, 0, 10, 20], [0.0, 1.0, 2.0, 4.0], [(0, 1.0)], 0.0, 1.0)
    assert runs.seconds_at(run, [5, 10, 15]) == pytest.approx([1.5, 2.0, 3.0], abs=1e-6)


@pytest.mark.parametrize("before", [None, "before"])
def test_a_kill_in_the_middle_of_a_job_s_file_leaves_the_file_as_it_was(tmp_path, before):
    path = tmp_path / "tune" / "plain.json"
    if before is not None:
        with files.whole(path) as file:
            file.write(before.encode())
    script = f"""
import os, signal, sys
from pathlib import Path
sys.path.append({str(Path(files.__file__).parents[1])!r})
from _race.files import whole
with whole(Path({str(path)!r})) as file:
    file.write(b"half")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", script]).returncode == -signal.SIGKILL
    assert path.exists() == (before is not None)
    assert before is None or path.read_text() == before
    assert list(path.parent.glob("*.json")) == ([] if before is None else [path])
    with files.whole(path) as file:  # the next run does the job again
        file.write(b"whole")
    assert path.read_text() == "whole"
    assert [found.name for found in path.parent.iterdir()] == [path.name]


def test_each_target_picks_the_run_that_is_there_first():
    def run(batch, cosine, seconds, last, average):
        found = {"batch": batch, "peak": 0.1, "cosine": cosine, "num_steps": 9}
        return found | {"seconds": seconds, "last": [last], "average": [average]}

    slow = run(100, True, [1.0, 2.0], [5.0, 0.05], [9.0, 9.0])
    quick = run(10, False, [0.1, 0.2], [8.0, 3.0], [4.0, 2.0])
    chosen = tuning.picks({"runs": [slow, quick]}, [10.0, 1.0, 0.01])
    assert [(c["batch"], c["use"]) for c in chosen] == [(10, "last"), (100, "last")]
