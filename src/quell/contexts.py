"""Context maps h(y): what the coefficients may depend on, as a vector for each example."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from quell._objective import batch_size


class Context(NamedTuple):
    """h(y), fixed once it is initialised.

    Attributes:
      init: `init(key, context)` fits the map to the contexts of the data, leaves `[N, ...]`.
      apply: `apply(state, context)` gives h `[B, H]`.
    """

    init: Callable[[Key[Array, ""] | None, PyTree[Array]], PyTree[Array]]
    apply: Callable[[PyTree[Array], PyTree[Array]], Float[Array, "B H"]]


def as_matrix(context: PyTree[Array]) -> Float[Array, "B C"]:
    """Every example's context as one row: all leaves, raveled and put side by side.

    >>> as_matrix({"x": jnp.ones((5, 2)), "y": jnp.arange(5)}).shape
    (5, 3)
    """
    B = batch_size(context)
    leaves = [jnp.asarray(leaf, float).reshape(B, -1) for leaf in jax.tree.leaves(context)]
    return leaves[0] if len(leaves) == 1 else jnp.concatenate(leaves, axis=1)


def constant() -> Context:
    """h(y) = 1: context-free."""

    def apply(state: Any, context):
        return jnp.ones((batch_size(context), 1))

    return Context(init=lambda key, context: (), apply=apply)
