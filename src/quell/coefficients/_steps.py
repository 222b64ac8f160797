"""Steps of an optimiser on a recognition network, each on the mean gradient of several batches.

A recognition network has tens of thousands of weights where a model may have a dozen, and what an
optimiser does to each of them is a large part of its cost. So the gradients of a few batches are
summed, as `optax.MultiSteps` does, but without a copy of the weights; and small batches wait, so
that there is one gradient of all of them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PyTree

from quell._errors import invalid
from quell.coefficients._waiting import Joined, Waiting, emptied, first


class Weights(NamedTuple):
    """What the optimiser steps on: the trunk's parameters and the last layer Θᵀ `[P, D·H]`."""

    trunk: PyTree[Array]
    theta: Float[Array, "P F"]


class Gathered(NamedTuple):
    """State of steps for several batches each.

    Attributes:
      total: the sum of the gradients since the last step, but for the batches that wait.
      waiting: those; None where none ever do.
      count: how many batches there were since the last step, `[]`.
      optimizer: the optimiser's state.
    """

    total: PyTree[Array]
    waiting: Waiting | None
    count: Int[Array, ""]
    optimizer: PyTree[Array]


class Steps(NamedTuple):
    """How weights move.

    Attributes:
      init: `init(weights, waiting)` gives the state, with places for batches that wait or None.
      take: `take(new, state, weights, summed)` gives the weights after a batch, and the state. New
        is the gradient of the batch; or `Joined`, the batch among those that wait, which have the
        gradient `summed(weights, waiting)`.
      every: how many batches there are to a step.
    """

    init: Callable[[PyTree[Array], Waiting | None], PyTree[Array]]
    take: Callable[..., tuple[Any, PyTree[Array]]]
    every: int


def steps(optimizer: optax.GradientTransformation, every: int) -> Steps:
    """A step of the optimiser for every `every` batches, on their mean gradient."""
    if not isinstance(every, int) or every < 1:
        raise invalid(
            "every", expected="an int ≥ 1", got=every, advice="1 is a step for every batch."
        )

    def step(gradient, state, weights):
        updates, state = optimizer.update(gradient, state, weights)
        return optax.apply_updates(weights, updates), state

    if every == 1:
        return Steps(
            init=lambda weights, waiting: optimizer.init(weights),
            take=lambda gradient, state, weights, summed: step(gradient, state, weights),
            every=1,
        )

    def init(weights, waiting):
        zeros = jax.tree.map(jnp.zeros_like, weights)
        return Gathered(zeros, waiting, jnp.zeros((), jnp.int32), optimizer.init(weights))

    def take(new, state: Gathered, weights, summed):
        total, waiting, moved = state.total, state.waiting, (weights, state.optimizer)
        count = state.count + 1
        due = rest = count == every
        if isinstance(new, Joined):
            waiting = new.waiting
            # All of them wait and none is larger than this one; whatever else there is, is summed.
            usual = (waiting.number == every) & (waiting.size == new.size)

            def together(moved, waiting):
                weights, inner = moved
                return step(mean(summed(weights, first(waiting, new.size))), inner, weights)

            moved, rest = _once(due & usual, together, moved, waiting), due & ~usual
        else:
            total = _plus(total, new)
        if waiting is not None:

            def added(total, weights, waiting):
                return _plus(total, summed(weights, waiting))

            total = _once(rest & (waiting.number > 0), added, total, moved[0], waiting)
            waiting = emptied(waiting, due)

        def on_total(carried):
            total, (weights, inner) = carried
            zeros = jax.tree.map(lambda t: jnp.where(due, 0, t), total)  # in place
            return zeros, step(mean(total), inner, weights)

        total, (weights, inner) = _once(rest, on_total, (total, moved))
        return weights, Gathered(total, waiting, count % every, inner)

    def mean(total):
        return jax.tree.map(lambda t: t / every, total)

    return Steps(init, take, every)


def _plus(a: PyTree[Array], b: PyTree[Array]) -> PyTree[Array]:
    return jax.tree.map(jnp.add, a, b)


def _once(condition: Bool[Array, ""], change: Callable[..., Any], x: Any, *given: Any) -> Any:
    """change(x, *given) where the condition holds, and x where not.

    A loop of one turn or none works in place, where a cond would copy. The barrier keeps XLA from
    doing before the loop, every time, what only the given is needed for.
    """

    def turn(carried):
        condition, x = carried
        condition, *held = lax.optimization_barrier((condition, *given))
        return ~condition, change(x, *held)

    return lax.while_loop(lambda carried: carried[0], turn, (condition, x))[1]
