"""Steps of an optimiser on a recognition network, each on the mean gradient of several batches.

A recognition network has tens of thousands of weights where a model may have a dozen, and what an
optimiser does to each of them is a large part of its cost. Between two steps the weights stay as
they are. So the gradients of large batches are summed, as `optax.MultiSteps` does, but without a
copy of the weights; and the rows of small batches wait, to be pulled back through the trunk all at
once, which takes less time than a few at a time.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Float, Int, PyTree

from quell._errors import invalid
from quell.coefficients._network import Layers

_ROWS = 256  # as many may wait; the batches that make more are pulled back one by one


class Weights(NamedTuple):
    """What the optimiser steps on: the trunk's parameters and the last layer Θᵀ `[P, D·H]`."""

    trunk: PyTree[Array]
    theta: Float[Array, "P F"]


class Rows(NamedTuple):
    """What the trunk's gradient is made of.

    Attributes:
      kept: what `Layers.forward` gave, `[R, ...]`.
      by_output: the gradient by the last of them, `[R, H]`.
    """

    kept: list[Float[Array, "R n"]]
    by_output: Float[Array, "R H"]


class Gathered(NamedTuple):
    """State of steps for several batches each.

    Attributes:
      total: the sum of the gradients since the last step, but for the rows that wait.
      rows: those that wait to be pulled back, in the first places; None where none ever do.
      waiting: how many they are, `[]`.
      count: how many batches there were since the last step, `[]`.
      optimizer: the optimiser's state.
    """

    total: Weights
    rows: Rows | None
    waiting: Int[Array, ""]
    count: Int[Array, ""]
    optimizer: PyTree[Array]


class Steps(NamedTuple):
    """How weights move.

    Attributes:
      init: `init(weights, one)` gives the state; `one` is what `Layers.forward` gives for one row.
      waits: `waits(B)` says whether the trunk's gradient of such a batch is to be given as `Rows`.
      take: `take(gradient, state, weights)` gives the weights after this batch, and the state.
    """

    init: Callable[[Weights, list[Float[Array, "1 n"]] | None], PyTree[Array]]
    waits: Callable[[int], bool]
    take: Callable[..., tuple[Any, PyTree[Array]]]


def steps(
    optimizer: optax.GradientTransformation, every: int, layers: Layers | None = None
) -> Steps:
    """A step of the optimiser for every `every` batches, on their mean gradient.

    With the layers of the trunk, the rows of small batches wait.
    """
    if not isinstance(every, int) or every < 1:
        raise invalid(
            "every", expected="an int ≥ 1", got=every, advice="1 is a step for every batch."
        )

    def step(gradient, state, weights):
        updates, state = optimizer.update(gradient, state, weights)
        return optax.apply_updates(weights, updates), state

    if every == 1:
        return Steps(lambda weights, one: optimizer.init(weights), lambda B: False, step)

    def waits(B):
        return layers is not None and every * B <= _ROWS

    def init(weights, one):
        rows = None
        if layers is not None:
            kept = [jnp.zeros((_ROWS, row.shape[1]), row.dtype) for row in one]
            rows = Rows(kept, jnp.zeros_like(kept[-1]))
        zeros = jax.tree.map(jnp.zeros_like, weights)
        none = jnp.zeros((), jnp.int32)
        return Gathered(zeros, rows, none, none, optimizer.init(weights))

    def take(gradient, state: Gathered, weights):
        total, rows, waiting, size = state.total, state.rows, state.waiting, _ROWS
        if isinstance(gradient.trunk, Rows):
            B = gradient.trunk.by_output.shape[0]
            total = total._replace(theta=total.theta + gradient.theta)
            rows = _with(rows, gradient.trunk, waiting)
            waiting, size = waiting + B, every * B
        else:
            total = jax.tree.map(jnp.add, total, gradient)
        count = state.count + 1

        def turn(carried):
            due, sums, weights, inner = carried
            total = sums
            if rows is not None:
                trunk = _pulled_back(layers, weights.trunk, rows, waiting, size, sums.trunk)
                total = sums._replace(trunk=trunk)
            mean = jax.tree.map(lambda t: t / every, total)
            emptied = jax.tree.map(lambda t: jnp.where(due, 0, t), total)  # in place
            return False, emptied, *step(mean, inner, weights)

        # A loop of one turn or none works in place, where a cond would copy.
        due = count == every
        start = due, total, weights, state.optimizer
        _, total, weights, inner = lax.while_loop(lambda c: c[0], turn, start)
        waiting = jnp.where(due, 0, waiting)
        return weights, Gathered(total, rows, waiting, count % every, inner)

    return Steps(init, waits, take)


def _with(rows: Rows | None, new: Rows, place: Int[Array, ""]) -> PyTree[Array]:
    """Rows with new ones written from a place on."""

    def write(all, new):
        return lax.dynamic_update_slice_in_dim(all, new.astype(all.dtype), place, 0)

    return jax.tree.map(write, rows, new)


def _pulled_back(layers, trunk, rows: Rows, waiting, size: int, total) -> PyTree[Array]:
    """The trunk's gradients, with those of the rows that wait.

    The rows are taken `size` at a time, which is all of them, unless some came with larger batches
    than the last.
    """

    def add(i, total):
        start = jnp.minimum(i * size, _ROWS - size)
        place = start + jnp.arange(size)
        kept, by_output = jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, start, size), rows)
        these = (place >= i * size) & (place < waiting)
        gradient = layers.backward(trunk, kept, jnp.where(these[:, None], by_output, 0))
        return jax.tree.map(jnp.add, total, gradient)

    return lax.fori_loop(0, -(-waiting // size), add, total)
