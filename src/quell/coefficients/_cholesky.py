"""Positive definite systems inside a compiled loop.

LAPACK factors small blocks only, where it stays on one thread: on a busy machine its threads wait
for each other, and a factorisation every few steps of a loop then costs milliseconds. Everything
else is matrix products, which the compiler does itself, under `vmap` too.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

BLOCK = 32


def solve(A: Float[Array, "F F"], R: Float[Array, "F P"]) -> Float[Array, "F P"]:
    """A⁻¹ R for a positive definite A, by a blocked Cholesky factorisation A = LLᵀ.

    >>> A = jnp.array([[2.0, 1.0], [1.0, 2.0]])
    >>> solve(A, A @ jnp.array([[1.0], [2.0]])).round(4).tolist()
    [[1.0], [2.0]]
    """
    F = A.shape[0]
    missing = -F % BLOCK
    padding = jnp.arange(F + missing) >= F  # ones on the diagonal where there is no A
    rest = jnp.pad(A, (0, missing)) + jnp.diag(padding.astype(A.dtype))
    below = jnp.pad(R, ((0, missing), (0, 0)))
    inverses, panels, forward = [], [], []
    for _ in range((F + missing) // BLOCK):
        inverse = inverse_lower(jnp.linalg.cholesky(rest[:BLOCK, :BLOCK]))
        panel = rest[BLOCK:, :BLOCK] @ inverse.T
        y = inverse @ below[:BLOCK]
        rest = rest[BLOCK:, BLOCK:] - panel @ panel.T
        below = below[BLOCK:] - panel @ y
        inverses.append(inverse)
        panels.append(panel)
        forward.append(y)
    for inverse, panel, y in zip(inverses[::-1], panels[::-1], forward[::-1]):
        below = jnp.concatenate([inverse.T @ (y - panel.T @ below), below])
    return below[:F]


def inverse_lower(L: Float[Array, "b b"]) -> Float[Array, "b b"]:
    """L⁻¹ for a lower triangular L whose size is a power of two.

    Joins the inverses of blocks twice the size at a time:
    [[A, 0], [B, C]]⁻¹ = [[A⁻¹, 0], [−C⁻¹ B A⁻¹, C⁻¹]].
    """
    b = L.shape[0]
    inverse = (1 / jnp.diagonal(L))[:, None, None]
    while inverse.shape[1] < b:
        s = inverse.shape[1]
        pairs = b // (2 * s)
        blocks = L.reshape(pairs, 2 * s, pairs, 2 * s)
        B = jnp.stack([blocks[i, s:, i, :s] for i in range(pairs)])
        top, bottom = inverse[0::2], inverse[1::2]
        corner = -bottom @ B @ top
        inverse = jnp.concatenate(
            [
                jnp.concatenate([top, jnp.zeros_like(top)], axis=2),
                jnp.concatenate([corner, bottom], axis=2),
            ],
            axis=1,
        )
    return inverse[0]
