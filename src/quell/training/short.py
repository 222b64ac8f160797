"""A short training before a choice or a measurement: its end, and the path to it."""

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Int, Key, PyTree

from quell.estimators._types import Estimator, Started, refresh_inside
from quell.objective import Objective
from quell.training.batches import reshuffle
from quell.training.loop import compiled_loop, run_keys, start_key
from quell.training.skips import check_training

_CHUNK = 256  # steps of one call of the loop


class ShortRun(NamedTuple):
    """The end of a short training.

    Attributes:
      params: the parameters at the end.
      path: the parameters before each of the last W steps, leaves `[W, ...]`.
      steps: the number of steps taken.
    """

    params: PyTree[Array]
    path: PyTree[Array]
    steps: int


def short_training(
    key: Key[Array, ""],
    objective: Objective,
    params: PyTree[Array],
    data: PyTree[Array],
    estimator: Estimator,
    optimizer: optax.GradientTransformation,
    *,
    num_steps: int,
    batch_size: int,
    path: int = 0,
    jit: Callable[..., Any] = jax.jit,
    seconds: float = math.inf,
) -> ShortRun:
    """The parameters after some steps of the training loop, and the path that led there.

    Steps that are not finite are skipped, as in `fit`; a training that they stop is refused.

    Args:
      key: the key for batches and noise.
      objective: L.
      params: θ, the start of the training.
      data: leaves `[N, ...]`.
      estimator: the estimator of the gradients that drive the training.
      optimizer: any optax optimiser.
      num_steps: T.
      batch_size: |B|.
      path: W, the number of last steps whose parameters are kept, fewer if steps were skipped; at
        least one if there are any.
      jit: the compilation, `jax.jit` or one that is quicker.
      seconds: the time after which the training ends early, with compilation.
    """
    until = time.monotonic() + seconds
    W = min(path, num_steps)
    started = estimator.start(start_key(key), objective, params, data)
    if W:
        started = _recording(started, num_steps, W)
    length = min(num_steps, _CHUNK)  # the loop computes all indices of a call at once
    loop = compiled_loop(
        started, objective, optimizer, reshuffle, batch_size=batch_size, length=length, jit=jit
    )
    keys = run_keys(key)
    # The loop consumes its arguments, so it starts from a copy.
    carried = loop.start(keys, jax.tree.map(jnp.array, params))
    step, pace, tables = 0, length if seconds == math.inf else 1, []
    while step < num_steps and (step == 0 or time.monotonic() < until):
        carried = loop.refresh(keys, carried, data, step)
        steps = min(pace, num_steps - step, loop.next_visit(step) - step)
        carried, table = loop.advance(keys, carried, data, step, steps)
        tables.append(np.asarray(table)[:steps])  # waits for the steps
        if step == 0:  # compiled by now, and steps are cheap beside that
            until = max(until, time.monotonic() + seconds / 2)
        step, pace = step + steps, min(length, 4 * pace)
    if tables:
        check_training(loop.columns, np.concatenate(tables))
    if not W:
        return ShortRun(carried.params, (), step)
    kept = max(1, int(carried.estimator_state.step) - (num_steps - W))  # steps may be skipped
    path_there = jax.tree.map(lambda p: p[:kept], carried.estimator_state.path)
    return ShortRun(carried.params, path_there, step)


class Recording(NamedTuple):
    """State of an estimator that keeps the parameters of its last steps.

    Attributes:
      inner: the state of the estimator itself.
      path: the parameters of the last W steps, leaves `[W, ...]`.
      step: the number of steps taken, `[]`.
    """

    inner: PyTree[Array]
    path: PyTree[Array]
    step: Int[Array, ""]


def _recording(started: Started, num_steps: int, W: int) -> Started:
    """The estimator, which now keeps the parameters of the last W of `num_steps` steps."""

    def init(key, params):
        path = jax.tree.map(lambda p: jnp.zeros((W, *jnp.shape(p)), jnp.result_type(p)), params)
        return Recording(started.init(key, params), path, jnp.zeros((), jnp.int32))

    def estimate(key, objective, params, batch, state: Recording):
        estimated = started.estimate(key, objective, params, batch, state.inner)
        row = jnp.maximum(state.step - (num_steps - W), 0)  # row 0 until the last W steps begin
        path = jax.tree.map(lambda kept, p: kept.at[row].set(p), state.path, params)
        return estimated._replace(state=Recording(estimated.state, path, state.step + 1))

    return Started(init, estimate, refresh_inside(started))
