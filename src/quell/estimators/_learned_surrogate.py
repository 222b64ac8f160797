"""LAX: a network in place of the loss, with the reparameterised gradient of its own.

g_b = (f_b(w) − c_φ(w, y)) ∂ log q(w; θ)/∂θ + ∂c_φ(w(θ, ε), y)/∂θ
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key, PyTree

from quell._objective import Objective
from quell.contexts import as_matrix
from quell.estimators._sampling import monte_carlo
from quell.estimators._score import log_density
from quell.estimators._terms import structure_of
from quell.estimators._types import Estimator, MakeEstimator

Layers = list[tuple[Float[Array, "i o"], Float[Array, " o"]]]


class LearnedSurrogate(NamedTuple):
    """State of `learned_surrogate`.

    Attributes:
      network: φ, a weight matrix `[i, o]` and a bias `[o]` for each layer.
      optimizer: the state of its optimiser.
      inner: the state of the inner estimator.
    """

    network: Layers
    optimizer: PyTree[Array]
    inner: PyTree[Array]


def learned_surrogate(
    inner: MakeEstimator | None = None,
    *,
    widths: tuple[int, ...] = (32,),
    optimizer: optax.GradientTransformation | None = None,
    context: Callable[[PyTree[Array]], PyTree[Array]] = as_matrix,
) -> MakeEstimator:
    """The score-function gradient of f − c_φ plus the reparameterised gradient of c_φ.

    W. Grathwohl, D. Choi, Y. Wu, G. Roeder and D. Duvenaud, "Backpropagation through the void",
    2018. The network c_φ(w, y) is trained on ‖G̃‖², whose expectation is the variance plus a
    constant, by differentiating through the estimate; it is used before it is trained, so the
    estimate is unbiased. No derivative of the model is taken. Needs an objective with its
    variational structure.

    Args:
      inner: the estimator to use on the objective whose gradient this is; `monte_carlo()` by
        default.
      widths: of the hidden layers of the network.
      optimizer: for the network; Adam at 1e-2 by default.
      context: what the network sees of a batch besides w; every leaf, side by side, by default.
    """
    inner = monte_carlo() if inner is None else inner
    optimizer = optax.adam(1e-2) if optimizer is None else optimizer

    def make(objective: Objective) -> Estimator:
        family = structure_of(objective, "learned_surrogate").family
        inside = inner(objective)

        def seen(example):
            return as_matrix(context(jax.tree.map(lambda leaf: leaf[None], example)))[0]

        def init(key, params, batch):
            network_key, inner_key = jax.random.split(key)
            width = family.size + as_matrix(context(batch)).shape[1]
            network = _init_network(network_key, (width, *widths, 1))
            inner_state = inside.init(inner_key, params, batch)
            return LearnedSurrogate(network, optimizer.init(network), inner_state)

        def with_network(network):
            def loss(params, eps, example):
                value = jax.lax.stop_gradient(objective.loss(params, eps, example))
                w, y = family.sample(params, eps), seen(example)
                fixed = _apply_network(network, jax.lax.stop_gradient(w), y)
                score = log_density(objective, params, eps)
                return value + (value - fixed) * score + _apply_network(network, w, y) - fixed

            N, structure = objective.num_data, objective.variational
            return Objective(loss, objective.noise, N, objective.regulariser, structure)

        def estimate(key, params, batch, state):
            def size(network):
                estimator = inner(with_network(network))
                gradient, value, after = estimator.estimate(key, params, batch, state.inner)
                return optax.tree.norm(gradient, squared=True), (gradient, value, after)

            slope, (gradient, value, after) = jax.grad(size, has_aux=True)(state.network)
            # unit scale: Adam does not need it, other optimisers do
            slope = jax.tree.map(lambda s: s / objective.num_data**2, slope)
            updates, optimizer_state = optimizer.update(slope, state.optimizer, state.network)
            network = jax.tree.map(jnp.add, state.network, updates)
            return gradient, value, LearnedSurrogate(network, optimizer_state, after)

        return Estimator(init, estimate)

    return make


def _init_network(key: Key[Array, ""], sizes: tuple[int, ...]) -> Layers:
    """Scaled normal weights; the last layer starts at zero, so that c_φ does."""
    keys = jax.random.split(key, len(sizes) - 1)
    layers = [
        (jax.random.normal(k, (i, o)) / math.sqrt(i), jnp.zeros(o))
        for k, i, o in zip(keys, sizes[:-1], sizes[1:])
    ]
    weight, bias = layers[-1]
    return [*layers[:-1], (jnp.zeros_like(weight), bias)]


def _apply_network(network: Layers, w: Array, y: Array) -> Float[Array, ""]:
    h = jnp.concatenate([w, y])
    for weight, bias in network[:-1]:
        h = jnp.tanh(h @ weight + bias)
    weight, bias = network[-1]
    return (h @ weight + bias)[0]
