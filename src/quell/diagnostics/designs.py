"""Batches and keys for measurements, chosen on the host: there is nothing to compile."""

import jax
import numpy as np
from jaxtyping import Array, Int32, Key


def consecutive(
    key: Key[Array, ""], steps: int, num_data: int, batch_size: int
) -> tuple[Int32[Array, "steps B"], Key[Array, " steps"]]:
    """The batches of some steps of training by random reshuffling, and a key for each step.

    >>> indices, keys = consecutive(jax.random.key(0), 2, 6, 3)
    >>> sorted(indices.ravel().tolist()), keys.shape
    ([0, 1, 2, 3, 4, 5], (2,))
    """
    rng, rows = _generator(key), steps * batch_size
    if rows <= num_data:
        order = rng.choice(num_data, rows, replace=False)
    else:
        epochs = np.tile(np.arange(num_data), (-(-rows // num_data), 1))
        order = rng.permuted(epochs, axis=1).ravel()[:rows]
    return _on_device(order.reshape(steps, batch_size)), _keys(key, rng, steps)


def crossed(
    key: Key[Array, ""], blocks: int, length: int, design: tuple[int, int], num_data: int, size: int
) -> tuple[Int32[Array, "length M B"], Key[Array, "length K"]]:
    """For each block M independent batches without replacement, and K keys.

    Args:
      key: the key.
      blocks: the number of blocks that are used.
      length: the number of blocks, with those that are not.
      design: M and K.
      num_data: N.
      size: |B|.
    """
    rng, (M, K) = _generator(key), design
    indices = np.zeros((length, M, size), np.int64)
    for block in range(blocks):
        indices[block] = [rng.choice(num_data, size, replace=False) for _ in range(M)]
    return _on_device(indices), _keys(key, rng, length, K)


def _generator(key: Key[Array, ""]) -> np.random.Generator:
    return np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())


def _on_device(indices: np.ndarray) -> Int32[Array, "..."]:
    return jax.device_put(indices.astype(np.int32))


def _keys(key: Key[Array, ""], rng: np.random.Generator, *shape: int) -> Key[Array, "..."]:
    """Independent keys of the same kind."""
    words = (*shape, *jax.random.key_data(key).shape)
    data = rng.integers(0, 2**32, words, np.uint32)
    return jax.random.wrap_key_data(jax.device_put(data), impl=jax.random.key_impl(key))
