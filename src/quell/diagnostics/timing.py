"""The cost of a step: times of compiled loops that take turns, and memory of one estimate."""

import math
import time
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree

from quell.diagnostics.statistics import Interval, median_interval
from quell.diagnostics.stepper import Stepper, has_state
from quell.estimators._types import Started, batch_of
from quell.objective import Objective

Name = TypeVar("Name", bound=Hashable)

_TURN = 0.05  # seconds of one turn of one loop: far above the resolution of the clock
_DISPATCHES = 20  # a turn takes at least as long as so many calls without a step
_TURNS = 100  # the most turns of one loop
_LEAST = 3  # the fewest turns, of which the median ignores an outlier
_STRETCH = 64, 4096  # steps, at least and at most, over which rare work is averaged
_STRETCHES = 8  # the number of stretches, if the time allows longer stretches


def in_turns(
    turns: Mapping[Name, Callable[[int], float]], *, rounds: int, seconds: float = math.inf
) -> dict[Name, list[float]]:
    """The times of competitors that take turns, so that a busy machine slows all of them alike.

    Args:
      turns: for each competitor, `turn(round)` takes one turn and gives its time.
      rounds: the most turns of each competitor.
      seconds: the time after which no further round begins; at least three rounds are run.
    """
    times: dict[Name, list[float]] = {name: [] for name in turns}
    began = time.monotonic()
    for number in range(rounds):
        if number >= _LEAST and time.monotonic() - began > seconds:
            break
        for name, turn in turns.items():
            times[name].append(turn(number))
    return times


def seconds_per_step(
    key: Key[Array, ""],
    loops: Mapping[Name, Stepper],
    states: Mapping[Name, PyTree[Array]],
    *,
    seconds: float,
) -> dict[Name, Interval]:
    """The typical time of a step in each of several loops, which take turns.

    States evolve from turn to turn. For a loop with a state the median is over stretches of 64
    steps and more, so that periodic work is counted. Such a loop takes the turns that one stretch
    needs, at most a tenth of the time beyond its share; if its steps are too slow for a stretch,
    periodic work is neglected as small compared with them. A turn has so many steps that the time
    of the call itself, which is subtracted, is small.

    Args:
      key: the key for batches and noise.
      loops: the loops, by name.
      states: the state in which each loop starts.
      seconds: the time for all turns together, with compilation; each loop has at least three.
    """
    states, until = dict(states), time.monotonic() + seconds
    share = min(_TURN, seconds / max(1, 10 * len(loops)))  # time for ten rounds
    counts, calls = {}, {}
    for name, loop in loops.items():
        calls[name], counts[name] = _calibrated(key, loop, states[name], share)

    def turn(name, number):
        loop, count = loops[name], counts[name]
        prepared = jax.block_until_ready(loop.prepare(jax.random.fold_in(key, number)))  # not timed
        began = time.perf_counter()
        states[name] = loop.advance(prepared, states[name], count)
        return max(time.perf_counter() - began - calls[name], 1e-9) / count

    turns = {name: partial(turn, name) for name in loops}
    times = in_turns(turns, rounds=_TURNS, seconds=max(0.0, until - time.monotonic()))
    stateful = [name for name in loops if has_state(states[name])]
    for name in stateful:
        missing = math.ceil(_STRETCH[0] / counts[name]) - len(times[name])
        if missing * counts[name] * np.median(times[name]) < seconds / (len(loops) + 10):
            times[name] += [turn(name, _TURNS + number) for number in range(missing)]
    return {
        name: median_interval(
            np.array(_over_stretches(taken, counts[name]) if name in stateful else taken)
        )
        for name, taken in times.items()
    }


def refresh_seconds(
    key: Key[Array, ""], loop: Stepper, state: PyTree[Array], *, seconds: float = math.inf
) -> float:
    """The time of the rare work between steps, which has run before; zero without any.

    The median of three, or of fewer if they take longer than `seconds`; of one if none are left.
    """
    if loop.refresh is None:
        return 0.0
    taken = []
    while not taken or (len(taken) < _LEAST and sum(taken) <= seconds):
        began = time.perf_counter()
        loop.refresh(jax.random.fold_in(key, len(taken)), state)
        taken.append(time.perf_counter() - began)
    return float(np.median(taken))


def peak_memory(
    objective: Objective,
    params: PyTree[Array],
    data: PyTree[Array],
    batch_size: int,
    started: Started,
    state: PyTree[Array],
) -> int | None:
    """Bytes that one compiled estimate needs besides its inputs, if the device can tell."""

    def estimate(key, params, batch, state):
        return started.estimate(key, objective, params, batch, state)

    batch = jax.eval_shape(lambda d: batch_of(d, jnp.arange(batch_size)), data)
    compiled = jax.jit(estimate).lower(jax.random.key(0), params, batch, state).compile()
    analysis = compiled.memory_analysis()
    if analysis is None:
        return None
    return int(analysis.temp_size_in_bytes + analysis.output_size_in_bytes)


def _over_stretches(times: list[float], count: int) -> Any:
    """The means over stretches of turns of `count` steps each, long enough for rare work.

    >>> _over_stretches([1.0, 1.0, 1.0, 9.0] * 5, 16).tolist()
    [3.0, 3.0, 3.0, 3.0, 3.0]
    """
    steps = len(times) * count
    if steps < _STRETCH[0]:
        return times
    length = min(max(steps // _STRETCHES, _STRETCH[0]), _STRETCH[1])
    turns = min(len(times), math.ceil(length / count))
    whole = len(times) - len(times) % turns  # a short last stretch is dropped
    return np.reshape(times[:whole], (-1, turns)).mean(1)


def _calibrated(key, loop: Stepper, state, seconds: float) -> tuple[float, int]:
    """The time of a call without a step, and a number of steps that takes far longer than that."""
    prepared = loop.prepare(key)

    def timed(count):
        began = time.perf_counter()
        loop.advance(prepared, state, count)
        return time.perf_counter() - began

    timed(1)  # compiles
    call = min(timed(0) for _ in range(_LEAST))
    wanted, count = max(seconds / 2, _DISPATCHES * call), 1
    while count < loop.length:
        taken = min(timed(count), timed(count))  # one interruption must not end the search
        if taken > wanted:
            break
        count = min(loop.length, 2 * count)
    return call, count
