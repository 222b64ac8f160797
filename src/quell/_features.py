"""The features φ_b = w(ε_b) ⊗ h(y_b), and what there is to learn coefficients from."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree


class Evidence(NamedTuple):
    """One batch, as the coefficients see it.

    Attributes:
      w: the basis for each example, averaged over its draws, `[B, D]`.
      context: y, a pytree with leaves `[B, ...]`, or None.
      total: Ĝ, the gradient of the batch, `[P]`.
      rows: g_b, the gradients of the first R examples, scaled so that their mean over the batch is
        the noisy part of Ĝ, `[R, P]`; or None.
      leaves: the number of entries of each controlled leaf; their sum is P.
      points: whether the points are controlled too.
      shared: whether all examples share one draw, so that their noise does not average out.
      finite: whether all of it is finite; where not, nothing may be learned from it, `[]`.
    """

    w: Float[Array, "B D"]
    context: PyTree[Array]
    total: Float[Array, " P"]
    rows: Float[Array, "R P"] | None
    leaves: tuple[int, ...]
    points: bool
    shared: bool
    finite: Bool[Array, ""]


def mean_features(w: Float[Array, "B D"], h: Float[Array, "B H"]) -> Float[Array, " D*H"]:
    """φ̄ = 1/|B| Σ_b w_b ⊗ h_b, without forming the terms."""
    return ((w.T / w.shape[0]) @ h).ravel()


def example_features(w: Float[Array, "B D"], h: Float[Array, "B H"]) -> Float[Array, "B D*H"]:
    """φ_b = w_b ⊗ h_b for every example."""
    if w.shape[1] > 32:
        return (w[:, :, None] * h[:, None, :]).reshape(w.shape[0], -1)
    parts = [w[:, d, None] * h for d in range(w.shape[1])]  # faster than one outer product
    return jnp.concatenate([h[:, :0], *parts], axis=1)


def independent_terms(
    w: Float[Array, "B D"], h: Float[Array, "B H"], shared: bool
) -> Float[Array, "U D*H"]:
    """The terms of φ̄ that have draws of their own: one per example, or one for a shared draw."""
    if shared:
        return mean_features(w, h)[None]
    return example_features(w / w.shape[0], h)
