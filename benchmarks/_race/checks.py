"""What the closed form promises beside the race: its price, its refreshes, and the noise it leaves.

`prices` needs a quiet machine; `noise_left` and `limit` do not look at the clock.
"""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.compilation_cache import compilation_cache
from jax.flatten_util import ravel_pytree

import quell
from _race import bounds
from _race.bounds import Evaluator
from _race.contestants import Setting, with_setting
from _race.problems import Problem
from _race.runs import Racer, racer, replayed, timed
from quell.estimators._types import batch_of
from quell.training.batches import with_replacement
from quell.training.loop import run_keys

ROUNDS = 7
ADAM = 1e-2
LIMIT_STEPS = (1000, 10_000)
LIMIT_PEAKS = {"Adam": (0.001, 0.003, 0.01, 0.03, 0.1), "natural": (0.03, 0.1, 0.3, 1.0, 3.0)}


def prices(ready: Callable, problem: Problem, batches: tuple[int, ...], cold: bool) -> dict:
    """The closed form's step against that of pairs, and the share of its refreshes."""
    step = {}
    for batch in batches:
        both = [ready(name, "Adam", batch) for name in ("closed form", "pairs")]
        times = np.array([[_stretch(one) for one in both] for _ in range(ROUNDS)])
        step[str(batch)] = {
            "closed form": float(np.median(times[:, 0])),
            "pairs": float(np.median(times[:, 1])),
            "ratio": float(np.median(times[:, 0] / times[:, 1])),
        }
    batch = batches[-1]
    ours = ready("closed form", "Adam", batch)
    shares, seeds = {}, 3 if problem.objective.num_data < 10**5 else 1
    for epochs in (1, 10):
        num_steps = max(10, epochs * problem.objective.num_data // batch)
        runs = [timed(ours, Setting(batch, ADAM, False), num_steps, seed) for seed in range(seeds)]
        shares[str(epochs)] = float(
            np.median([sum(s for _, s in run.refreshes) / run.seconds[-1] for run in runs])
        )
    found = {"step": step, "refresh_share": shares, "refresh_batch": batch}
    return found | ({"cold": _cold_starts(problem, batch)} if cold else {})


def _stretch(one: Racer) -> float:
    """Seconds of a step, refreshes apart."""
    keys = run_keys(jax.random.key(7))
    carried = one.loop.start(keys, one.problem.init(keys.params))
    state = with_setting(carried.optimizer_state, Setting(one.batch, ADAM, False), 1)
    carried = carried._replace(optimizer_state=state)
    if one.loop.refresh_now:
        carried = one.loop.refresh_now(keys, carried, one.problem.data, 0)
    jax.block_until_ready(carried)
    count = min(one.loop.length, max(64, int(0.05 / one.per_step)))
    began = time.perf_counter()
    jax.block_until_ready(one.loop.advance(keys, carried, one.problem.data, 1, count))
    return (time.perf_counter() - began) / count


def _cold_starts(problem: Problem, batch: int) -> dict:
    """Seconds from nothing to the end of the first step, compilation included."""
    directory = jax.config.jax_compilation_cache_dir  # pyright: ignore
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()
    found = {}
    for name, make in (
        ("plain", quell.monte_carlo),
        ("pairs", quell.antithetic),
        ("closed form", quell.closed_form),
    ):
        jax.clear_caches()
        found[name] = racer(problem, make(), "Adam", batch).cold
    jax.config.update("jax_compilation_cache_dir", directory)
    compilation_cache.reset_cache()
    return found


def noise_left(ours: Racer, config: dict, samples: int = 128) -> dict:
    """The trace of the closed form's covariance over that of pairs, at every tenth of a run."""
    problem = ours.problem
    setting = Setting(config["batch"], config["peak"], config["cosine"])
    N, objective, data = problem.objective.num_data, problem.objective, problem.data
    pairs = quell.antithetic().start(jax.random.key(0), objective, problem.init, data)

    def spread(started, state, params, key):
        def one(key):
            index_key, draw_key = jax.random.split(key)
            batch = batch_of(data, jax.random.randint(index_key, (setting.batch,), 0, N))
            found = started.estimate(draw_key, objective, params, batch, state).gradient
            return ravel_pytree(found)[0]

        keys = jax.random.split(key, samples)
        return jax.lax.map(one, keys).var(0, ddof=1).sum()

    compiled = jax.jit(
        lambda state, params, key: (
            spread(ours.started, state, params, key) / spread(pairs, (), params, key)
        )
    )
    ratios: list[float] = []
    num_steps = max(10, config["num_steps"])

    def look(carried, step):
        key = jax.random.key(step)
        ratios.append(float(compiled(carried.estimator_state, carried.params, key)))

    replayed(
        ours, setting, num_steps, 0, at=[round(num_steps * i / 10) for i in range(1, 11)], look=look
    )
    settings = {k: config[k] for k in ("batch", "peak", "cosine", "num_steps")}
    return settings | {"tenths": ratios}


def limit(problem: Problem, judge: Evaluator, batch: int, estimators: dict[str, Any]) -> dict:
    """Where tuned runs with replacement end, against the limit ν/T."""
    with jax.enable_x64(True):
        best = jax.tree.map(bounds._double, judge.best)
        data = jax.tree.map(bounds._double, problem.data)
        flat, unravel = ravel_pytree(best)
        value, prior = problem.bound.value, problem.bound.prior
        H = jax.jit(jax.hessian(lambda v, data: value(unravel(v), data) + prior(unravel(v))))(
            flat, data
        )
        H = np.asarray(H)
    found = {}
    for name, make in estimators.items():
        row: dict[str, Any] = {"nu": _nu(problem, judge, make(), batch, H)}
        ends: dict[int, list] = {steps: [] for steps in LIMIT_STEPS}
        for kind, peaks in LIMIT_PEAKS.items():
            ready = racer(problem, make(), kind, batch, with_replacement)
            for peak in peaks:
                for cosine in (True, False):
                    for steps in LIMIT_STEPS:
                        gaps = []
                        for seed in range(5):
                            _, _, last, average, _ = replayed(
                                ready, Setting(batch, peak, cosine), steps, seed, at=[steps]
                            )
                            chosen = last if cosine else average
                            gaps.append(judge.full(chosen)[0] - judge.optimum)
                        median = float(np.median(np.nan_to_num(gaps, nan=1e30)))
                        ends[steps].append((median, kind, peak, cosine))
        for steps, all_ends in ends.items():
            least = min(all_ends)
            row[str(steps)] = {
                "gap": least[0], "limit": row["nu"] / steps, "ratio": least[0] * steps / row["nu"],
                "optimiser": least[1], "peak": least[2], "cosine": least[3],
            }  # fmt: skip
        found[name] = row
    return {"batch": batch, "limit": found}


def _nu(problem: Problem, judge: Evaluator, estimator: Any, batch: int, H: np.ndarray) -> float:
    """½ tr(H⁻¹Σ) at the optimum, the estimator's state after a thousand steps there."""
    N, samples = problem.objective.num_data, 4000
    still = problem._replace(init=lambda key: jax.tree.map(jnp.asarray, _single(judge.best)))
    ready = racer(still, estimator, "Adam", batch, with_replacement)
    kept: list[Any] = []
    replayed(
        ready, Setting(batch, 0.0, False), 1000, 0, at=[1000], look=lambda c, _: kept.append(c)
    )
    carried = kept[-1]

    @jax.jit
    def gradients(keys, state, params):
        def one(key):
            index_key, draw_key = jax.random.split(key)
            rows = batch_of(problem.data, jax.random.randint(index_key, (batch,), 0, N))
            return ravel_pytree(
                ready.started.estimate(draw_key, problem.objective, params, rows, state).gradient
            )[0]

        return jax.lax.map(one, keys)

    keys = jax.random.split(jax.random.key(5), samples)
    g = np.asarray(gradients(keys, carried.estimator_state, carried.params), float)
    g -= g.mean(0)
    return float(0.5 * (g * np.linalg.solve(H, g.T).T).sum() / (samples - 1))


def _single(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), tree)
