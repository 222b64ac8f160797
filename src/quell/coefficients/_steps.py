"""Steps of an optimiser, each on the mean gradient of several batches.

A recognition network has tens of thousands of weights where a model may have a dozen, and what an
optimiser does to each of them is a large part of its cost. Between two steps there is one sum, as
with `optax.MultiSteps`, but here the weights stay where they are and are not copied.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Int, PyTree

from quell._errors import invalid


class Gathered(NamedTuple):
    """State of steps for several batches each.

    Attributes:
      total: the sum of the gradients since the last step.
      count: how many they are, `[]`.
      optimizer: the optimiser's state.
    """

    total: PyTree[Array]
    count: Int[Array, ""]
    optimizer: PyTree[Array]


class Steps(NamedTuple):
    """How weights move.

    Attributes:
      init: `init(weights)` gives the state.
      take: `take(gradient, state, weights)` gives the weights after this batch, and the state.
    """

    init: Callable[[PyTree[Array]], PyTree[Array]]
    take: Callable[..., tuple[PyTree[Array], PyTree[Array]]]


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
        return Steps(optimizer.init, step)

    def init(weights):
        zeros = jax.tree.map(jnp.zeros_like, weights)
        return Gathered(zeros, jnp.zeros((), jnp.int32), optimizer.init(weights))

    def take(gradient, state, weights):
        fresh = state.count == 0
        total = jax.tree.map(lambda t, g: jnp.where(fresh, 0, t) + g, state.total, gradient)
        count = state.count + 1

        def turn(carried):
            _, weights, inner = carried
            return False, *step(jax.tree.map(lambda t: t / every, total), inner, weights)

        # A loop of one turn or none works in place, where a cond would copy.
        due = count == every
        _, weights, inner = lax.while_loop(lambda c: c[0], turn, (due, weights, state.optimizer))
        return weights, Gathered(total, count % every, inner)

    return Steps(init, take)
