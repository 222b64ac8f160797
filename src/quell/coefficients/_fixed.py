"""Coefficients that are given and never learned."""

import jax.numpy as jnp
from jaxtyping import ArrayLike

from quell._arguments import checked
from quell._errors import invalid
from quell.coefficients._types import Coefficients, Sizes


@checked()
def fixed(value: ArrayLike) -> Coefficients:
    """Fix Θ for good: a number, or an array `[D, P]` over the controlled entries."""

    def start(key, sizes: Sizes, params, data):
        shape = (sizes.basis, sizes.outputs)
        theta = jnp.asarray(value, sizes.dtype)
        if theta.ndim and theta.shape != shape:
            raise invalid(
                "value",
                expected=f"a number or an array of shape {shape}",
                got=f"shape {theta.shape}",
                advice="Rows are basis functions, columns the entries of the controlled leaves.",
            )
        return lambda key: jnp.broadcast_to(theta, shape)

    return Coefficients(
        start=start,
        context_features=lambda theta, params, batch, B: jnp.ones((B, 1), theta.dtype),
        predict=lambda theta, phi: phi @ theta,
        learn=lambda theta, criterion, evidence: theta,
    )
