"""The compiled part of the training loop: it starts a run and takes some steps."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Float, Int, Key, PyTree

from quell import _tree
from quell._errors import invalid
from quell._jit import quick_jit, rare_jit
from quell._tree import strongly_typed, take
from quell.estimators._types import Batch, Estimate, Refresh, Started
from quell.objective import Objective
from quell.training.batches import Batches

PATIENCE = 100  # steps in a row that are not finite, after which a run stands still


class RunKeys(NamedTuple):
    """The keys of one run, split once from the user's key.

    Attributes:
      params: draws the initial parameters.
      init: initialises the estimator.
      batches: chooses the mini-batches.
      steps: with the number of a step folded in, draws its noise.
      monitors: with the number of a step folded in, serves its monitors.
      refreshes: with the number of a step folded in, refreshes the estimator before it.
    """

    params: Key[Array, ""]
    init: Key[Array, ""]
    batches: Key[Array, ""]
    steps: Key[Array, ""]
    monitors: Key[Array, ""]
    refreshes: Key[Array, ""]


@quick_jit
def run_keys(key: Key[Array, "*seeds"]) -> RunKeys:
    """The keys of a run, or of each of several runs."""

    def split(key):
        streams = jax.random.split(key, 5)
        return RunKeys(*streams, refreshes=jax.random.fold_in(key, 6))  # `start_key` folds in 5

    return jax.vmap(split)(key) if key.ndim else split(key)


@quick_jit
def start_key(key: Key[Array, "*seeds"]) -> Key[Array, ""]:
    """The key that starts the estimator, the same for all seeds and apart from `run_keys`."""
    return jax.random.fold_in(key[0] if key.ndim else key, 5)  # not one of the keys of a run


class Carried(NamedTuple):
    """The arrays that pass from one step to the next.

    Attributes:
      params: θ.
      optimizer_state: the state of the optimiser.
      estimator_state: the state of the gradient estimator.
      failures: the number of steps in a row, up to now, that were not finite, `[]`.
    """

    params: PyTree[Array]
    optimizer_state: PyTree[Array]
    estimator_state: PyTree[Array]
    failures: Int[Array, ""] | int = 0


class Step(NamedTuple):
    """One step as a monitor sees the step: before the parameters are updated.

    Attributes:
      key: a key of this step, for all draws of the monitor.
      step: the number of steps taken before.
      params: θ.
      batch: the mini-batch, a `Batch`.
      value: the estimate of the objective.
      gradient: the estimate of its gradient.
      estimator_state: the state with which the estimate was made.
      objective: L.
      estimate: `estimate(key, params, batch, state)`, the estimator of the run.
    """

    key: Key[Array, ""]
    step: Int[Array, ""]
    params: PyTree[Array]
    batch: Batch
    value: Float[Array, ""]
    gradient: PyTree[Array]
    estimator_state: PyTree[Array]
    objective: Objective
    estimate: Callable[[Key[Array, ""], PyTree[Array], Batch, PyTree[Array]], Estimate]


class Loop(NamedTuple):
    """A compiled training loop.

    Attributes:
      start: `start(keys, params)` gives the arrays for the first step.
      advance: `advance(keys, carried, data, step, steps)` gives the arrays after the next
        `steps ≤ length` steps, and a table `[length, columns]` whose first rows the steps fill. The
        call consumes `carried`. One compilation serves every `step` and `steps`, and rows do not
        depend on how a run is cut into calls.
      refresh: `refresh(keys, carried, data, step)` gives the arrays for this step after the rare
        work of the estimator, if there is any and it is due. The call consumes `carried`.
      refresh_now: the same, due or not; None if the estimator has no such work.
      next_visit: `next_visit(step)`, the next step before which `refresh` must be called.
      length: the most steps of one call.
      columns: the name of each column of the table: "objective", "gradient_norm",
        "correction_norm", "skipped" and the monitors' names.
    """

    start: Callable[..., Carried]
    advance: Callable[..., tuple[Carried, Float[Array, "length columns"]]]
    refresh: Callable[..., Carried]
    refresh_now: Callable[..., Carried] | None
    next_visit: Callable[[int], int]
    length: int
    columns: tuple[str, ...]


def compiled_loop(
    started: Started,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    batches: Batches,
    monitors: Sequence[Any] = (),
    *,
    batch_size: int,
    length: int,
    seeds: bool = False,
    jit: Callable[..., Any] = jax.jit,
) -> Loop:
    """The loop of one configuration, compiled at its first call.

    A step whose objective, gradient or next parameters are not finite is skipped: everything that
    is carried keeps its value. After `PATIENCE` such steps in a row the run stands still.

    Args:
      started: the gradient estimator.
      monitors: hooks with `functions`, pairs of a name and a function of a `Step`, and `every`.
      length: the most steps of one call.
      jit: how the steps are compiled, `jax.jit` or quicker.
      seeds: whether keys and carried arrays have a leading axis, with one run for each entry.
    """
    optimizer = optax.with_extra_args_support(optimizer)  # some optimisers need `value`
    names = [name for hook in monitors for name, _ in hook.functions]
    columns = ("objective", "gradient_norm", "correction_norm", "skipped", *names)

    def start(keys: RunKeys, params):
        state = started.init(keys.init, params)
        # Weak types become strong after a step, which would compile the loop a second time.
        return strongly_typed(Carried(params, optimizer.init(params), state))

    def estimate(key, params, batch, state):
        return started.estimate(key, objective, params, batch, state)

    def watch(hook, seen: Step):
        def ask():
            return [_watched(name, function(seen)) for name, function in hook.functions]

        def skip():
            return [jnp.asarray(jnp.nan, float) for _ in hook.functions]

        return lax.cond(seen.step % hook.every == 0, ask, skip)  # costs nothing in between

    def one_step(key, monitor_key, step, carried: Carried, batch: Batch):
        params, optimizer_state, state, failures = carried
        gradient, value, new_state, correction_norm = estimate(key, params, batch, state)
        gradient = _tree.typed_like(gradient, params)
        norm = _tree.norm(gradient)
        updates, new_optimizer_state = optimizer.update(
            gradient, optimizer_state, params, value=value
        )
        new_params = optax.apply_updates(params, updates)
        finite = jnp.isfinite(value) & jnp.isfinite(norm) & _tree.finite(new_params)
        taken = finite & (failures < PATIENCE)
        row = [value, norm, correction_norm, ~taken]
        if monitors:
            own_key = jax.random.fold_in(monitor_key, step)  # monitors do not change the run
            seen = Step(own_key, step, params, batch, value, gradient, state, objective, estimate)
            row += [entry for hook in monitors for entry in watch(hook, seen)]
        failures = jnp.where(taken, 0, failures + 1)
        reached = Carried(new_params, new_optimizer_state, new_state, failures)
        reached = _tree.typed_like(reached, carried)
        kept = carried._replace(failures=failures)
        if started.guarded:  # then a choice would only cost a copy
            kept = kept._replace(estimator_state=reached.estimator_state)
        row = jnp.stack([jnp.asarray(entry, float) for entry in row])
        return _tree.where(taken, reached, kept), row

    def advance(keys: RunKeys, carried, data, step, steps):
        width = min(length, _GATHER)

        def stretch(j, state):
            begin = j * width
            first = step + begin
            indices = batches(keys.batches, first, width, objective.num_data, batch_size)
            step_keys = jax.vmap(jax.random.fold_in, (None, 0))(
                keys.steps, first + jnp.arange(width)
            )
            # One gather for some steps: its cache misses overlap, unlike a gather per step.
            gathered = take(data, indices)

            def body(i, state):
                carried, table = state
                batch = Batch(jax.tree.map(lambda leaf: leaf[i], gathered), indices[i], data)
                carried, row = one_step(step_keys[i], keys.monitors, first + i, carried, batch)
                return carried, table.at[begin + i].set(row, mode="promise_in_bounds")

            return lax.fori_loop(0, jnp.minimum(width, steps - begin), body, state)

        table = jnp.zeros((length, len(columns)), float)  # one shape for every count of steps
        # A traced count: one compilation for every chunk, short chunks included.
        return lax.fori_loop(0, (steps + width - 1) // width, stretch, (carried, table))

    work = started.refresh or _NOTHING

    def due(carried: Carried):
        return work.due(carried.estimator_state, batch_size)

    def refreshed(keys: RunKeys, carried: Carried, data, step):
        key = jax.random.fold_in(keys.refreshes, step)
        params, state = carried.params, carried.estimator_state
        refreshed = work.run(key, objective, params, data, batch_size, state)
        return carried._replace(estimator_state=_tree.typed_like(refreshed, state))

    if seeds:
        start, due = jax.vmap(start), jax.vmap(due)
        advance = jax.vmap(advance, (0, 0, None, None, None))
        refreshed = _one_by_one(refreshed)
    # Donated buffers are written in place: states may be as large as tables over the data.
    due, refreshed = quick_jit(due), rare_jit(refreshed, donate_argnums=1)

    def refresh(keys, carried, data, step):
        if started.refresh is None or not is_visit(step) or not bool(due(carried).any()):
            return carried
        return refreshed(keys, carried, data, step)

    def visit(step):
        return next_visit(step) if started.refresh else _NEVER

    advance = jit(advance, donate_argnums=1)
    now = refreshed if started.refresh else None
    return Loop(jax.jit(start), advance, refresh, now, visit, length, columns)


def _watched(name: str, value: Any) -> Float[Array, ""]:
    """The value of a monitor, which must be one number."""
    if jnp.shape(value) or (not hasattr(value, "dtype") and not isinstance(value, int | float)):
        got = f"shape {jnp.shape(value)}" if jnp.shape(value) else type(value).__name__
        raise invalid(
            f"monitor {name}",
            expected="a function of a Step that returns one number, of shape ()",
            got=got,
            advice="Reduce it, for example with .sum() or .mean().",
        )
    return jnp.asarray(value, float)


def _one_by_one(refreshed: Callable[..., Carried]) -> Callable[..., Carried]:
    """The same for several runs, one after the other: the pass over the data bounds the memory."""

    def every(keys, carried, data, step):
        return lax.map(lambda run: refreshed(*run, data, step), (keys, carried))

    return every


_NOTHING = Refresh(lambda state, batch_size: jnp.zeros((), bool), lambda *a: a[-1])
_GATHER = 64  # batches gathered at once: their cache misses overlap
_EARLY = (10, 18, 32, 56, 100, 178, 316, 562, 750, 1000)  # visits at the start
_LONGEST = 500  # steps between visits later
_NEVER = 2**31  # beyond the end of any run


def is_visit(step: int) -> bool:
    """Whether an estimator may be refreshed before this step: a matter of the step alone."""
    return step == 0 or step in _EARLY or (step > _EARLY[-1] and step % _LONGEST == 0)


def next_visit(step: int) -> int:
    """The next step before which an estimator may be refreshed.

    >>> next_visit(0), next_visit(20), next_visit(1600)
    (10, 32, 2000)
    """
    early = [visit for visit in _EARLY if visit > step]
    return early[0] if early else (step // _LONGEST + 1) * _LONGEST
