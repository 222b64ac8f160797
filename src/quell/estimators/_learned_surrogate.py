"""LAX: a network in place of the loss, which adds its own reparameterised gradient.

g_b = (f_b(w) − c_φ(w, y)) ∂ log q(w; θ)/∂θ + ∂c_φ(w(θ, ε), y)/∂θ
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from quell import _tree
from quell._arguments import checked
from quell._mlp import Dense, apply_layers, init_layers
from quell._tree import take
from quell.contexts import Select, as_matrix
from quell.estimators._score import log_density, score_objective
from quell.estimators._terms import Term, inner_or_plain, minus, structure_of
from quell.estimators._types import Batch, Estimate, Estimator, Started, refresh_inside
from quell.gaussian import Gaussian
from quell.objective import Objective


class LearnedSurrogate(NamedTuple):
    """State of `learned_surrogate`.

    Attributes:
      network: φ, a layer for each of the widths and a last one of width 1.
      optimizer: the state of the network's optimiser.
      inner: the state of the inner estimator.
    """

    network: list[Dense]
    optimizer: PyTree[Array]
    inner: PyTree[Array]


@checked()
def learned_surrogate(
    inner: Estimator | None = None,
    *,
    widths: tuple[int, ...] = (32,),
    optimizer: optax.GradientTransformation | None = None,
    select: Select | None = None,
) -> Estimator:
    """The score-function gradient of f − c_φ plus the reparameterised gradient of c_φ.

    W. Grathwohl, D. Choi, Y. Wu, G. Roeder and D. Duvenaud, "Backpropagation through the void",
    2018. The network c_φ(w, y) is trained on ‖G̃‖², whose expectation is the variance plus a
    constant, by differentiating through the estimate; the network is used before it is trained,
    so the estimate is unbiased. No derivative of the model is taken. Needs an objective with its
    variational structure.

    Args:
      inner: the estimator to use on this objective; `monte_carlo()` by default.
      widths: the widths of the hidden layers of the network.
      optimizer: the optimiser of the network; Adam at 1e-2 by default.
      select: `select(example)`, the part of an example that the network sees besides w; all
        leaves by default.
    """
    inner = inner_or_plain(inner)
    optimizer = optax.adam(1e-2) if optimizer is None else optimizer

    def start(key, objective: Objective, params, data) -> Started:
        original, family = objective, structure_of(objective, "learned_surrogate").family
        inside = inner.start(key, objective, params, data)
        width = family.size + as_matrix(take(data, jnp.arange(1)), select).shape[1]

        def init(key, params):
            network_key, inner_key = jax.random.split(key)
            *hidden, last = init_layers(network_key, (width, *widths, 1))
            network = [*hidden, jax.tree.map(jnp.zeros_like, last)]  # c_φ starts at zero
            inner_state = inside.init(inner_key, params)
            return LearnedSurrogate(network, optimizer.init(network), inner_state)

        def estimate(key, objective, params, batch: Batch, state: LearnedSurrogate) -> Estimate:
            by_score = score_objective(original, objective)

            def size(network):
                quieter = minus(by_score, _network_term(network, family, select))
                found = inside.estimate(key, quieter, params, batch, state.inner)
                return optax.tree.norm(found.gradient, squared=True), found

            slope, found = jax.grad(size, has_aux=True)(state.network)  # one estimate for θ and φ
            # G̃ grows with N; Adam does not mind, other optimisers do
            slope = jax.tree.map(lambda s: s / original.num_data**2, slope)
            updates, optimizer_state = optimizer.update(slope, state.optimizer, state.network)
            network = jax.tree.map(jnp.add, state.network, updates)
            learned = LearnedSurrogate(network, optimizer_state, found.state)
            finite = _tree.all_finite(slope, found.gradient)  # one NaN would stay in the network
            return found._replace(state=_tree.where(finite, learned, state))

        return Started(init, estimate, refresh_inside(inside))

    return Estimator(f"learned_surrogate({inner.name})", start)


def _network_term(network: list[Dense], family: Gaussian, select: Select | None) -> Term:
    """c_φ log q − c_φ: its gradients by the score and through the draw have the same mean."""

    def term(params, eps, example):
        y = as_matrix(jax.tree.map(lambda leaf: leaf[None], example), select)[0]

        def c(w):
            return apply_layers(network, jnp.concatenate([w, y]), jnp.tanh)[0]

        w = family.sample(params, eps)
        fixed = c(jax.lax.stop_gradient(w))  # the score takes w as given
        return fixed * (1 + log_density(family, params, eps)) - c(w)

    return term
