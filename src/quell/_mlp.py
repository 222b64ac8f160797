"""A small multilayer perceptron: dense layers of a kernel and a bias."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key


class Dense(NamedTuple):
    """One layer: kernel `[n, m]` and bias `[m]`."""

    kernel: Float[Array, "n m"]
    bias: Float[Array, " m"]


def init_layers(
    key: Key[Array, ""],
    widths: Sequence[int],
    initializer: Callable[..., Array] = jax.nn.initializers.lecun_normal(),  # noqa: B008 — pure
) -> list[Dense]:
    """The layers between consecutive widths: `initializer` draws the kernels, biases are zero."""
    keys = jax.random.split(key, len(widths) - 1)
    kernels = [initializer(k, shape) for k, shape in zip(keys, pairwise(widths))]
    return [Dense(kernel, jnp.zeros(kernel.shape[1], kernel.dtype)) for kernel in kernels]


def apply_layers(
    layers: Sequence[Dense],
    x: Float[Array, "... n"],
    activation: Callable[[Array], Array],
    *,
    activate_last: bool = False,
) -> Float[Array, "... m"]:
    """The output of the layers, with the activation between them and, if asked, after the last."""
    for i, layer in enumerate(layers):
        x = x @ layer.kernel + layer.bias
        if i < len(layers) - 1 or activate_last:
            x = activation(x)
    return x
