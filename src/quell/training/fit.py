"""The training loop: one call from an objective and data to fitted parameters."""

import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from quell._tree import number_of_parameters
from quell.estimators._sampling import monte_carlo
from quell.estimators._types import Estimator
from quell.objective import Objective
from quell.training.batches import Batches, reshuffle
from quell.training.checks import checked_arguments, drawn
from quell.training.hooks import Callback, Checkpoint, Hook, Monitors, Progress
from quell.training.identity import identity_of
from quell.training.loop import Carried, Loop, RunKeys, compiled_loop, run_keys, start_key
from quell.training.progress import Bar, default_bar
from quell.training.resume import held_back, saving
from quell.training.skips import check_progress, stopped_after, warn_of_skips, warn_of_stop

_PLAIN = monte_carlo()  # a default argument is made once
_CHUNK_LEAST = 64  # a shorter chunk would save nothing
_CHUNK_STEPS = 1024  # the most steps between two visits to the host
_CHUNK_BYTES = 2**24  # the most data gathered at once, which bounds the memory of a chunk
_CHUNK_SECONDS = 0.5  # the longest time without a visit to the host

History = dict[str, Float[np.ndarray, "*seeds T"]]


class Fit(NamedTuple):
    """The result of a run; with several keys, every array has a leading axis for them.

    Attributes:
      params: the fitted parameters.
      estimator_state: the state of the gradient estimator, such as a control variate's.
      optimizer_state: the state of the optimiser.
      history: one value per step, on the host, by name: "objective", the estimate of the objective;
        "gradient_norm", ‖G̃‖; "correction_norm", ‖Ĝ − G̃‖, zero without a control variate;
        "skipped", 1 at steps that were skipped and 0 at others; and the value of each monitor, NaN
        at steps without an evaluation.
      num_steps: the number of steps, fewer than asked for if the run stopped.
      skipped: the number of steps that were skipped because they were not finite, `[K]` for K keys.
    """

    params: PyTree[Array]
    estimator_state: PyTree[Array]
    optimizer_state: PyTree[Array]
    history: History
    num_steps: int
    skipped: int | Int[np.ndarray, " seeds"]

    def __repr__(self) -> str:
        taken = self.history["skipped"] == 0
        late = np.flatnonzero(taken.any(tuple(range(taken.ndim - 1))))[-100:]
        values = self.history["objective"][..., late][taken[..., late]]
        last = values.mean() if values.size else np.nan
        P, skipped = number_of_parameters(self.params), int(np.sum(self.skipped))
        steps = f"{self.num_steps} steps" + (f", {skipped} skipped" if skipped else "")
        return f"Fit({steps}, {P} parameters, objective about {last:.5g})"


def fit(
    key: Key[Array, "*seeds"],
    objective: Objective,
    params: PyTree[Array] | Callable[[Key[Array, ""]], PyTree[Array]],
    data: PyTree[Array],
    optimizer: optax.GradientTransformation,
    *,
    num_steps: int,
    batch_size: int,
    estimator: Estimator = _PLAIN,
    batches: Batches = reshuffle,
    hooks: Sequence[Hook] = (),
) -> Fit:
    """Minimise an objective by stochastic gradients, in one compiled loop.

    Every step draws a mini-batch and noise, estimates the gradient and updates the parameters. The
    data stays on the device, and the host is visited only between chunks of steps. The result
    depends on the arguments alone, never on how the run was cut into chunks. Every call compiles
    anew and keeps nothing: for several seeds, pass several keys to one call.

    The data must be finite. A step whose objective, gradient or next parameters are not finite is
    skipped: parameters and states keep their values, a warning names the first such step, and the
    result counts them. After a hundred in a row the run stops with what it has reached.

    Args:
      key: a typed key (`jax.random.key`), or an array `[K]` of keys for K runs in one compiled
        loop, in which case every result has a leading axis of length K.
      objective: L, the objective to minimise; its `num_data` is N.
      params: the initial parameters θ₀, shared by all runs, or a function that draws the initial
        parameters of each run from a key.
      data: a pytree with leaves `[N, ...]`.
      optimizer: any optax optimiser.
      num_steps: T, the number of steps.
      batch_size: |B|, at most N.
      estimator: the way to estimate gradients, such as `quell.closed_form()`; one plain draw by
        default. `quell.recommend` measures which estimator to take.
      batches: the stream of mini-batch indices, `reshuffle` or `with_replacement`.
      hooks: `quell.monitor(...)`, `quell.callback(...)`, `quell.checkpoint(...)`, and
        `quell.silent` for no progress bar.

    Returns:
      The parameters, the states and the history.
    """
    params, data = checked_arguments(
        key,
        objective,
        params,
        data,
        optimizer,
        estimator,
        batches,
        hooks,
        num_steps=num_steps,
        batch_size=batch_size,
    )
    keys = run_keys(key)
    initial = _initial(params, keys.params)
    # an estimator looks at the problem once, on the host: the first run stands for all
    one = jax.tree.map(lambda leaf: leaf[0], initial) if key.ndim else initial
    visits = [hook for hook in hooks if isinstance(hook, Callback | Checkpoint)]
    started = estimator.start(start_key(key), objective, one, data)
    if started.note:
        warnings.warn(f"fit: {started.note}", RuntimeWarning, stacklevel=2)  # the user's line
    loop = compiled_loop(
        started,
        objective,
        optimizer,
        batches,
        [hook for hook in hooks if isinstance(hook, Monitors)],
        batch_size=batch_size,
        length=_chunk_length(data, batch_size, [num_steps, *(hook.every for hook in visits)]),
        seeds=bool(key.ndim),
    )
    bars = [hook.start for hook in hooks if isinstance(hook, Progress)]
    table = np.full((*key.shape, num_steps, len(loop.columns)), np.nan, jnp.result_type(float))
    carried = loop.start(keys, initial)
    identity = partial(
        identity_of,
        key,
        objective,
        one,
        data,
        optimizer,
        estimator=estimator,
        estimator_state=jax.eval_shape(lambda: carried.estimator_state),
        batch_size=batch_size,
        monitors=list(loop.columns),
    )
    checkpoints = [hook for hook in visits if isinstance(hook, Checkpoint)]
    with saving(checkpoints, identity) as saves, held_back(bool(checkpoints)) as stopping:
        step, carried = saves.resume(loop, keys, carried, data, table)

        def visit(step, carried: Carried):
            for hook in visits:
                if isinstance(hook, Callback) and step % hook.every == 0:
                    # The loop consumes its arguments, so the caller gets a copy.
                    copy = jax.tree.map(jnp.copy, carried.params)
                    hook.function(step, copy, _history(loop, table[..., :step, :]))
            stop = stopping()
            saves.save(step, carried, table, at_once=stop)
            if stop:
                raise KeyboardInterrupt

        every = [hook.every for hook in visits]
        bar = (bars[-1] if bars else default_bar)(num_steps)
        look = partial(
            warn_of_skips,
            batches=batches,
            keys=keys,
            num_data=objective.num_data,
            batch_size=batch_size,
        )
        carried, ended = _run(loop, keys, carried, data, step, table, every, visit, look, bar)
    history = _history(loop, table[..., :ended, :])
    skipped = history["skipped"].astype(bool)
    check_progress(skipped, history["objective"])
    return Fit(
        carried.params,
        carried.estimator_state,
        carried.optimizer_state,
        history,
        ended,
        skipped.sum(-1) if key.ndim else int(skipped.sum()),
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
    look: Callable[[Bool[np.ndarray, "*seeds T"]], None],
    bar: Bar,
) -> tuple[Carried, int]:
    """Take the steps from `step` on, chunk by chunk, filling the table; returns their number."""
    num_steps, skips = table.shape[-2], table[..., loop.columns.index("skipped")]
    pace = 1 if step == 0 else loop.length  # the first step alone: it waits for compilation
    looked, ended = bool((skips[..., :step] > 0).any()), None
    objective = np.nan
    try:
        while step < num_steps:
            carried = loop.refresh(keys, carried, data, step)
            ends = [loop.next_visit(step), *((step // k + 1) * k for k in every)]
            steps = min([step + pace, num_steps, *ends]) - step
            began = time.monotonic()
            carried, rows = loop.advance(keys, carried, data, step, steps)
            bar.update(step, objective)  # while the device is busy
            table[..., step : step + steps, :] = np.asarray(rows)[..., :steps, :]
            seconds = (time.monotonic() - began) / steps  # chunks decide visits, never results
            pace = (
                loop.length
                if step == 0
                else min(loop.length, max(1, int(_CHUNK_SECONDS / seconds)))
            )
            step += steps
            objective = float(np.mean(table[..., step - 1, 0]))
            skipped = skips[..., :step] > 0
            if skipped.any():
                ended = stopped_after(skipped)
                if not looked and not skipped.all():  # without any progress `fit` raises an error
                    look(skipped)
                    looked = True
            if ended is None or step == ended:  # not later, since chunks never change a run
                visit(step, carried)
            if ended is not None:
                if not skipped.all():
                    warn_of_stop(ended)
                break
        bar.update(step, objective)
    finally:
        bar.close()
    return carried, num_steps if ended is None else ended


def _chunk_length(data: PyTree[Array], batch_size: int, needed: list[int]) -> int:
    """The largest number of steps of a chunk: a power of two, so that few lengths are compiled."""
    row_bytes = sum(leaf.nbytes // leaf.shape[0] for leaf in jax.tree.leaves(data))
    wanted = max(_CHUNK_LEAST, min(_CHUNK_STEPS, *needed))  # no longer than between visits
    most = max(1, min(wanted, _CHUNK_BYTES // (batch_size * (row_bytes + 4))))
    return 1 << (most - 1).bit_length()


def _initial(params: Any, key: Key[Array, "*seeds"]) -> PyTree[Array]:
    """θ₀, with a leading axis if the key has one."""
    if drawn(params):
        return jax.vmap(params)(key) if key.ndim else params(key)
    # A copy, since the loop consumes its arguments.
    return jax.tree.map(
        lambda leaf: jnp.array(jnp.broadcast_to(leaf, (*key.shape, *jnp.shape(leaf)))), params
    )


def _history(loop: Loop, table: Float[np.ndarray, "*seeds T columns"]) -> History:
    return dict(zip(loop.columns, np.moveaxis(table, -1, 0)))
