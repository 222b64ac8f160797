"""The compiled part of the training loop: start, and take some steps."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Float, Int, Key, PyTree

from quell._batches import Batches
from quell.estimators import Estimator


class RunKeys(NamedTuple):
    """The keys of one run, split once from the user's.

    Attributes:
      params: draws the initial parameters.
      init: initialises the estimator.
      batches: chooses the mini-batches.
      steps: with the number of a step folded in, draws its noise.
      monitors: with the number of a step folded in, serves its monitors.
    """

    params: Key[Array, ""]
    init: Key[Array, ""]
    batches: Key[Array, ""]
    steps: Key[Array, ""]
    monitors: Key[Array, ""]


@jax.jit
def run_keys(key: Key[Array, "*seeds"]) -> RunKeys:
    """The keys of a run, or of each of several."""
    split = (
        jax.random.split(key, 5) if key.ndim == 0 else jax.vmap(jax.random.split, (0, None))(key, 5)
    )
    return RunKeys(*jnp.moveaxis(split, -1, 0))


class Carried(NamedTuple):
    """What passes from one step to the next.

    Attributes:
      params: θ.
      optimizer_state: the state of the optimiser.
      estimator_state: the state of the gradient estimator.
    """

    params: PyTree[Array]
    optimizer_state: PyTree[Array]
    estimator_state: PyTree[Array]


class Step(NamedTuple):
    """One step as a monitor sees it: before the parameters are updated.

    Attributes:
      key: a key of the step's own, for whatever the monitor draws.
      step: how many steps were taken before.
      params: θ.
      batch: the mini-batch, leaves `[B, ...]`.
      value: the estimate of the objective.
      gradient: the estimate of its gradient.
      estimator_state: the state that the estimate was made with.
    """

    key: Key[Array, ""]
    step: Int[Array, ""]
    params: PyTree[Array]
    batch: PyTree[Array]
    value: Float[Array, ""]
    gradient: PyTree[Array]
    estimator_state: PyTree[Array]


Monitor = Callable[[Step], Float[Array, ""]]


class Loop(NamedTuple):
    """A compiled training loop.

    Attributes:
      start: `start(keys, params, data)`, what the first step is given.
      advance: `advance(keys, carried, data, step, steps)`, what the next `steps ≤ length` steps
        leave, and a table `[length, columns]` of which they fill the first rows. It consumes
        `carried`. One compilation serves every `step` and `steps`, and rows do not depend on how
        a run is cut into calls.
      length: the most steps of one call.
      columns: what each column of the table is: "objective", "gradient_norm", "correction_norm"
        and the monitors' names.
    """

    start: Callable[..., Carried]
    advance: Callable[..., tuple[Carried, Float[Array, "length columns"]]]
    length: int
    columns: tuple[str, ...]


def compiled_loop(
    estimator: Estimator,
    optimizer: optax.GradientTransformation,
    batches: Batches,
    monitors: Mapping[str, Monitor],
    *,
    num_data: int,
    batch_size: int,
    length: int,
    monitor_every: int,
    seeds: bool,
) -> Loop:
    """The loop of one configuration; with `seeds`, over a leading axis of keys and of what is
    carried."""
    optimizer = optax.with_extra_args_support(optimizer)
    columns = ("objective", "gradient_norm", "correction_norm", *monitors)

    def start(keys: RunKeys, params, data):
        estimator_state = estimator.init(keys.init, params, data)
        carried = Carried(params, optimizer.init(params), estimator_state)
        return jax.tree.map(_strongly_typed, carried)

    def watch(key, step, *rest):
        def ask():
            seen = Step(jax.random.fold_in(key, step), step, *rest)
            return [jnp.asarray(monitor(seen), float) for monitor in monitors.values()]

        def skip():
            return [jnp.asarray(jnp.nan, float) for _ in monitors]

        return lax.cond(step % monitor_every == 0, ask, skip)

    def one_step(key, monitor_key, step, carried: Carried, batch):
        params, optimizer_state, state = carried
        gradient, value, new_state = estimator.estimate(key, params, batch, state)
        updates, optimizer_state = optimizer.update(gradient, optimizer_state, params, value=value)
        row = [value, optax.tree.norm(gradient), getattr(new_state, "correction_norm", 0.0)]
        if monitors:
            row += watch(monitor_key, step, params, batch, value, gradient, state)
        new_params = optax.apply_updates(params, updates)
        row = jnp.stack([jnp.asarray(entry, float) for entry in row])
        return Carried(new_params, optimizer_state, new_state), row

    def advance(keys: RunKeys, carried, data, step, steps):
        indices = batches(keys.batches, step, length, num_data, batch_size)
        step_keys = jax.vmap(jax.random.fold_in, (None, 0))(keys.steps, step + jnp.arange(length))
        # One gather for all steps: its cache misses overlap, which they would not one step a time.
        rows = jax.tree.map(lambda leaf: leaf.at[indices].get(mode="promise_in_bounds"), data)

        def body(i, state):
            carried, table = state
            batch = jax.tree.map(lambda leaf: leaf[i], rows)
            carried, row = one_step(step_keys[i], keys.monitors, step + i, carried, batch)
            return carried, table.at[i].set(row, mode="promise_in_bounds")

        table = jnp.zeros((length, len(columns)), float)
        return lax.fori_loop(0, steps, body, (carried, table))

    if seeds:
        start = jax.vmap(start, (0, 0, None))
        advance = jax.vmap(advance, (0, 0, None, None, None))
    return Loop(jax.jit(start), jax.jit(advance, donate_argnums=1), length, columns)


def _strongly_typed(leaf: Any) -> Array:
    """The leaf with a dtype that arithmetic with other arrays does not change."""
    leaf = jnp.asarray(leaf)
    return lax.convert_element_type(leaf, leaf.dtype)
