"""The paper's three criteria V: what coefficients Θ are learned by.

Each estimates, up to a constant, the variance that is left in the controlled gradient,
tr Cov[Ĝ − Σ_b c_bᵀ w_b]. The variates c_bᵀ w_b of all parameters are φ_bᵀ Θ.

Terms of different examples are taken to have independent draws. Where the whole batch shares one
draw, the batch is one term, and the cross terms that would not vanish are there.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from quell._features import Evidence, independent_terms, mean_features
from quell._products import times_transposed


class Criterion(NamedTuple):
    """What coefficients are learned by.

    Attributes:
      value: `value(Θ, h, evidence)`, a scalar to minimise over Θ `[D·H, P]` and the h `[B, H]`. It
        sees examples as w ⊗ h / |B| and g / |B|: one whose w is zero has no part in it.
      per_example: whether it needs the gradient of each example.
    """

    value: Callable[[Float[Array, "F P"], Float[Array, "B H"], Evidence], Float[Array, ""]]
    per_example: bool


def _partial_gradients(theta, h, evidence: Evidence):
    if evidence.shared:
        return _gradient_sum(theta, h, evidence)
    assert evidence.rows is not None  # control_variate has checked
    R, B = evidence.rows.shape[0], evidence.w.shape[0]
    variates = times_transposed(independent_terms(evidence.w, h, shared=False)[:R], theta.T)
    return jnp.sum(variates**2 - 2 * (evidence.rows / B) * variates)


def _gradient_sum(theta, h, evidence: Evidence):
    terms = independent_terms(evidence.w, h, evidence.shared)
    if terms.shape[1] < terms.shape[0]:  # fewer features than terms: their squares sum up first
        squares = theta * times_transposed(times_transposed(terms.T, terms.T), theta.T)
        return jnp.sum(squares) - 2 * jnp.sum(evidence.total * (theta.T @ terms.sum(0)))
    variates = times_transposed(terms, theta.T)
    return jnp.sum(variates**2 - 2 * evidence.total * variates)


def _squared_difference(theta, h, evidence: Evidence):
    return jnp.sum((evidence.total - theta.T @ mean_features(evidence.w, h)) ** 2)


partial_gradients = Criterion(_partial_gradients, per_example=True)
"""Ṽ = Σ_i Σ_b (c_bᵀw_b)² − 2 g_b c_bᵀw_b: least noise, needs the gradient of each example."""

gradient_sum = Criterion(_gradient_sum, per_example=False)
"""Ṽ^GS = Σ_i Σ_b (c_bᵀw_b)² − 2 Ĝ c_bᵀw_b: the sum in place of each example's gradient."""

squared_difference = Criterion(_squared_difference, per_example=False)
"""Ṽ^SD = Σ_i (Ĝ − Σ_b c_bᵀw_b)²: a regression of Ĝ on the basis; the cheapest."""
