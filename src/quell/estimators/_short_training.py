"""A short training on plain gradients, before anything is chosen: where training leads."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Key, PyTree

from quell._objective import Objective, batch_size
from quell.estimators._sampling import monte_carlo


def short_training(
    key: Key[Array, ""],
    objective: Objective,
    params: PyTree[Array],
    data: PyTree[Array],
    *,
    examples: int,
    optimizer: optax.GradientTransformation,
    num_steps: int,
    keep: Callable[[PyTree[Array]], PyTree[Array]] = lambda params: (),
) -> tuple[PyTree[Array], PyTree[Array]]:
    """Some steps on plain gradients, in one compiled call.

    Args:
      key: for batches, drawn with replacement, and noise.
      objective: L.
      params: θ, where it starts.
      data: leaves `[N, ...]`.
      examples: |B|.
      optimizer: any optax optimiser.
      num_steps: T.
      keep: what to keep of the parameters after each step; nothing by default.

    Returns:
      The parameters at the end, and what was kept, leaves `[T, ...]`.
    """
    plain = monte_carlo()(objective)
    N = batch_size(data)

    def step(carried: Any, key):
        params, state, data = carried
        batch_key, noise_key = jax.random.split(key)
        rows = jax.random.randint(batch_key, (min(examples, N),), 0, N)
        batch = jax.tree.map(lambda y: y[rows], data)
        gradient, _, _ = plain.estimate(noise_key, params, batch, ())
        updates, state = optimizer.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
        return (params, state, data), keep(params)

    @jax.jit
    def run(params, data, keys):
        (params, _, _), kept = jax.lax.scan(step, (params, optimizer.init(params), data), keys)
        return params, kept

    data = jax.tree.map(jnp.asarray, data)
    return run(params, data, jax.random.split(key, num_steps))
