"""x W and x Wᵀ for the narrow matrices that small batches and few features make.

Their derivatives by W have the layout of W. Where the inner dimension is small, as that of a
derivative by weights is for a small batch, a product is a sum of outer products: it then joins the
loop of whatever uses it, such as the optimiser's.
"""

import jax
from jaxtyping import Array, Float

_NARROW = 12  # up to here outer products are summed faster one by one than by a matmul


@jax.custom_vjp
def times(x: Float[Array, "B n"], weights: Float[Array, "n m"]) -> Float[Array, "B m"]:
    """x W."""
    return _product(x, weights)


@jax.custom_vjp
def times_transposed(x: Float[Array, "B n"], weights: Float[Array, "m n"]) -> Float[Array, "B m"]:
    """x Wᵀ."""
    return _product(x, weights.T)


def _product(x: Float[Array, "n k"], y: Float[Array, "k m"]) -> Float[Array, "n m"]:
    k = x.shape[1]
    if k > _NARROW:
        return x @ y
    return sum(x[:, i, None] * y[i] for i in range(k))  # pyright: ignore[reportReturnType]


times.defvjp(
    lambda x, weights: (times(x, weights), (x, weights)),
    lambda saved, g: (_product(g, saved[1].T), _product(saved[0].T, g)),
)
times_transposed.defvjp(
    lambda x, weights: (times_transposed(x, weights), (x, weights)),
    lambda saved, g: (_product(g, saved[1]), _product(g.T, saved[0])),
)
