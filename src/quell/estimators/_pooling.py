"""Pooling: the parameters that share a coefficient."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float


class Pooling(NamedTuple):
    """A division of the entries of a gradient into groups of one coefficient each.

    Attributes:
      split: turns k gradients, leaves `[k, ...]`, into blocks `[G, k, n]`: G groups of n entries.
      join: `join(blocks, leaves)` turns blocks `[G, n]` into arrays shaped like the leaves.
    """

    split: Callable[[list[Array]], list[Float[Array, "G k n"]]]
    join: Callable[[list[Float[Array, "G n"]], list[Array]], list[Array]]


def _join_leaves(blocks, leaves):
    return [block.reshape(leaf.shape) for block, leaf in zip(blocks, leaves)]


def _join_all(blocks, leaves):
    ends = [sum(leaf.size for leaf in leaves[: i + 1]) for i in range(len(leaves) - 1)]
    return _join_leaves(jnp.split(blocks[0][0], ends), leaves)


one_coefficient = Pooling(
    split=lambda leaves: [
        jnp.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)[None]
    ],
    join=_join_all,
)
"""One coefficient for all parameters."""

per_leaf = Pooling(
    split=lambda leaves: [leaf.reshape(1, len(leaf), -1) for leaf in leaves], join=_join_leaves
)
"""One coefficient for each leaf of the parameters."""

per_entry = Pooling(
    split=lambda leaves: [leaf.reshape(len(leaf), -1).T[..., None] for leaf in leaves],
    join=_join_leaves,
)
"""One coefficient for each parameter."""
