"""Coefficients learned by an optimiser on a criterion: the paper's way."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from quell._errors import invalid
from quell.coefficients import _targets
from quell.coefficients._network import Layers, as_network, multilayer, with_one
from quell.coefficients._steps import Gathered, Steps, Weights, steps
from quell.coefficients._types import Coefficients, Sizes
from quell.coefficients._waiting import join, none_waiting, summed_gradient, with_room
from quell.contexts import as_matrix

_EVERY = 8  # batches to a step: what a step costs is then small beside their gradients


class Learned(NamedTuple):
    """State of coefficients learned by an optimiser.

    Attributes:
      weights: the trunk and Θ, at unit scale.
      optimizer: the optimiser's state, and the gradients gathered for its next step.
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

    return _learned(
        init_trunk, h, steps(optimizer, 1), jax.nn.initializers.zeros, decay, random=False
    )


def recognition_network(
    hidden: Sequence[int] = (128, 128, 128),
    optimizer: optax.GradientTransformation | None = None,
    *,
    network: Any = None,
    every: int | None = None,
    decay: float = 0.99,
) -> Coefficients:
    """Coefficients that are a neural network of the context: the paper's amortisation.

    The trunk and a one are h(y); the last layer is Θ `[D·(H+1), P]`. ReLU between layers, Xavier
    initialisation throughout.

    Args:
      hidden: widths of the trunk's layers.
      optimizer: steps on the trunk and on Θ, both at unit scale; by default Adam, one step for
        every 8 batches at 5e-3, which learns about as one for every batch at 1e-3 does and takes
        less time. At the default widths a step for every batch ends lower at 1e-3 than at 1e-2;
        narrow networks want more.
      network: in place of `hidden`, a trunk of your own: an `(init, apply)` pair or a Flax module
        (`init(key, context)`, `apply(params, context)` on `[B, C]`), or an Equinox module (called
        on one context `[C]`).
      every: how many batches there are to a step, which is on their mean gradient: 8 by default, 1
        with an optimiser of your own. Fewer steps want a larger rate. Small batches, of 256
        examples in all, are kept until the step and learned from together, which takes less time.
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
        return with_one(trunk.apply(params, as_matrix(context)))

    if every is None:
        every = _EVERY if optimizer is None else 1
    optimizer = optax.adam(5e-3, b1=0.5, b2=0.99) if optimizer is None else optimizer
    head = jax.nn.initializers.glorot_uniform()
    move = steps(optimizer, every)
    return _learned(init_trunk, h, move, head, decay, random=True, layers=trunk.layers)


def _matrix_shape(context: PyTree[Any]) -> tuple[int, int]:
    """The shape of one context as a row."""
    one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape[1:]), leaf.dtype), context)
    return jax.eval_shape(as_matrix, one).shape


def _learned(
    init_trunk, h, move: Steps, head, decay, random, layers: Layers | None = None
) -> Coefficients:
    """A trunk, a last layer Θ, and an optimiser for both."""

    def init(key, sizes: Sizes):
        trunk_key, head_key = (None, None) if key is None else jax.random.split(key)
        trunk = init_trunk(trunk_key, sizes.context)
        H = jax.eval_shape(lambda t: h(t, _zeros(sizes.context), 1), trunk).shape[1]
        # Fan in and out as of the layer that gives P·D outputs from H inputs.
        by_layer = head(head_key, (H, sizes.basis * sizes.outputs), sizes.dtype)
        theta = by_layer.reshape(H, sizes.basis, sizes.outputs).transpose(2, 1, 0)
        weights = Weights(trunk, theta.reshape(sizes.outputs, -1))
        targets = _targets.init(sizes.outputs, sizes.dtype)
        waiting = None
        if layers is not None and move.every > 1:
            one = layers.forward(trunk, as_matrix(_zeros(sizes.context)))
            waiting = none_waiting(move.every, one, sizes)
        return Learned(weights, move.init(weights, waiting), targets)

    def context_features(state, context, B):
        return h(state.weights.trunk, context, B)

    def predict(state, phi):
        return (state.weights.theta @ phi.T).T * _targets.scale(state.targets)

    def learn(state, criterion, evidence):
        weights = state.weights
        targets, evidence = _targets.update(state.targets, criterion, evidence, decay)
        places = state.optimizer.waiting if isinstance(state.optimizer, Gathered) else None
        waiting = with_room(places, evidence)
        # All that reads the weights stands before the step, which may then write in place; and
        # h and Θᵀφ, which the correction needs too, are computed once.
        if layers is None or waiting is None:
            new = gradient_of(weights, criterion, evidence)
        else:
            kept = layers.forward(weights.trunk, as_matrix(evidence.context))
            new = partial(join, waiting, kept, evidence)

        def summed(weights, waiting):
            assert layers is not None  # where some wait
            trunk, theta = weights
            return Weights(*summed_gradient(waiting, trunk, theta, layers, criterion, evidence))

        def step():
            return Learned(*move.take(new(), state.optimizer, weights, summed), targets)

        return jax.lax.cond(evidence.finite, step, lambda: state)

    def gradient_of(weights, criterion, evidence):
        """The gradient of one batch, but for that by Θ, which is made where it is called for."""
        B = evidence.w.shape[0]

        def value(theta, h):
            return criterion.value(theta.T, h, evidence)

        features, by_trunk = jax.vjp(lambda t: h(t, evidence.context, B), weights.trunk)
        V, by = jax.vjp(value, weights.theta, features)
        (trunk,) = by_trunk(by(jnp.ones_like(V))[1])
        return lambda: Weights(trunk, by(jnp.ones_like(V))[0])

    return Coefficients(init, context_features, predict, learn, random=random)


def _zeros(context: PyTree[Any]) -> PyTree[Array]:
    """One context of zeros."""

    def one(leaf):
        return jnp.zeros((1, *leaf.shape[1:]), jax.dtypes.canonicalize_dtype(leaf.dtype))

    return jax.tree.map(one, context)
