"""Runs: the library's own compiled loop, timed as `fit` goes, and replayed to see its params.

A timed run visits the host as often as `fit` does and keeps nothing but times. The same run is
replayed, untimed, for the params on the way: results do not depend on how a run is cut.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from _race.contestants import Setting, tuned, with_setting
from _race.problems import Problem
from quell.estimators._types import Started
from quell.training.batches import Batches, reshuffle
from quell.training.fit import _chunk_length
from quell.training.loop import Carried, Loop, compiled_loop, run_keys, start_key

MARKS = 20  # params kept along a run
STRETCH = 0.01  # seconds of steps that are timed at once, the fastest of
STRETCHES = 12
ALONE = 0.93  # the share of a core during a run that counts as a machine of its own
ATTEMPTS = 6  # to find one


class Racer(NamedTuple):
    """A compiled contestant at one batch size.

    Attributes:
      problem, started, loop: what runs.
      batch: |B|.
      cold: seconds to start and to compile.
      per_step: seconds of one step, the least of a few stretches.
      per_refresh: seconds of a refresh, or 0.
    """

    problem: Problem
    started: Started
    loop: Loop
    batch: int
    cold: float
    per_step: float
    per_refresh: float


class Run(NamedTuple):
    """A timed run.

    Attributes:
      steps: the step of each visit to the host.
      seconds: the time since the start at each visit, after its refresh.
      refreshes: pairs of a step and the seconds of its refresh.
      check: the sum of all final params, which a replay must reproduce.
      core: the time of the processor over the time of the clock.
    """

    steps: list[int]
    seconds: list[float]
    refreshes: list[tuple[int, float]]
    check: float
    core: float


def racer(
    problem: Problem, estimator: Any, kind: str, batch: int, batches: Batches = reshuffle
) -> Racer:
    """Start and compile a contestant, refresh included, and time its step."""
    began = time.perf_counter()
    key = jax.random.key(0)
    params = problem.init(run_keys(key).params)
    started = estimator.start(start_key(key), problem.objective, params, problem.data)
    loop = compiled_loop(
        started,
        problem.objective,
        tuned(kind),
        batches,
        batch_size=batch,
        length=_chunk_length(problem.data, batch, [1024]),
    )
    keys, carried = run_keys(key), loop.start(run_keys(key), params)
    loop.refresh(keys, loop.start(keys, params), problem.data, 0)  # asks whether it is due
    now = loop.refresh_now or (lambda keys, carried, data, step: carried)
    carried = now(keys, carried, problem.data, 0)
    carried = _advanced(loop, keys, carried, problem, 0, 1)
    cold = time.perf_counter() - began
    refreshes = []
    for _ in range(3 if loop.refresh_now else 0):
        fresh = jax.block_until_ready(loop.start(keys, params))
        began = time.perf_counter()
        jax.block_until_ready(now(keys, fresh, problem.data, 0))
        refreshes.append(time.perf_counter() - began)
    per_refresh = min(refreshes, default=0.0)

    def stretch_of(count, carried):
        began = time.perf_counter()
        carried = _advanced(loop, keys, carried, problem, 1, count)
        return (time.perf_counter() - began) / count, carried

    count = 1
    taken, carried = stretch_of(1, carried)
    while count < loop.length and taken * count < STRETCH:
        count = min(loop.length, 2 * count)
        taken, carried = stretch_of(count, carried)
    times = [taken]
    for _ in range(STRETCHES):
        taken, carried = stretch_of(count, carried)
        times.append(taken)
    return Racer(problem, started, loop, batch, cold, min(times), per_refresh)


def timed(racer: Racer, setting: Setting, num_steps: int, seed: int) -> Run:
    """One run from cold params, timed; everything is compiled before.

    A run that had to share its core is repeated, and the fastest counts: the steps are the same.
    """
    runs: list[Run] = []
    while not runs or (runs[-1].core < ALONE and len(runs) < ATTEMPTS):
        runs.append(_timed_once(racer, setting, num_steps, seed))
    return min(runs, key=lambda run: run.seconds[-1])


def _timed_once(racer: Racer, setting: Setting, num_steps: int, seed: int) -> Run:
    loop, problem = racer.loop, racer.problem
    keys, carried = _start(racer, setting, num_steps, seed)
    jax.block_until_ready(carried)
    steps, seconds, refreshes = [0], [0.0], []
    step, used, began = 0, time.process_time(), time.perf_counter()
    while step < num_steps:
        before = time.perf_counter()
        after = loop.refresh(keys, carried, problem.data, step)
        if after is not carried:
            jax.block_until_ready(after)
            refreshes.append((step, time.perf_counter() - before))
            steps.append(step)
            seconds.append(time.perf_counter() - began)
        end = min(num_steps, step + loop.length, loop.next_visit(step))
        carried = _advanced(loop, keys, after, problem, step, end - step)
        step = end
        steps.append(step)
        seconds.append(time.perf_counter() - began)
    core = (time.process_time() - used) / seconds[-1]
    return Run(steps, seconds, refreshes, _sum(carried.params), core)


def replayed(
    racer: Racer,
    setting: Setting,
    num_steps: int,
    seed: int,
    *,
    at: list[int] | None = None,
    look: Callable[[Carried, int], None] = lambda carried, step: None,
):
    """The same run again, with a look at some of its steps.

    Returns:
      The steps, the refreshes before them, params and averages `[T, ...]`, padded to `MARKS` where
      the steps are not given, and the sum of the params at the end.
    """
    loop, problem = racer.loop, racer.problem
    keys, carried = _start(racer, setting, num_steps, seed)
    least = max(1.0, num_steps / 300)
    marks = np.unique(
        np.geomspace(least, num_steps, MARKS).round().astype(int) if at is None else at
    )
    kept, step, refreshes, counts = [], 0, 0, []
    for mark in marks:
        while step < mark:
            after = loop.refresh(keys, carried, problem.data, step)
            refreshes += after is not carried
            carried = after
            end = int(min(mark, step + loop.length, loop.next_visit(step)))
            carried = _advanced(loop, keys, carried, problem, step, end - step)
            step = end
        look(carried, step)
        counts.append(refreshes)
        kept.append(jax.tree.map(np.asarray, (carried.params, carried.optimizer_state.average)))
    missing = MARKS - len(kept) if at is None else 0
    padded = kept + kept[-1:] * missing  # one shape, one compilation
    last, average = jax.tree.map(lambda *leaves: np.stack(leaves), *padded)
    return marks.tolist(), counts, last, average, _sum(carried.params)


def seconds_at(run: Run, steps: list[int]) -> list[float]:
    """The time of each step, linear between the visits of the timed run."""
    positions = np.array(run.steps, float)
    positions[1:] += 1e-9 * np.arange(1, len(positions))  # a refresh takes time and no step
    return np.interp(steps, positions, run.seconds).tolist()


def _start(racer: Racer, setting: Setting, num_steps: int, seed: int):
    keys = run_keys(jax.random.key(1000 + seed))
    carried = racer.loop.start(keys, racer.problem.init(keys.params))
    state = with_setting(carried.optimizer_state, setting, num_steps)
    return keys, carried._replace(optimizer_state=state)


def _advanced(loop: Loop, keys, carried, problem: Problem, step: int, count: int):
    """At most `count` steps, done."""
    while count > 0:
        some = min(count, loop.length)
        carried, _ = loop.advance(keys, carried, problem.data, step, some)
        step, count = step + some, count - some
    return jax.block_until_ready(carried)


def _sum(params) -> float:
    return float(sum(jnp.sum(leaf) for leaf in jax.tree.leaves(params)))
