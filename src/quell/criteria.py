"""The features φ_b = w(ε_b) ⊗ h(y_b), and the paper's three criteria V for learning Θ.

Each criterion estimates, up to a constant, the variance that remains in the controlled gradient,
tr Cov[Ĝ − Σ_b c_bᵀ w_b]. The variates c_bᵀ w_b of all parameters are φ_bᵀ Θ.

Terms of different examples are taken to have independent draws. If the whole batch shares one
draw, the batch is one term, and the cross terms that would not vanish are part of it.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

__all__ = ["gradient_sum", "partial_gradients", "squared_difference"]


class Evidence(NamedTuple):
    """One batch, as the coefficients see the batch.

    Attributes:
      w: the basis for each example, averaged over its draws, `[B, D]`.
      params: θ, for context maps that look at the model.
      batch: the examples, a pytree with leaves `[B, ...]`, or None.
      total: Ĝ, the gradient of the batch, `[P]`.
      per_example: g_b, the gradients of the first R examples, scaled so that their mean over the
        batch is the noisy part of Ĝ, `[R, P]`; or None.
      leaves: the number of entries of each controlled leaf; their sum is P.
      shared: whether all examples share one draw, so that their noise does not average out.
      finite: whether the batch is finite; otherwise nothing may be learned from it, `[]`.
    """

    w: Float[Array, "B D"]
    params: PyTree[Array]
    batch: PyTree[Array]
    total: Float[Array, " P"]
    per_example: Float[Array, "R P"] | None
    leaves: tuple[int, ...]
    shared: bool
    finite: Bool[Array, ""]


class Criterion(NamedTuple):
    """A function that coefficients learn to minimise.

    Attributes:
      value: `value(Θ, h, evidence)`, a scalar to minimise over Θ `[D·H, P]` and the h `[B, H]`.
      per_example: whether `value` needs the gradient of each example.
    """

    value: Callable[[Float[Array, "F P"], Float[Array, "B H"], Evidence], Float[Array, ""]]
    per_example: bool


def mean_features(w: Float[Array, "B D"], h: Float[Array, "B H"]) -> Float[Array, " D*H"]:
    """The mean features φ̄ = 1/|B| Σ_b w_b ⊗ h_b, without forming the terms."""
    return ((w.T / w.shape[0]) @ h).ravel()


def example_features(w: Float[Array, "B D"], h: Float[Array, "B H"]) -> Float[Array, "B D*H"]:
    """The features φ_b = w_b ⊗ h_b of every example."""
    return (w[:, :, None] * h[:, None, :]).reshape(w.shape[0], -1)


def best_multiplier(
    gt: Float[Array, "*shape"],
    tt: Float[Array, "*shape"],
    gg: Float[Array, "*shape"],
    n: Float[Array, ""],
) -> Float[Array, "*shape"]:
    """The multiplier of a correction t that would have left the least variance of a gradient g.

    Σgt / Σt² over n terms that were predicted before they were learned from, minus its standard
    error, and within [0, 1]: zero without evidence.
    """
    divisor = jnp.where(tt > 0, tt, 1)
    slope = gt / divisor  # of a regression of g on t through the origin
    residual = jnp.maximum(gg - slope * gt, 0)  # rounding may make it negative
    error = jnp.sqrt(residual / divisor / jnp.maximum(n, 1))  # of the slope: a guard against luck
    return jnp.where(tt > 0, jnp.clip(slope - error, 0, 1), 0)  # at most 1: never amplify


def _independent_terms(w, h, shared: bool) -> Float[Array, "U D*H"]:
    """The terms of φ̄ that have draws of their own: one per example, or one for a shared draw."""
    return mean_features(w, h)[None] if shared else example_features(w / w.shape[0], h)


def _partial_gradients(theta, h, evidence: Evidence):
    if evidence.shared:
        return _gradient_sum(theta, h, evidence)
    assert evidence.per_example is not None  # control_variate has checked
    R, B = evidence.per_example.shape[0], evidence.w.shape[0]
    variates = _independent_terms(evidence.w, h, shared=False)[:R] @ theta
    return jnp.sum(variates**2 - 2 * (evidence.per_example / B) * variates)


def _gradient_sum(theta, h, evidence: Evidence):
    variates = _independent_terms(evidence.w, h, evidence.shared) @ theta
    return jnp.sum(variates**2 - 2 * evidence.total * variates)


def _squared_difference(theta, h, evidence: Evidence):
    return jnp.sum((evidence.total - mean_features(evidence.w, h) @ theta) ** 2)


partial_gradients = Criterion(_partial_gradients, per_example=True)
"""Ṽ = Σ_i Σ_b (c_bᵀw_b)² − 2 g_b c_bᵀw_b: least noise, needs the gradient of each example."""

gradient_sum = Criterion(_gradient_sum, per_example=False)
"""Ṽ^GS = Σ_i Σ_b (c_bᵀw_b)² − 2 Ĝ c_bᵀw_b: the sum in place of each example's gradient."""

squared_difference = Criterion(_squared_difference, per_example=False)
"""Ṽ^SD = Σ_i (Ĝ − Σ_b c_bᵀw_b)²: a regression of Ĝ on the basis; the cheapest."""
