"""The training loop: one call from an objective and data to fitted parameters."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Key, PyTree

from quell._tree import number_of_parameters
from quell.estimators._sampling import monte_carlo
from quell.estimators._types import Estimator
from quell.objective import Objective
from quell.training.batches import Batches, reshuffle
from quell.training.checks import check_finite, checked_arguments
from quell.training.hooks import Callback, Checkpoint, Hook, Monitors, Progress
from quell.training.identity import identity_of
from quell.training.loop import Carried, Loop, RunKeys, compiled_loop, run_keys, start_key
from quell.training.progress import Bar, default_bar
from quell.training.resume import held_back, saving

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
        "gradient_norm", ‖G̃‖; "correction_norm", ‖Ĝ − G̃‖, zero without a control variate; and the
        value of each monitor, NaN at steps without an evaluation.
      num_steps: the number of steps taken.
    """

    params: PyTree[Array]
    estimator_state: PyTree[Array]
    optimizer_state: PyTree[Array]
    history: History
    num_steps: int

    def __repr__(self) -> str:
        last = self.history["objective"][..., -100:].mean() if self.num_steps else np.nan
        P = number_of_parameters(self.params)
        return f"Fit({self.num_steps} steps, {P} parameters, objective about {last:.5g})"


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
    data = checked_arguments(
        key,
        objective,
        data,
        optimizer,
        estimator,
        hooks,
        num_steps=num_steps,
        batch_size=batch_size,
    )
    keys = run_keys(key)
    initial = _initial(params, keys.params)
    # an estimator looks at the problem once, on the host: the first run stands for all
    one = jax.tree.map(lambda leaf: leaf[0], initial) if key.ndim else initial
    visits = [hook for hook in hooks if isinstance(hook, Callback | Checkpoint)]
    loop = compiled_loop(
        estimator.start(start_key(key), objective, one, data),
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
        carried = _run(loop, keys, carried, data, step, table, every, visit, bar)
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
    bar: Bar,
) -> Carried:
    """Take the steps from `step` on, chunk by chunk, filling the table."""
    num_steps = table.shape[-2]
    pace = 1 if step == 0 else loop.length  # the first step alone, so that it can be checked
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
            if step == 0:
                check_finite(table[..., 0, 0], data)
                pace = loop.length
            else:
                seconds = (time.monotonic() - began) / steps  # chunks decide visits, never results
                pace = min(loop.length, max(1, int(_CHUNK_SECONDS / seconds)))
            step += steps
            objective = float(np.mean(table[..., step - 1, 0]))
            visit(step, carried)
        bar.update(step, objective)
    finally:
        bar.close()
    return carried


def _chunk_length(data: PyTree[Array], batch_size: int, needed: list[int]) -> int:
    """The largest number of steps of a chunk: a power of two, so that few lengths are compiled."""
    row_bytes = sum(leaf.nbytes // leaf.shape[0] for leaf in jax.tree.leaves(data))
    wanted = max(_CHUNK_LEAST, min(_CHUNK_STEPS, *needed))  # no longer than between visits
    most = max(1, min(wanted, _CHUNK_BYTES // (batch_size * (row_bytes + 4))))
    return 1 << (most - 1).bit_length()


def _initial(params: Any, key: Key[Array, "*seeds"]) -> PyTree[Array]:
    """θ₀, with a leading axis if the key has one."""
    # A pytree may be callable too, such as a module of Equinox; a function is its own leaf.
    is_function = callable(params) and jax.tree_util.all_leaves([params])
    if is_function:
        return jax.vmap(params)(key) if key.ndim else params(key)
    # A copy, since the loop consumes its arguments.
    return jax.tree.map(
        lambda leaf: jnp.array(jnp.broadcast_to(leaf, (*key.shape, *jnp.shape(leaf)))), params
    )


def _history(loop: Loop, table: Float[np.ndarray, "*seeds T columns"]) -> History:
    return dict(zip(loop.columns, np.moveaxis(table, -1, 0)))
