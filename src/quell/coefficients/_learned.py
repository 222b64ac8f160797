"""Coefficients learned by an optimiser on a criterion: the paper's way."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Key, PyTree

from quell._errors import invalid
from quell.coefficients import _targets
from quell.coefficients._types import Coefficients, Sizes
from quell.contexts import as_matrix


class Network(NamedTuple):
    """A recognition network without its last layer.

    Attributes:
      init: `init(key, context)` gives the parameters for contexts `[B, C]`.
      apply: `apply(params, context)` gives the trunk's output `[B, H]`.
    """

    init: Callable[[Key[Array, ""], Float[Array, "B C"]], PyTree[Array]]
    apply: Callable[[PyTree[Array], Float[Array, "B C"]], Float[Array, "B H"]]


class Weights(NamedTuple):
    """What the optimiser steps on: the trunk's parameters and the last layer Θ `[D·H, P]`."""

    trunk: PyTree[Array]
    theta: Float[Array, "F P"]


class Learned(NamedTuple):
    """State of coefficients learned by an optimiser.

    Attributes:
      weights: the trunk and Θ, at unit scale.
      optimizer: the optimiser's state.
      targets: running mean and scale of the gradients.
    """

    weights: Weights
    optimizer: PyTree[Array]
    targets: _targets.Targets


def context_free(optimizer: optax.GradientTransformation, *, decay: float = 0.99) -> Coefficients:
    """One Θ `[D, P]` for every context, learned by `optimizer`; the paper's baseline.

    Args:
      optimizer: steps on Θ, which is at unit scale whatever the scale of the gradients.
      decay: forgetting of the running mean and scale of the gradients.
    """

    def init_trunk(key, context):
        return ()

    def h(trunk, context, B):
        return jnp.ones((B, 1))

    return _learned(init_trunk, h, optimizer, jax.nn.initializers.zeros, decay, random=False)


def recognition_network(
    hidden: Sequence[int] = (128, 128, 128),
    optimizer: optax.GradientTransformation | None = None,
    *,
    network: Any = None,
    decay: float = 0.99,
) -> Coefficients:
    """Coefficients that are a neural network of the context: the paper's amortisation.

    The trunk and a one are h(y); the last layer is Θ `[D·(H+1), P]`. ReLU between layers, Xavier
    initialisation throughout.

    Args:
      hidden: widths of the trunk's layers.
      optimizer: steps on the trunk and on Θ, both at unit scale; Adam(1e-2) by default.
      network: in place of `hidden`, a trunk of your own: an `(init, apply)` pair or a Flax module
        (`init(key, context)`, `apply(params, context)` on `[B, C]`), or an Equinox module (called
        on one context `[C]`).
      decay: forgetting of the running mean and scale of the gradients.
    """
    trunk = multilayer(hidden) if network is None else as_network(network)

    def init_trunk(key, context):
        if context is None:
            raise invalid(
                "context",
                expected="the contexts of the data, which the recognition network sees",
                got="None",
                advice="Pass context=... to control_variate, or use coefficients.context_free.",
            )
        return trunk.init(key, jnp.zeros(_matrix_shape(context)))

    def h(params, context, B):
        features = trunk.apply(params, as_matrix(context))
        return jnp.concatenate([features, jnp.ones((B, 1), features.dtype)], axis=1)

    optimizer = optax.adam(1e-2) if optimizer is None else optimizer
    head = jax.nn.initializers.glorot_uniform()
    return _learned(init_trunk, h, optimizer, head, decay, random=True)


def multilayer(hidden: Sequence[int]) -> Network:
    """Dense layers with ReLU after each, Xavier-initialised."""
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
        return [
            {"kernel": xavier(k, (n, m)), "bias": jnp.zeros(m)}
            for k, (n, m) in zip(keys, pairwise(widths))
        ]

    def apply(params, context):
        for layer in params:
            context = jax.nn.relu(context @ layer["kernel"] + layer["bias"])
        return context

    return Network(init, apply)


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


def _matrix_shape(context: PyTree[Any]) -> tuple[int, int]:
    """The shape of one context as a row."""
    one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape[1:]), leaf.dtype), context)
    return jax.eval_shape(as_matrix, one).shape


def _learned(init_trunk, h, optimizer, head, decay, random) -> Coefficients:
    """A trunk, a last layer Θ, and an optimiser for both."""

    def init(key, sizes: Sizes):
        trunk_key, head_key = (None, None) if key is None else jax.random.split(key)
        trunk = init_trunk(trunk_key, sizes.context)
        H = jax.eval_shape(lambda t: h(t, _zeros(sizes.context), 1), trunk).shape[1]
        # Fan in and out as of the layer that gives P·D outputs from H inputs.
        by_layer = head(head_key, (H, sizes.basis * sizes.outputs), sizes.dtype)
        theta = by_layer.reshape(H, sizes.basis, sizes.outputs).swapaxes(0, 1)
        weights = Weights(trunk, theta.reshape(-1, sizes.outputs))
        targets = _targets.init(sizes.outputs, sizes.dtype)
        return Learned(weights, optimizer.init(weights), targets)

    def context_features(state, context, B):
        return h(state.weights.trunk, context, B)

    def predict(state, phi):
        return (phi @ state.weights.theta) * _targets.scale(state.targets)

    def learn(state, criterion, evidence):
        return jax.lax.cond(
            evidence.finite, lambda: step(state, criterion, evidence), lambda: state
        )

    def step(state, criterion, evidence):
        targets, evidence = _targets.update(state.targets, criterion, evidence, decay)

        def value(weights):
            B = evidence.w.shape[0]
            return criterion.value(weights.theta, h(weights.trunk, evidence.context, B), evidence)

        gradient = jax.grad(value)(state.weights)
        updates, optimizer_state = optimizer.update(gradient, state.optimizer, state.weights)
        weights = cast(Any, optax.apply_updates(state.weights, updates))
        return Learned(weights, optimizer_state, targets)

    return Coefficients(init, context_features, predict, learn, random=random)


def _zeros(context: PyTree[Any]) -> PyTree[Array]:
    """One context of zeros."""

    def one(leaf):
        return jnp.zeros((1, *leaf.shape[1:]), jax.dtypes.canonicalize_dtype(leaf.dtype))

    return jax.tree.map(one, context)
