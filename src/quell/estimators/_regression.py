"""The regression of a snapshot: Θ by ridge least squares, gated by examples that were left out."""

import jax.numpy as jnp
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Float

from quell.criteria import best_multiplier

_RIDGE = 1e-4  # relative to the mean square of the features
_ROUNDING = 1e-5  # a spread below this share of the size is rounding


def regressed(
    x: Float[Array, "R G"], g: Float[Array, "R P"]
) -> tuple[Float[Array, "G P"], Float[Array, " P"]]:
    """Θ by least squares with an intercept, each column times the gate of its parameter.

    A gate is the multiplier that would have been best on predictions of each row by a regression on
    all other rows, which follow from the one regression: the residual of a row that was left out is
    its residual divided by one minus its leverage.

    Returns:
      Θ, and the mean square of the correction of one example, for each parameter.
    """
    R, dtype = x.shape[0], x.dtype
    wide = jnp.promote_types(dtype, jnp.float32)  # half precision has no solvers, and few digits
    x, g = x.astype(wide), g.astype(wide)
    mean = x.mean(0)
    x = x - mean
    scale = jnp.sqrt((x**2).mean(0))
    usable = jnp.isfinite(scale) & (scale > _ROUNDING * jnp.abs(mean))  # constants explain nothing
    inverse = jnp.where(usable, 1 / jnp.where(usable, scale, 1), 0)
    x = jnp.where(usable, x, 0) * inverse
    size = jnp.abs(g).max(0)
    g = g - g.mean(0)
    A = x.T @ x + (_RIDGE * R + jnp.finfo(x.dtype).tiny) * jnp.eye(x.shape[1], dtype=x.dtype)
    factor = jnp.linalg.cholesky(A)
    theta = cho_solve((factor, True), x.T @ g)
    leverage = 1 / R + (solve_triangular(factor, x.T, lower=True) ** 2).sum(0)
    left_out = jnp.maximum(1 - leverage, 1 / R)[:, None]  # a row alone in its class predicts itself
    fitted = x @ theta
    predicted = g - (g - fitted) / left_out
    gt, tt, gg = (predicted * g).sum(0), (predicted**2).sum(0), (g**2).sum(0)
    # Two standard errors, as of a fourth of the rows: a wrong correction stays until the next.
    gate = best_multiplier(gt, tt, gg, jnp.asarray(R / 4, x.dtype))
    gate = jnp.where(gg > R * (_ROUNDING * size) ** 2, gate, 0)  # else there is nothing to remove
    theta, square = inverse[:, None] * theta * gate, (fitted**2).mean(0) * gate**2
    sound = jnp.isfinite(theta).all()  # no correction rather than a wrong one
    return jnp.where(sound, theta, 0).astype(dtype), jnp.where(sound, square, 0).astype(dtype)
