"""Adam for coefficients: the steps of `optax.adam` with a third of its divisions.

With the bias corrections c₁ and c₂ of the moments m and v,

    (m/c₁) / (√(v/c₂) + ε) = (√c₂/c₁) · m / (√v + √c₂ ε),

so that they become scalars. A recognition network has tens of thousands of weights where a model
may have a dozen, and divisions are most of what its optimiser costs.
"""

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float


def adam(
    rate: float | Float[Array, ""],
    decay_mean: float = 0.9,
    decay_square: float = 0.999,
    eps: float = 1e-8,
) -> optax.GradientTransformation:
    """Adam, as in `optax.adam`, up to rounding."""

    def init(params):
        zeros = jax.tree.map(jnp.zeros_like, params)
        return optax.ScaleByAdamState(jnp.zeros((), jnp.int32), zeros, zeros)

    def update(updates, state, params=None):
        count = optax.safe_increment(state.count)
        m = jax.tree.map(lambda m, g: decay_mean * m + (1 - decay_mean) * g, state.mu, updates)
        v = jax.tree.map(
            lambda v, g: decay_square * v + (1 - decay_square) * g**2, state.nu, updates
        )
        root = jnp.sqrt(1 - decay_square**count)
        scale = -rate * root / (1 - decay_mean**count)
        step = jax.tree.map(lambda m, v: scale * m / (jnp.sqrt(v) + root * eps), m, v)
        return step, optax.ScaleByAdamState(count, m, v)

    return optax.GradientTransformation(init, update)
