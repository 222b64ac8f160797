"""Recognition networks: what of the context h(y) is made of."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from quell._errors import invalid
from quell._products import times


class Layers(NamedTuple):
    """A network and its derivative, row by row: those of many batches can be pulled back at once.

    Attributes:
      forward: `forward(params, context)` gives what each layer is given and the output, each with a
        column of ones, `[B, ...]`.
      backward: `backward(params, kept, by_output)` gives the gradient by the parameters, from what
        `forward` gave and the gradient by its last.
    """

    forward: Callable[[PyTree[Array], Float[Array, "B C"]], list[Float[Array, "B n"]]]
    backward: Callable[..., PyTree[Array]]


class Network(NamedTuple):
    """A recognition network without its last layer.

    Attributes:
      init: `init(key, context)` gives the parameters for contexts `[B, C]`.
      apply: `apply(params, context)` gives the trunk's output `[B, H]`.
      layers: the same layer by layer, where they are known.
    """

    init: Callable[[Key[Array, ""], Float[Array, "B C"]], PyTree[Array]]
    apply: Callable[[PyTree[Array], Float[Array, "B C"]], Float[Array, "B H"]]
    layers: Layers | None = None


def multilayer(hidden: Sequence[int]) -> Network:
    """Dense layers `[n + 1, m]`, the last row a bias; Xavier-initialised, ReLU after each."""
    if not hidden or any(not isinstance(width, int) or width < 1 for width in hidden):
        raise invalid(
            "hidden",
            expected="widths of at least one layer, such as (128, 128, 128)",
            got=hidden,
            advice="Use coefficients.context_free for no network at all.",
        )
    xavier = jax.nn.initializers.glorot_uniform()

    def init(key, context):
        widths = (context.shape[-1], *hidden)
        keys = jax.random.split(key, len(hidden))
        kernels = [xavier(k, shape) for k, shape in zip(keys, pairwise(widths))]
        return [jnp.pad(kernel, ((0, 1), (0, 0))) for kernel in kernels]

    def forward(params, context):
        kept = [with_one(context)]
        for layer in params:
            kept.append(with_one(jax.nn.relu(times(kept[-1], layer))))
        return kept

    def backward(params, kept, by_output):
        gradient = []
        for layer, given, made in reversed(list(zip(params, kept, kept[1:]))):
            by_output = jnp.where(made > 0, by_output, 0)[:, :-1]
            gradient.append(given.T @ by_output)
            by_output = by_output @ layer.T
        return gradient[::-1]

    def apply(params, context):
        return forward(params, context)[-1][:, :-1]

    return Network(init, apply, Layers(forward, backward))


def as_network(network: Any) -> Network:
    """An `(init, apply)` pair, a Flax module or an Equinox module as a trunk."""
    if hasattr(network, "init") and hasattr(network, "apply"):
        return Network(network.init, network.apply)
    if isinstance(network, tuple) and len(network) == 2:
        return Network(*network)
    if callable(network):
        leaves, treedef = jax.tree.flatten(network)
        is_weight = [_is_weight(leaf) for leaf in leaves]

        def init(key, context):
            return [leaf for leaf, keep in zip(leaves, is_weight) if keep]

        def apply(params, context):
            weights = iter(params)
            rebuilt = [next(weights) if keep else leaf for leaf, keep in zip(leaves, is_weight)]
            return jax.vmap(treedef.unflatten(rebuilt))(context)

        return Network(init, apply)
    raise invalid(
        "network",
        expected="an (init, apply) pair, a Flax module or an Equinox module",
        got=type(network).__name__,
        advice="Wrap the network in a pair of functions.",
    )


def _is_weight(leaf: Any) -> bool:
    """Whether a leaf of a module is an array of weights."""
    return isinstance(leaf, jax.Array | np.ndarray) and jnp.issubdtype(leaf.dtype, jnp.inexact)


def with_one(x: Float[Array, "B n"]) -> Float[Array, "B n+1"]:
    """A column of ones after the last."""
    return jnp.pad(x, ((0, 0), (0, 1)), constant_values=1)
