"""The gradient linearised in the noise serves as its own control variate.

g_b(ε) ≈ g_b(ε₀) + J_b (ε − ε₀),  J_b = ∂g_b/∂ε at the mean ε₀ of the noise; the second part has
mean zero. It is the gradient of the term ⟨∂loss/∂ε(θ, ε₀), ε − ε₀⟩.
"""

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from quell._arguments import checked
from quell._tree import is_shape
from quell.estimators._ensemble import without_term
from quell.estimators._pooling import Pooling, per_leaf
from quell.estimators._terms import Term, inner_or_plain
from quell.estimators._types import Estimator
from quell.noise import Noise
from quell.objective import Objective


@checked()
def taylor(
    inner: Estimator | None = None, *, pooling: Pooling | None = per_leaf, decay: float = 0.99
) -> Estimator:
    """Subtract a·J(ε − ε₀), the gradient linearised at the mean noise, from any estimator.

    A. C. Miller, N. J. Foti, A. D'Amour and R. P. Adams, "Reducing reparameterization gradient
    variance", 2017. J(ε − ε₀) comes from one Jacobian–vector product, for every parameter.
    The coefficient a is a running average, applied before it is learned; it starts at 1.

    Args:
      inner: the estimator to subtract from; `monte_carlo()` by default.
      pooling: the parameters that share a coefficient. With None, every coefficient is 1, and
        `inner` learns from the rest.
      decay: forgetting of the running average, in (0, 1].
    """
    inner = inner_or_plain(inner)
    return without_term(f"taylor({inner.name})", inner, _linear_term, pooling, decay)


def _linear_term(objective: Objective) -> Term:
    """The term ⟨∂loss/∂ε(θ, ε₀), ε − ε₀⟩, of mean zero."""
    centre = _mean_of(objective.noise)

    def term(params, eps, example):
        offset = jax.tree.map(jnp.subtract, eps, centre)
        return jax.jvp(lambda e: objective.loss(params, e, example), (centre,), (offset,))[1]

    return term


def _mean_of(noise: Noise) -> PyTree[Array]:
    """ε₀, the mean of one draw: the fixed point of its reflection, or from its first moment."""
    zeros = jax.tree.map(jnp.zeros, noise.shape, is_leaf=is_shape)
    if noise.reflect is not None:
        return jax.tree.map(lambda e: e / 2, noise.reflect(zeros))  # reflect(ε) = 2 ε₀ − ε
    # z = standardise(ε) is affine, so the draw whose z is E[z] is the mean: solve for it
    flat, unflatten = ravel_pytree(zeros)

    def affine(e):
        return noise.standardise(unflatten(e))

    target = jnp.broadcast_to(jnp.asarray(noise.moment(1), flat.dtype), flat.shape)
    return unflatten(jnp.linalg.solve(jax.jacobian(affine)(flat), target - affine(flat)))
