"""What a step costs: compiled loops, timed in turn, and the memory of one estimate."""

import math
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Key, PyTree

from quell._measure._streams import consecutive_batches
from quell._objective import batch_size as rows_of
from quell.estimators import Estimator

Name = TypeVar("Name", bound=Hashable)

_LENGTH_ROWS = 2**16  # the most indices computed at once
_PATH_NUMBERS = 2**22  # the most numbers in a path of parameters
_TURN = 0.05  # seconds of one turn of one loop
_TURNS = 100  # the most turns
_STRETCH = 64, 4096  # steps, at least and at most, among which rare work is shared out
_STRETCHES = 8  # how many of them, where there is time for longer ones


class Stepper(NamedTuple):
    """A compiled loop of an estimator's steps along given parameters.

    Attributes:
      prepare: `prepare(key)` chooses the batches and keys of the next `length` steps.
      advance: `advance(prepared, state, steps, path)` gives the state after at most `length`
        steps, once they are done. The parameters of each step are in `path`, leaves
        `[length, ...]`; where there is none they stand still.
      length: the most steps of one call.
    """

    prepare: Callable[[Key[Array, ""]], PyTree[Array]]
    advance: Callable[..., PyTree[Array]]
    length: int


def stepper(
    estimator: Estimator,
    params: PyTree[Array],
    data: PyTree[Array],
    batch_size: int,
    optimizer: optax.GradientTransformation | None = None,
) -> Stepper:
    """The loop of an estimator: gather a batch, estimate, update the state, add up the gradients.

    With an optimiser, which is then part of what a step costs, its updates are added up instead.
    Parameters that stand still are read anew in every step, as if they moved: nothing that depends
    on them can be computed once and for all.
    """
    optimizer = optax.identity() if optimizer is None else optimizer
    N = rows_of(data)
    size = sum(int(jnp.size(leaf)) for leaf in jax.tree.leaves(params))
    length = max(1, min(1000, _LENGTH_ROWS // batch_size, _PATH_NUMBERS // size))
    still = jax.tree.map(lambda p: jnp.repeat(p[None], length, axis=0), params)

    def prepare(key):
        return consecutive_batches(key, length, N, batch_size)

    @jax.jit
    def loop(prepared, path, data, state, steps):
        indices, keys = prepared

        def body(i, carried):
            total, optimizer_state, state = carried
            batch = jax.tree.map(lambda y: y.at[indices[i]].get(mode="promise_in_bounds"), data)
            params = jax.tree.map(lambda p: p[i], path)
            gradient, _, state = estimator.estimate(keys[i], params, batch, state)
            updates, optimizer_state = optimizer.update(gradient, optimizer_state, params)
            return jax.tree.map(jnp.add, total, updates), optimizer_state, state

        total = jax.tree.map(lambda p: jnp.zeros_like(p[0]), path)
        return lax.fori_loop(0, steps, body, (total, optimizer.init(total), state))

    def advance(prepared, state, steps, path=still):
        carried = loop(prepared, path, data, jax.tree.map(_strong, state), steps)
        return jax.block_until_ready(carried)[-1]  # the gradients too: all of the work is done

    return Stepper(prepare, advance, length)


def followed_state(
    key: Key[Array, ""],
    loop: Stepper,
    state: PyTree[Array],
    path: PyTree[Array],
    *,
    seconds: float = math.inf,
) -> PyTree[Array]:
    """The state after following parameters along a path, leaves `[T, ...]`, to its end.

    Where all of it would take longer than `seconds`, it joins later: at the first step, counted
    from the end, for which there is time, and which leaves a prime number of steps.
    """
    if not _has_state(state):
        return state
    T = rows_of(path)
    if math.isfinite(seconds):
        T = largest_prime(min(T, int(seconds / _one_step(key, loop, state))))
    path = jax.tree.map(lambda p: p[-T:], path)
    for start in range(0, T, loop.length):
        rows = np.minimum(start + np.arange(loop.length), T - 1)
        part = jax.tree.map(lambda p, rows=rows: p[rows], path)
        prepared = loop.prepare(jax.random.fold_in(key, start))
        state = loop.advance(prepared, state, min(loop.length, T - start), part)
    return state


def largest_prime(most: int) -> int:
    """The largest prime up to `most`, and at least 1.

    What is done every so many steps is then not done in the step that comes next.

    >>> largest_prime(1000), largest_prime(0)
    (997, 1)
    """
    for p in range(most, 1, -1):
        if all(p % d for d in range(2, math.isqrt(p) + 1)):
            return p
    return 1


def learned_state(
    key: Key[Array, ""], loop: Stepper, state: PyTree[Array], *, steps: int, seconds: float
) -> PyTree[Array]:
    """The state after `steps` steps at fixed parameters, or as many as the time allows."""
    if not _has_state(state):
        return state
    state = loop.advance(loop.prepare(key), state, 0)  # compiles
    began, done, pace = time.monotonic(), 0, 1
    while done < steps and time.monotonic() - began < seconds:
        count = min(pace, loop.length, steps - done)
        prepared = loop.prepare(jax.random.fold_in(key, done))
        state = loop.advance(prepared, state, count)
        done += count
        pace = _paced(time.monotonic() - began, done, loop.length)
    return state


def seconds_per_step(
    key: Key[Array, ""],
    loops: Mapping[Name, Stepper],
    states: Mapping[Name, PyTree[Array]],
    *,
    seconds: float,
) -> dict[Name, float]:
    """The typical time of a step in each of several loops, which take turns.

    Turns spread whatever else the machine is doing over all of the loops alike. States evolve from
    turn to turn, and where there are such the median is over stretches of 64 steps and more, so
    that work done every so many steps is counted. A loop with a state takes the turns it needs for
    that, a second more than its share at most; where its steps are too slow even so, rare work is
    left out, as small against them.

    Args:
      key: for batches and noise.
      loops: the loops, by name.
      states: where each loop starts.
      seconds: how long the turns may take together, after compilation; each loop has at least
        three.
    """
    states = dict(states)
    share = min(_TURN, seconds / max(1, len(loops) * 10))
    counts = {name: _calibrated(key, loop, states[name], share) for name, loop in loops.items()}
    times = {name: [] for name in loops}

    def turn(name, number):
        prepared = jax.block_until_ready(loops[name].prepare(jax.random.fold_in(key, number)))
        start = time.perf_counter()
        states[name] = loops[name].advance(prepared, states[name], counts[name])
        times[name].append((time.perf_counter() - start) / counts[name])

    began = time.monotonic()
    for number in range(_TURNS):
        if number >= 3 and time.monotonic() - began > seconds:
            break
        for name in loops:
            turn(name, number)
    for name in loops:
        missing = _STRETCH[0] - len(times[name]) * counts[name]
        most = seconds / len(loops) + 1
        if _has_state(states[name]) and missing * np.median(times[name]) < most:
            for number in range(math.ceil(missing / counts[name])):
                turn(name, _TURNS + number)
    return {
        name: _shared_out(taken, counts[name]) if _has_state(states[name]) else _median(taken)
        for name, taken in times.items()
    }


def _has_state(state: PyTree[Array]) -> bool:
    return bool(jax.tree.leaves(state))


def _shared_out(times: list[float], count: int) -> float:
    """The median over stretches of turns of `count` steps each, long enough for rare work.

    >>> _shared_out([1.0, 1.0, 1.0, 9.0] * 5, 16), _shared_out([1.0, 9.0, 1.0], 16)
    (3.0, 1.0)
    """
    steps = len(times) * count
    if steps < _STRETCH[0]:
        return _median(times)
    length = min(max(steps // _STRETCHES, _STRETCH[0]), _STRETCH[1])
    turns = min(len(times), math.ceil(length / count))
    whole = len(times) - len(times) % turns
    return _median(np.reshape(times[:whole], (-1, turns)).mean(1))


def _median(times) -> float:
    return float(np.median(times))


def peak_memory(
    estimator: Estimator, params: PyTree[Array], batch: PyTree[Array], state: PyTree[Array]
) -> int | None:
    """Bytes that one compiled estimate needs besides its inputs, where the device can tell."""
    compiled = jax.jit(estimator.estimate).lower(jax.random.key(0), params, batch, state).compile()
    analysis = compiled.memory_analysis()
    if analysis is None:
        return None
    return int(analysis.temp_size_in_bytes + analysis.output_size_in_bytes)


def _one_step(key, loop: Stepper, state) -> float:
    """Roughly how long a step takes."""
    prepared = loop.prepare(key)
    loop.advance(prepared, state, 1)  # compiles
    count = min(4, loop.length)
    start = time.perf_counter()
    loop.advance(prepared, state, count)
    return (time.perf_counter() - start) / count


def _calibrated(key, loop: Stepper, state, seconds: float) -> int:
    """How many steps take about so many seconds."""
    prepared = loop.prepare(key)
    loop.advance(prepared, state, 1)  # compiles
    count = 1
    while True:
        start = time.perf_counter()
        loop.advance(prepared, state, count)
        taken = time.perf_counter() - start
        if taken > seconds / 2 or count >= loop.length:
            return count
        count = min(loop.length, 2 * count)


def _paced(taken: float, done: int, most: int) -> int:
    return max(1, min(most, int(_TURN * done / max(taken, 1e-9))))


def _strong(leaf: Any) -> Array:
    """The leaf with a dtype that arithmetic does not change, so that one compilation serves."""
    leaf = jnp.asarray(leaf)
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return leaf
    return lax.convert_element_type(leaf, leaf.dtype)
