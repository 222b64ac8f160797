"""Coefficients learned by an optimiser on a criterion, one step per batch: the paper's way."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Key, PyTree

from quell._arguments import WIDTHS, checked
from quell._errors import invalid
from quell._mlp import apply_layers, init_layers
from quell.coefficients._targets import Targets, unit_scale
from quell.coefficients._types import Coefficients, Sizes
from quell.contexts import Context, constant, standardised
from quell.criteria import mean_features

Initializer = Callable[..., Array]


class Weights(NamedTuple):
    """The weights that the optimiser steps on: the trunk's parameters, and Θ `[D·H, P]`."""

    trunk: PyTree[Array]
    theta: Float[Array, "F P"]


class Learned(NamedTuple):
    """State of coefficients learned by an optimiser.

    Attributes:
      fitted: the context map, fitted to the data.
      weights: the trunk and Θ, at the scale of the targets.
      optimizer: the optimiser's state.
      targets: the state of the targets.
    """

    fitted: PyTree[Array]
    weights: Weights
    optimizer: PyTree[Array]
    targets: PyTree[Array]


class Trunk(NamedTuple):
    """A recognition network without its last layer.

    Attributes:
      init: `init(key, x)` gives the parameters for inputs `[1, C]`.
      apply: `apply(params, x)` gives the output `[B, H]`.
    """

    init: Callable[[Key[Array, ""], Float[Array, "B C"]], PyTree[Array]]
    apply: Callable[[PyTree[Array], Float[Array, "B C"]], Float[Array, "B H"]]


@checked()
def context_free(
    optimizer: optax.GradientTransformation, *, targets: Targets | None = None
) -> Coefficients:
    """Learn one Θ `[D, P]` for every context by `optimizer`: the paper's baseline.

    Args:
      optimizer: the optimiser that steps on Θ, at the scale of the targets.
      targets: the scale to learn at; `unit_scale()` by default.
    """
    nothing = Trunk(init=lambda key, x: (), apply=lambda params, x: x)  # of a context without width
    return _learned(nothing, constant(), optimizer, jax.nn.initializers.zeros, targets)


@checked(hidden=WIDTHS)
def recognition_network(
    hidden: Sequence[int] = (128, 128, 128),
    optimizer: optax.GradientTransformation | None = None,
    *,
    network: Any = None,
    context: Context | None = None,
    last_layer: Initializer = jax.nn.initializers.zeros,
    targets: Targets | None = None,
) -> Coefficients:
    """Learn coefficients as a neural network of the context: the paper's amortisation.

    h(y) is a one and the output of the trunk; the last layer is Θ `[D·H, P]`. The trunk has ReLU
    after each layer and Xavier initialisation. Unlike the paper's, the network sees standardised
    contexts, its last layer starts at zero and its correction is gated, so that it does not make
    gradients noisier. The paper's own choices are `context=contexts.raw()`,
    `last_layer=jax.nn.initializers.glorot_uniform()` and `targets=coefficients.raw_targets(N)`.

    Args:
      hidden: widths of the trunk's layers.
      optimizer: takes a step on the trunk and on Θ for every batch; Adam(1e-3) by default. Narrow
        networks need a larger learning rate.
      network: in place of `hidden`, a trunk of your own: an `(init, apply)` pair or a Flax module
        (`init(key, x)`, `apply(params, x)` on `[B, C]`), or an Equinox module (called on `[C]`).
      context: the input of the trunk; `contexts.standardised()` by default.
      last_layer: the initialiser of Θ.
      targets: the scale to learn at; `unit_scale()` by default.
    """
    trunk = _multilayer(hidden) if network is None else _as_trunk(network)
    optimizer = optax.adam(1e-3) if optimizer is None else optimizer
    return _learned(trunk, context or standardised(), optimizer, last_layer, targets)


def _learned(trunk: Trunk, context: Context, optimizer, last_layer, targets) -> Coefficients:
    """Coefficients of a trunk and a last layer Θ, learned by one optimiser."""
    targets = unit_scale() if targets is None else targets

    def inputs(fitted, params, batch):
        # The trunk has biases of its own, so the constant 1 of the context is left out.
        return context.apply(fitted, params, batch)[:, 1:]

    def h(weights: Weights, x):
        features = trunk.apply(weights.trunk, x).astype(weights.theta.dtype)
        return jnp.concatenate([jnp.ones_like(features, shape=(len(x), 1)), features], axis=1)

    def start(key, sizes: Sizes, params, data):
        fitted = context.fit(key, data)  # on the host; `init` must stay pure
        example = jax.tree.map(lambda leaf: leaf[:1], data)

        def init(key):
            trunk_key, head_key = jax.random.split(key)
            x = inputs(fitted, params, example)
            weights = trunk.init(trunk_key, x)
            H = 1 + trunk.apply(weights, x).shape[1]
            # Fan in and out as of a layer with H inputs, its bias last, and P·D outputs.
            layer = last_layer(head_key, (H, sizes.basis * sizes.outputs), sizes.dtype)
            by_input = jnp.roll(layer, 1, axis=0).reshape(H, sizes.basis, sizes.outputs)
            theta = by_input.transpose(1, 0, 2).reshape(-1, sizes.outputs)
            both = Weights(weights, theta)
            return Learned(fitted, both, optimizer.init(both), targets.init(sizes))

        return init

    def context_features(state: Learned, params, batch, B):
        return h(state.weights, inputs(state.fitted, params, batch))

    def predict(state: Learned, phi):
        return phi @ state.weights.theta * targets.scale(state.targets)

    def learn(state: Learned, criterion, evidence):
        weights = state.weights
        x = inputs(state.fitted, evidence.params, evidence.batch)
        # The same expression as in the correction, so that the compiler computes it once.
        prediction = mean_features(evidence.w, h(weights, x)) @ weights.theta

        def step():
            targets_state, scaled = targets.update(state.targets, criterion, evidence, prediction)
            gradient = jax.grad(lambda w: criterion.value(w.theta, h(w, x), scaled))(weights)
            updates, optimizer_state = optimizer.update(gradient, state.optimizer, weights)
            moved: Any = optax.apply_updates(weights, updates)
            return Learned(state.fitted, moved, optimizer_state, targets_state)

        return jax.lax.cond(evidence.finite, step, lambda: state)  # one NaN would ruin all weights

    return Coefficients(start, context_features, predict, learn)


def _multilayer(hidden: Sequence[int]) -> Trunk:
    """Dense layers with ReLU after each, Xavier-initialised."""
    if not hidden or any(not isinstance(width, int) or width < 1 for width in hidden):
        raise invalid(
            "hidden",
            expected="widths of at least one layer, such as (128, 128, 128)",
            got=hidden,
            advice="Use coefficients.context_free for no network at all.",
        )
    xavier = jax.nn.initializers.glorot_uniform()
    return Trunk(
        init=lambda key, x: init_layers(key, (x.shape[-1], *hidden), xavier),
        apply=lambda layers, x: apply_layers(layers, x, jax.nn.relu, activate_last=True),
    )


def _as_trunk(network: Any) -> Trunk:
    """An `(init, apply)` pair, a Flax module or an Equinox module as a trunk."""
    if hasattr(network, "init") and hasattr(network, "apply"):
        return Trunk(network.init, network.apply)
    if isinstance(network, tuple) and len(network) == 2:
        return Trunk(*network)
    if callable(network):
        leaves, treedef = jax.tree.flatten(network)
        is_weight = [_is_weight(leaf) for leaf in leaves]

        def init(key, x):
            return [leaf for leaf, keep in zip(leaves, is_weight) if keep]

        def apply(params, x):
            weights = iter(params)
            rebuilt = [next(weights) if keep else leaf for leaf, keep in zip(leaves, is_weight)]
            return jax.vmap(treedef.unflatten(rebuilt))(x)

        return Trunk(init, apply)
    raise invalid(
        "network",
        expected="an (init, apply) pair, a Flax module or an Equinox module",
        got=type(network).__name__,
        advice="Wrap the network in a pair of functions.",
    )


def _is_weight(leaf: Any) -> bool:
    """Whether a leaf of a module is an array of weights."""
    return isinstance(leaf, jax.Array | np.ndarray) and jnp.issubdtype(leaf.dtype, jnp.inexact)
