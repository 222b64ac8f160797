"""The training loop: one call from an objective and data to fitted parameters."""

import logging
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Key, PyTree

from quell import _checkpoint, _progress
from quell._automatic import Automatic, automatic
from quell._batches import Batches, reshuffle
from quell._control_variate import ControlVariate
from quell._errors import invalid
from quell._fit_checks import check_arguments, check_finite
from quell._loop import Carried, Loop, Monitor, RunKeys, compiled_loop, run_keys
from quell._objective import Objective
from quell._progress import Progress
from quell._recommend import candidates, recommend
from quell.estimators import Estimator, controlled, monte_carlo

_LOG = logging.getLogger("quell")
_WORTH_MEASURING = 10_000  # steps below which choosing an estimator costs more than it saves
_MEASURING_SECONDS = 5.0
_CHUNK_LEAST = 64  # below this, a shorter chunk would save nothing
_CHUNK_STEPS = 1024  # the most steps between visits to the host
_CHUNK_BYTES = 2**24  # the most data gathered at once
_CHUNK_SECONDS = 0.5  # how long the host may be left without news


class History(NamedTuple):
    """What every step left, on the host; with several keys, a leading axis for them.

    Attributes:
      objective: the estimate of the objective.
      gradient_norm: ‖G̃‖, of the gradient the optimiser was given.
      correction_norm: ‖Ĝ − G̃‖, what a control variate took off; zero without one.
      monitors: the value of each monitor, NaN on the steps on which it was not asked.
    """

    objective: Float[np.ndarray, "*seeds T"]
    gradient_norm: Float[np.ndarray, "*seeds T"]
    correction_norm: Float[np.ndarray, "*seeds T"]
    monitors: dict[str, Float[np.ndarray, "*seeds T"]]


class Fit(NamedTuple):
    """What a run leaves; with several keys, every array has a leading axis for them.

    Attributes:
      params: the fitted parameters.
      estimator_state: the state of the gradient estimator, such as a control variate's.
      optimizer_state: the state of the optimiser.
      history: what every step left.
      step: how many steps were taken.
    """

    params: PyTree[Array]
    estimator_state: PyTree[Array]
    optimizer_state: PyTree[Array]
    history: History
    step: int


def fit(
    objective: Objective,
    data: PyTree[Array],
    *,
    params: PyTree[Array] | Callable[[Key[Array, ""]], PyTree[Array]],
    optimizer: optax.GradientTransformation,
    num_steps: int,
    batch_size: int,
    key: Key[Array, "*seeds"],
    estimator: Callable[[Objective], Estimator] | Automatic = automatic,
    control: ControlVariate | None = None,
    batches: Batches = reshuffle,
    monitors: Mapping[str, Monitor] | None = None,
    monitor_every: int = 100,
    callback: Callable[[int, PyTree[Array], History], None] | None = None,
    callback_every: int = 1000,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 1000,
    progress: Callable[[int], Progress] = _progress.automatic,
) -> Fit:
    """Minimise an objective by stochastic gradients, in one compiled loop.

    Every step draws a mini-batch and noise, estimates the gradient and updates the parameters. The
    data stays on the device, and the host is visited only between chunks of steps. The result
    depends on the key and the number of steps, never on how the run was cut into chunks. A second
    call with the same objective, estimator and optimiser compiles nothing.

    Args:
      objective: what to minimise; its `num_data` is N.
      data: a pytree with leaves `[N, ...]`.
      params: the initial parameters θ₀, or a function that draws them from a key.
      optimizer: any optax optimiser.
      num_steps: T, the number of steps.
      batch_size: |B|, at most N.
      key: a typed key (`jax.random.key`), or an array `[K]` of them: then K runs in one compiled
        loop, and every result has a leading axis of length K. Parameters given as arrays are
        shared by the runs; parameters given as a function are drawn for each.
      estimator: how to estimate gradients. By default `quell.automatic`: runs of 10,000 steps or
        more first measure, for a few seconds, what is most efficient here (see `recommend`; the
        choice is logged); shorter ones, which that would not repay, use plain Monte Carlo.
      control: a control variate to subtract from plain Monte Carlo; instead of `estimator`.
      batches: the stream of mini-batch indices, `reshuffle` or `with_replacement`.
      monitors: named functions from a `Step` to a scalar, computed inside the loop.
      monitor_every: how many steps from one evaluation of the monitors to the next.
      callback: `callback(step, params, history)`, called on the host with the history so far.
      callback_every: how many steps from one call to the next.
      checkpoint: a directory. A run interrupted there continues exactly where its last checkpoint
        was taken; needs the extra "checkpoint".
      checkpoint_every: how many steps from one checkpoint to the next. The end is saved as well.
      progress: draws the progress bar; by default only on a terminal, and only with rich.

    Returns:
      The parameters, the states and the history.
    """
    data = jax.tree.map(jnp.asarray, data)
    check_arguments(
        objective,
        data,
        optimizer,
        key,
        estimator,
        control,
        num_steps=num_steps,
        batch_size=batch_size,
        monitor_every=monitor_every,
        callback_every=callback_every,
        checkpoint_every=checkpoint_every,
    )
    if isinstance(estimator, Automatic):
        estimator = _chosen(
            objective, data, params, optimizer, num_steps, batch_size, key, control, checkpoint
        )
    every = [callback_every] if callback else []
    every += [checkpoint_every] if checkpoint else []
    loop = _loop_for(
        objective,
        estimator,
        optimizer,
        batches,
        tuple((monitors or {}).items()),
        batch_size=batch_size,
        length=_chunk_length(data, batch_size, [num_steps, *every]),
        monitor_every=monitor_every,
        seeds=bool(key.shape),
    )
    keys = run_keys(key)
    carried = loop.start(keys, _initial(params, keys.params), data)
    table = np.full((*key.shape, num_steps, len(loop.columns)), np.nan, jnp.result_type(float))
    saved = _checkpoint.nowhere()
    if checkpoint is not None:
        identity = _identity(key, objective.num_data, batch_size, loop.columns)
        saved = _checkpoint.in_directory(checkpoint, identity)
    try:
        step, carried = _restored(saved, carried, table)

        def visit(step, carried):
            if callback and step % callback_every == 0:
                # The loop consumes what it is given, so the caller gets a copy.
                copy = jax.tree.map(jnp.copy, carried.params)
                callback(step, copy, _history(loop, table[..., :step, :]))
            if checkpoint and (step % checkpoint_every == 0 or step == num_steps):
                saved.save(step, (carried, table[..., :step, :]))

        carried = _run(loop, keys, carried, data, step, table, every, visit, progress(num_steps))
    finally:
        saved.close()
    return Fit(
        carried.params,
        carried.estimator_state,
        carried.optimizer_state,
        _history(loop, table),
        num_steps,
    )


def _run(
    loop: Loop,
    keys: RunKeys,
    carried: Carried,
    data: PyTree[Array],
    step: int,
    table: Float[np.ndarray, "*seeds T columns"],
    every: list[int],
    visit: Callable[[int, Carried], None],
    bar: Progress,
) -> Carried:
    """Take the steps from `step` on, chunk by chunk, filling the table."""
    num_steps = table.shape[-2]
    pace = 1 if step == 0 else loop.length
    objective = np.nan
    try:
        while step < num_steps:
            ends = [(step // k + 1) * k for k in every]
            steps = min([step + pace, num_steps, *ends]) - step
            began = time.monotonic()
            carried, rows = loop.advance(keys, carried, data, step, steps)
            bar.update(step, objective)  # while the device is busy
            table[..., step : step + steps, :] = np.asarray(rows)[..., :steps, :]
            if step == 0:
                check_finite(table[..., 0, 0], data)
                pace = loop.length
            else:
                seconds = (time.monotonic() - began) / steps
                pace = min(loop.length, max(1, int(_CHUNK_SECONDS / seconds)))
            step += steps
            objective = float(np.mean(table[..., step - 1, 0]))
            visit(step, carried)
        bar.update(step, objective)
    finally:
        bar.close()
    return carried


def _chunk_length(data: PyTree[Array], batch_size: int, needed: list[int]) -> int:
    """The most steps of a chunk: a power of two, so that few lengths are ever compiled."""
    row_bytes = sum(leaf.nbytes // leaf.shape[0] for leaf in jax.tree.leaves(data))
    wanted = max(_CHUNK_LEAST, min(_CHUNK_STEPS, *needed))
    most = max(1, min(wanted, _CHUNK_BYTES // (batch_size * (row_bytes + 4))))
    return 1 << (most - 1).bit_length()


def _loop_for(objective, estimator, optimizer, batches, monitors, **settings) -> Loop:
    """The compiled loop, remembered while the same objects come back."""
    arguments = (objective, estimator, optimizer, batches, monitors)
    try:
        hash(arguments)
    except TypeError:
        return _build.__wrapped__(*arguments, **settings)
    return _build(*arguments, **settings)


@lru_cache(maxsize=16)
def _build(objective, estimator, optimizer, batches, monitors, **settings) -> Loop:
    num_data = objective.num_data
    estimate = estimator(objective)
    return compiled_loop(
        estimate, optimizer, batches, dict(monitors), num_data=num_data, **settings
    )


@lru_cache(maxsize=16)
def _plain_controlled(control: ControlVariate):
    return controlled(monte_carlo(), control)


_PLAIN = monte_carlo()


def _chosen(
    objective, data, params, optimizer, num_steps, batch_size, key, control, checkpoint
) -> Callable[[Objective], Estimator]:
    """The estimator when none is given: the control's, plain, or the one measured to be best."""
    if control is not None:
        return _plain_controlled(control)
    if num_steps < _WORTH_MEASURING:
        return _PLAIN
    one = key[0] if key.shape else key
    start = _initial(params, run_keys(one).params)
    # A run that goes on from a checkpoint uses what it was begun with, whatever is faster today.
    note = None if checkpoint is None else Path(checkpoint) / "estimator.txt"
    if note is not None and note.exists():
        return candidates(one, objective, start, data)[note.read_text()]
    found = recommend(
        objective,
        data,
        start,
        key=one,
        batch_size=batch_size,
        seconds=_MEASURING_SECONDS,
        optimizer=optimizer,
    )
    _LOG.info("%s", found)
    if note is not None:
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(found.name)
    return candidates(one, objective, start, data)[found.name]


def _initial(params: Any, key: Key[Array, "*seeds"]) -> PyTree[Array]:
    """θ₀, with a leading axis when the key has one."""
    is_function = callable(params) and jax.tree_util.all_leaves([params])
    if is_function:
        return jax.vmap(params)(key) if key.shape else params(key)
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (*key.shape, *jnp.shape(leaf))), params)


def _history(loop: Loop, table: Float[np.ndarray, "*seeds T columns"]) -> History:
    columns = dict(zip(loop.columns, np.moveaxis(table, -1, 0)))
    main = [columns.pop(name) for name in ("objective", "gradient_norm", "correction_norm")]
    return History(*main, monitors=columns)


def _restored(saved: _checkpoint.Checkpoints, carried: Carried, table) -> tuple[int, Carried]:
    """The last saved step and what was carried there; fills the table up to it."""
    step = saved.latest()
    if step is None:
        return 0, carried
    if step > table.shape[-2]:
        raise invalid(
            "num_steps",
            expected=f"at least the {step} steps of the checkpoint",
            got=table.shape[-2],
            advice="Ask for more steps, or name a new directory.",
        )
    carried, table[..., :step, :] = saved.restore(step, (carried, table[..., :step, :]))
    return step, jax.tree.map(jnp.array, carried)


def _identity(key, num_data: int, batch_size: int, columns) -> dict[str, Any]:
    return {
        "num_data": num_data,
        "batch_size": batch_size,
        "key": [str(jax.random.key_impl(key)), np.asarray(jax.random.key_data(key)).tolist()],
        "columns": list(columns),
    }
