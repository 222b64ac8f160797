"""Adam that looks at its second moments now and then.

A recognition network has tens of thousands of weights where a model may have a dozen, and what its
optimiser does to each of them is a large part of its cost. Second moments average a thousand steps;
a sixteenth of these is enough, and between two looks no square, root or division is taken:

    θ ← θ − rate · clip(m̂ / √v̂, −1, 1),    1/√v kept and renewed every `every` steps.

The clip is what keeps a step bounded when gradients grow between two looks.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Float, Int, PyTree

from quell._errors import invalid

_WARM_UP = 32  # steps with a look each


class LazyAdam(NamedTuple):
    """State of `lazy_adam`.

    Attributes:
      count: steps taken.
      weight: the weight of the squares in v, so that v / weight is their average.
      mean: m, the running mean of the gradients.
      inverse_root: 1/√v; zero where no gradient was seen yet.
    """

    count: Int[Array, ""]
    weight: Float[Array, ""]
    mean: PyTree[Array]
    inverse_root: PyTree[Array]


def lazy_adam(
    rate: float | Float[Array, ""],
    decay_mean: float = 0.9,
    decay_square: float = 0.999,
    *,
    every: int = 16,
) -> optax.GradientTransformation:
    """Adam for large networks of coefficients: as good a step for less time.

    No weight moves by more than `rate` in a step.

    Args:
      rate: the learning rate.
      decay_mean: forgetting of the mean of the gradients, per step.
      decay_square: forgetting of the mean of their squares, per step.
      every: how many steps between two looks at the squares, after the first 32 steps. Under
        `optax.inject_hyperparams`, name it in `static_args`.
    """
    if not isinstance(every, int) or every < 1:
        raise invalid("every", expected="an int ≥ 1", got=every, advice="1 looks at every step.")

    def init(params):
        zeros = jax.tree.map(jnp.zeros_like, params)
        return LazyAdam(jnp.zeros((), jnp.int32), jnp.zeros(()), zeros, zeros)

    def update(updates, state, params=None):
        warming = state.count < _WARM_UP
        due = warming | (state.count % every == 0)
        decay = jnp.where(warming, decay_square, decay_square**every)
        weight = jnp.where(due, decay * state.weight + 1 - decay, state.weight)

        def look(carried):
            def renewed(root, g):
                v = jnp.where(root > 0, decay / root**2, 0) + (1 - decay) * g**2
                return jnp.where(v > 0, lax.rsqrt(v), 0).astype(g.dtype)

            return False, jax.tree.map(renewed, carried[1], updates)

        # A loop of one turn or none works in place, where a cond would copy.
        _, roots = lax.while_loop(lambda carried: carried[0], look, (due, state.inverse_root))
        count = jnp.asarray(optax.safe_increment(state.count))
        scale = jnp.sqrt(weight) / (1 - decay_mean**count)
        m = jax.tree.map(lambda m, g: decay_mean * m + (1 - decay_mean) * g, state.mean, updates)
        step = jax.tree.map(
            lambda m, root: (-rate * jnp.clip(scale * m * root, -1, 1)).astype(m.dtype), m, roots
        )
        return step, LazyAdam(count, weight, m, roots)

    return optax.GradientTransformation(init, update)
