"""The cost of a step: times of compiled loops that take turns, and memory of one estimate."""

import math
import time
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Int32, Key, PyTree

from quell._tree import batch_size as rows_of
from quell._tree import number_of_parameters, strongly_typed
from quell.estimators._types import Batch, Started, batch_of
from quell.objective import Objective
from quell.training.batches import reshuffle
from quell.training.loop import is_visit, next_visit

Name = TypeVar("Name", bound=Hashable)

_LENGTH_ROWS = 2**16  # the most indices computed at once
_PATH_NUMBERS = 2**22  # the most numbers in a path of parameters
_TURN = 0.05  # seconds of one turn of one loop: far above the resolution of the clock
_TURNS = 100  # the most turns of one loop
_LEAST = 3  # the fewest turns, of which the median ignores an outlier
_STRETCH = 64, 4096  # steps, at least and at most, over which rare work is averaged
_STRETCHES = 8  # the number of stretches, if the time allows longer stretches


class Stepper(NamedTuple):
    """A compiled loop of an estimator's steps along given parameters.

    Attributes:
      prepare: `prepare(key)` chooses the batches and keys of the next `length` steps.
      advance: `advance(prepared, state, steps, path)` gives the state after at most `length`
        steps, when they are done. The parameters of each step are in `path`, leaves
        `[length, ...]`; without a path the parameters stand still.
      length: the most steps of one call.
      refresh: `refresh(key, state, params)` gives the state after the estimator's rare work, if
        that is due; None for estimators without it.
    """

    prepare: Callable[[Key[Array, ""]], PyTree[Array]]
    advance: Callable[..., PyTree[Array]]
    length: int
    refresh: Callable[..., PyTree[Array]] | None = None


def stepper(
    objective: Objective,
    params: PyTree[Array],
    data: PyTree[Array],
    started: Started,
    batch_size: int,
    optimizer: optax.GradientTransformation | None = None,
) -> Stepper:
    """A loop of an estimator: gather a batch, estimate, update the state, add up the gradients.

    With an optimiser, which is then part of the cost of a step, its updates are added up instead.
    Parameters that stand still are read anew in every step, as if they moved: otherwise the
    compiler may hoist all work that depends on them alone out of the loop.
    """
    optimizer = optax.identity() if optimizer is None else optimizer
    most = _LENGTH_ROWS // batch_size, _PATH_NUMBERS // number_of_parameters(params)
    length = max(1, min(1000, *most))
    still = jax.tree.map(lambda p: jnp.repeat(jnp.asarray(p)[None], length, axis=0), params)

    def prepare(key):
        return _consecutive_batches(key, length, objective.num_data, batch_size)

    @jax.jit
    def loop(prepared, path, data, state, steps):
        indices, keys = prepared

        def body(i, carried):
            total, optimizer_state, state = carried
            params, batch = jax.tree.map(lambda p: p[i], path), batch_of(data, indices[i])
            estimate = started.estimate(keys[i], objective, params, batch, state)
            updates, optimizer_state = optimizer.update(estimate.gradient, optimizer_state, params)
            return jax.tree.map(jnp.add, total, updates), optimizer_state, estimate.state

        total = jax.tree.map(lambda p: jnp.zeros_like(p[0]), path)
        return lax.fori_loop(0, steps, body, (total, optimizer.init(total), state))

    def advance(prepared, state, steps, path=still):
        carried = loop(prepared, path, data, strongly_typed(state), steps)
        return jax.block_until_ready(carried)[-1]  # the gradients too: all of the work is done

    if started.refresh is None:
        return Stepper(prepare, advance, length)
    work = started.refresh
    due = jax.jit(lambda state: work.due(state, batch_size))
    run = jax.jit(
        lambda key, params, data, state: work.run(key, objective, params, data, batch_size, state)
    )

    def refresh(key, state, at=params):
        return run(key, at, data, strongly_typed(state)) if bool(due(state)) else state

    return Stepper(prepare, advance, length, refresh)


# Compiled at the level of the module, once for all estimators of one batch size.
@partial(jax.jit, static_argnums=(1, 2, 3))
def _consecutive_batches(
    key: Key[Array, ""], steps: int, num_data: int, batch_size: int
) -> tuple[Int32[Array, "steps B"], Key[Array, " steps"]]:
    """The batches of some steps of training, and a key for each step."""
    batch_key, noise_key = jax.random.split(key)
    indices = reshuffle(batch_key, 0, steps, num_data, batch_size)
    return indices, jax.random.split(noise_key, steps)


def state_after_path(
    key: Key[Array, ""],
    loop: Stepper,
    state: PyTree[Array],
    path: PyTree[Array],
    *,
    seconds: float = math.inf,
) -> PyTree[Array]:
    """The state after following parameters along a path, leaves `[T, ...]`, to its end.

    If the whole path would take longer than `seconds`, the state joins later, so that the remaining
    steps fit into the time and are a prime number.
    """
    if not _has_state(state):
        return state
    T = rows_of(path)
    if math.isfinite(seconds):
        steps, taken = _calibrated(key, loop, state, _TURN)
        T = largest_prime(min(T, int(seconds * steps / taken)))
    path, start = jax.tree.map(lambda p: p[-T:], path), 0
    while start < T:
        rows = np.minimum(start + np.arange(loop.length), T - 1)  # padded: one shape to compile
        part = jax.tree.map(lambda p, rows=rows: p[rows], path)
        here = jax.random.fold_in(key, start)
        state = _refreshed(here, loop, state, start, jax.tree.map(lambda p: p[0], part))
        steps = min(loop.length, T - start, next_visit(start) - start)
        state = loop.advance(loop.prepare(here), state, steps, part)
        start += steps
    return state


def _refreshed(key, loop: Stepper, state, step: int, *params):
    """The state before this step: refreshed if the step is a visit and the work is due."""
    if loop.refresh is None or not is_visit(step):
        return state
    return loop.refresh(jax.random.fold_in(key, 1), state, *params)


def largest_prime(most: int) -> int:
    """The largest prime up to `most`, and at least 1.

    After a prime number of steps, periodic work such as a snapshot or a refresh is never just due,
    so that the state is neither at its best nor at its worst.

    >>> largest_prime(1000), largest_prime(0)
    (997, 1)
    """
    for p in range(most, 1, -1):
        if all(p % d for d in range(2, math.isqrt(p) + 1)):
            return p
    return 1


def state_after_steps(
    key: Key[Array, ""], loop: Stepper, state: PyTree[Array], *, steps: int, seconds: float
) -> PyTree[Array]:
    """The state after `steps` steps at fixed parameters, or fewer if the time is short."""
    if not _has_state(state):
        return state
    state = loop.advance(loop.prepare(key), state, 0)  # compiles
    began, done, pace = time.monotonic(), 0, 1
    while done < steps and time.monotonic() - began < seconds:
        count = min(pace, loop.length, steps - done)
        prepared = loop.prepare(jax.random.fold_in(key, done))
        state = loop.advance(prepared, state, count)
        done += count
        pace = max(1, int(_TURN * done / max(time.monotonic() - began, 1e-9)))
    return state


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
) -> dict[Name, float]:
    """The typical time of a step in each of several loops, which take turns.

    States evolve from turn to turn. For a loop with a state the median is over stretches of 64
    steps and more, so that periodic work is counted. Such a loop takes the turns that one stretch
    needs, at most a second beyond its share; if its steps are too slow for a stretch, periodic
    work is neglected as small compared with them.

    Args:
      key: the key for batches and noise.
      loops: the loops, by name.
      states: the state in which each loop starts.
      seconds: the time for all turns together, after compilation; each loop has at least three.
    """
    states = dict(states)
    share = min(_TURN, seconds / max(1, 10 * len(loops)))  # time for ten rounds
    counts = {name: _calibrated(key, loop, states[name], share)[0] for name, loop in loops.items()}

    def turn(name, number):
        loop, count = loops[name], counts[name]
        prepared = jax.block_until_ready(loop.prepare(jax.random.fold_in(key, number)))  # not timed
        began = time.perf_counter()
        states[name] = loop.advance(prepared, states[name], count)
        return (time.perf_counter() - began) / count

    turns = {name: partial(turn, name) for name in loops}
    times = in_turns(turns, rounds=_TURNS, seconds=seconds)
    stateful = [name for name in loops if _has_state(states[name])]
    for name in stateful:
        missing = math.ceil(_STRETCH[0] / counts[name]) - len(times[name])
        if missing * counts[name] * np.median(times[name]) < seconds / len(loops) + 1:
            times[name] += [turn(name, _TURNS + number) for number in range(missing)]
    return {
        name: _over_stretches(taken, counts[name]) if name in stateful else _median(taken)
        for name, taken in times.items()
    }


def peak_memory(
    objective: Objective,
    params: PyTree[Array],
    batch: Batch,
    started: Started,
    state: PyTree[Array],
) -> int | None:
    """Bytes that one compiled estimate needs besides its inputs, if the device can tell."""

    def estimate(key, params, batch, state):
        return started.estimate(key, objective, params, batch, state)

    compiled = jax.jit(estimate).lower(jax.random.key(0), params, batch, state).compile()
    analysis = compiled.memory_analysis()
    if analysis is None:
        return None
    return int(analysis.temp_size_in_bytes + analysis.output_size_in_bytes)


def _has_state(state: PyTree[Array]) -> bool:
    return bool(jax.tree.leaves(state))


def _over_stretches(times: list[float], count: int) -> float:
    """The median over stretches of turns of `count` steps each, long enough for rare work.

    >>> _over_stretches([1.0, 1.0, 1.0, 9.0] * 5, 16), _over_stretches([1.0, 9.0, 1.0], 16)
    (3.0, 1.0)
    """
    steps = len(times) * count
    if steps < _STRETCH[0]:
        return _median(times)
    length = min(max(steps // _STRETCHES, _STRETCH[0]), _STRETCH[1])
    turns = min(len(times), math.ceil(length / count))
    whole = len(times) - len(times) % turns  # a short last stretch is dropped
    return _median(np.reshape(times[:whole], (-1, turns)).mean(1))


def _median(times: Any) -> float:
    return float(np.median(times))


def _calibrated(key, loop: Stepper, state, seconds: float) -> tuple[int, float]:
    """A number of steps that takes about the given time, and the time it took."""
    prepared = loop.prepare(key)

    def timed(count):
        began = time.perf_counter()
        loop.advance(prepared, state, count)
        return time.perf_counter() - began

    timed(1)  # compiles
    count = 1
    while True:
        taken = min(timed(count), timed(count))  # one interruption must not end the search
        if taken > seconds / 2 or count >= loop.length:
            return count, taken
        count = min(loop.length, 2 * count)
