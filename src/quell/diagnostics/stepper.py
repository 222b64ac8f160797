"""A compiled loop of an estimator's steps, and the state of an estimator after some of them."""

import math
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Key, PyTree

from quell._jit import quick_jit, rare_jit
from quell._tree import batch_size as rows_of
from quell._tree import number_of_parameters, strongly_typed
from quell.diagnostics.designs import consecutive
from quell.estimators._types import Started, batch_of
from quell.objective import Objective
from quell.training.loop import is_visit, next_visit

_LENGTH_ROWS = 2**16  # the most indices computed at once
_PATH_NUMBERS = 2**22  # the most numbers in a path of parameters
_VISIT = 0.05  # seconds between looks at the clock


class Stepper(NamedTuple):
    """A compiled loop of an estimator's steps along given parameters.

    Attributes:
      prepare: `prepare(key)` chooses the batches and keys of the next `length` steps.
      advance: `advance(prepared, state, steps, path)` gives the state after at most `length`
        steps, when they are done. The parameters of each step are in `path`, leaves
        `[length, ...]`; without a path the parameters stand still.
      warmed: `warmed(prepared, state, steps)` gives the state of the optimiser after these steps.
      length: the most steps of one call.
      due: `due(state)` says whether the estimator's rare work is due; None if it has none.
      refresh: `refresh(key, state, params)` gives the state after that work.
    """

    prepare: Callable[[Key[Array, ""]], PyTree[Array]]
    advance: Callable[..., PyTree[Array]]
    warmed: Callable[..., PyTree[Array]]
    length: int
    due: Callable[[PyTree[Array]], bool] | None = None
    refresh: Callable[..., PyTree[Array]] | None = None


class Learned(NamedTuple):
    """The state of an estimator after some steps.

    Attributes:
      state: the state.
      steps: the steps that it took.
      refreshes: the times that it was refreshed.
    """

    state: PyTree[Array]
    steps: int
    refreshes: int


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
    optimizer = optax.with_extra_args_support(optax.identity() if optimizer is None else optimizer)
    most = _LENGTH_ROWS // batch_size, _PATH_NUMBERS // number_of_parameters(params)
    length = max(1, min(1000, *most))
    # repeated by NumPy, which has nothing to compile
    still = jax.tree.map(lambda p: jnp.asarray(np.repeat(np.asarray(p)[None], length, 0)), params)

    def prepare(key):
        return consecutive(key, length, objective.num_data, batch_size)

    @jax.jit
    def loop(prepared, path, data, state, steps):
        indices, keys = prepared

        def body(i, carried):
            total, optimizer_state, state = carried
            params, batch = jax.tree.map(lambda p: p[i], path), batch_of(data, indices[i])
            estimate = started.estimate(keys[i], objective, params, batch, state)
            updates, optimizer_state = optimizer.update(
                estimate.gradient, optimizer_state, params, value=estimate.value
            )
            return jax.tree.map(jnp.add, total, updates), optimizer_state, estimate.state

        total = jax.tree.map(lambda p: jnp.zeros_like(p[0]), path)
        first = jax.tree.map(lambda p: p[0], path)
        carried = strongly_typed((total, optimizer.init(first), state))
        return lax.fori_loop(0, steps, body, carried)

    def carried_after(prepared, state, steps, path=still):
        # the gradients too are waited for: all of the work is done
        return jax.block_until_ready(loop(prepared, path, data, strongly_typed(state), steps))

    def advance(*call):
        return carried_after(*call)[2]

    def warmed(*call):
        return carried_after(*call)[1]

    if started.refresh is None:
        return Stepper(prepare, advance, warmed, length)
    work = started.refresh
    due = quick_jit(lambda state: work.due(state, batch_size))
    run = rare_jit(
        lambda key, params, data, state: work.run(key, objective, params, data, batch_size, state)
    )

    def refresh(key, state, at=params):
        return jax.block_until_ready(run(key, at, data, strongly_typed(state)))

    return Stepper(prepare, advance, warmed, length, lambda state: bool(due(state)), refresh)


def state_after_path(
    key: Key[Array, ""],
    loop: Stepper,
    state: PyTree[Array],
    path: PyTree[Array],
    *,
    seconds: float = math.inf,
) -> Learned:
    """The state after following parameters along a path, leaves `[T, ...]`, to its end.

    If the whole path would take longer than `seconds`, compilation apart, the state joins later, so
    that the remaining steps fit into the time and are a prime number.
    """
    T = rows_of(path)
    if not has_state(state):
        return Learned(state, T, 0)
    if math.isfinite(seconds):
        T = largest_prime(min(T, int(seconds / pace(key, loop, state))))
    path = jax.tree.map(lambda p: p[-T:], path)

    def along(start):
        rows = np.minimum(start + np.arange(loop.length), T - 1)  # padded: one shape to compile
        return jax.tree.map(lambda p: p[rows], path)

    return _walked(key, loop, state, T, along)


def state_after_steps(
    key: Key[Array, ""], loop: Stepper, state: PyTree[Array], *, steps: int, seconds: float
) -> Learned:
    """The state after `steps` steps at fixed parameters, or fewer if the time is short."""
    if not has_state(state):
        return Learned(state, steps, 0)
    return _walked(key, loop, state, steps, None, until=time.monotonic() + seconds)


def _walked(key, loop: Stepper, state, T: int, along, *, until: float = math.inf) -> Learned:
    """Steps from visit to visit, with the estimator's rare work in between."""
    done, refreshes, count, walked = 0, 0, 1, time.monotonic()
    while done < T and (done == 0 or time.monotonic() < until):
        here, began = jax.random.fold_in(key, done), time.monotonic()
        part = None if along is None else along(done)
        given = () if part is None else (part,)
        if loop.due is not None and is_visit(done) and loop.due(state):
            at = () if part is None else (jax.tree.map(lambda p: p[0], part),)
            state = loop.refresh(jax.random.fold_in(here, 1), state, *at)  # pyright: ignore
            refreshes += 1
        steps = min(count, loop.length, T - done, next_visit(done) - done)
        state = loop.advance(loop.prepare(here), state, steps, *given)
        if done == 0:  # compiled by now, and steps are cheap beside that
            until = max(until, time.monotonic() + (until - walked) / 2)
        done += steps
        visit = _VISIT * steps / max(time.monotonic() - began, 1e-9)
        count = loop.length if until == math.inf else max(1, int(min(visit, 4 * count)))
    return Learned(state, done, refreshes)


def pace(key: Key[Array, ""], loop: Stepper, state: PyTree[Array]) -> float:
    """The seconds of a step, roughly."""
    prepared = loop.prepare(key)
    loop.advance(prepared, state, 1)  # compiles
    steps = 1
    while True:
        began = time.monotonic()
        loop.advance(prepared, state, steps)
        taken = time.monotonic() - began
        if taken > _VISIT / 2 or steps >= loop.length:
            return taken / steps
        steps = min(loop.length, 4 * steps)


def has_state(state: PyTree[Array]) -> bool:
    """Whether there is anything to learn."""
    return bool(jax.tree.leaves(state))


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
