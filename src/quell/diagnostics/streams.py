"""Mini-batches and keys for measuring, compiled once for every estimator that is measured."""

from functools import partial

import jax
from jaxtyping import Array, Int32, Key

from quell._batches import reshuffle


@partial(jax.jit, static_argnums=(1, 2, 3))
def consecutive_batches(
    key: Key[Array, ""], steps: int, num_data: int, batch_size: int
) -> tuple[Int32[Array, "steps B"], Key[Array, " steps"]]:
    """The batches of so many steps of training, and a key for each step."""
    batch_key, noise_key = jax.random.split(key)
    indices = reshuffle(batch_key, 0, steps, num_data, batch_size)
    return indices, jax.random.split(noise_key, steps)


@partial(jax.jit, static_argnums=(1, 2, 3, 4, 5))
def crossed_batches(
    key: Key[Array, ""], blocks: int, M: int, K: int, num_data: int, batch_size: int
) -> tuple[Int32[Array, "blocks M B"], Key[Array, "blocks K"]]:
    """For each block, M independent batches without replacement, and K keys."""
    batch_key, noise_key = jax.random.split(key)

    def choose(key):
        return reshuffle(key, 0, 1, num_data, batch_size)[0]

    indices = jax.vmap(choose)(jax.random.split(batch_key, blocks * M))
    return indices.reshape(blocks, M, batch_size), jax.random.split(noise_key, (blocks, K))
