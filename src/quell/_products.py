"""x W and x Wᵀ for the narrow matrices that small batches and few features make.

Their derivatives by W have the layout of W. Where the inner dimension is small, as that of a
derivative by weights is for a small batch, a product is a sum of outer products: it then joins the
loop of whatever uses it, such as the optimiser's. A large one is better made once.
"""

import jax
from jaxtyping import Array, Float

# Outer products are summed faster one by one than by a matmul where there are few of them, and
# where the result is small enough for one core or large enough for several: XLA shares the sum
# between cores from about 1500 entries on, which takes longer than it saves up to about 8000.
_FEW, _ONE_CORE, _SEVERAL, _LARGE = 16, 3 * 2**9, 2**13, 2**16


def times_transposed(x: Float[Array, "B n"], weights: Float[Array, "m n"]) -> Float[Array, "B m"]:
    """x Wᵀ."""
    if weights.size <= _ONE_CORE:
        return _small_times_transposed(x, weights)
    return x @ weights.T  # its derivative by W is one product under vmap too


@jax.custom_vjp
def times(x: Float[Array, "B n"], weights: Float[Array, "n m"]) -> Float[Array, "B m"]:
    """x W."""
    return _product(x, weights)


@jax.custom_vjp
def _small_times_transposed(x, weights):
    return _product(x, weights.T)


def _is_sum(n: int, k: int, m: int) -> bool:
    """Whether a product `[n, k]` by `[k, m]` is best made as a sum of outer products."""
    return k <= _FEW and (n * m <= _ONE_CORE or _SEVERAL <= n * m <= _LARGE)


def _product(x: Float[Array, "n k"], y: Float[Array, "k m"]) -> Float[Array, "n m"]:
    (n, k), m = x.shape, y.shape[1]
    if not _is_sum(n, k, m):
        return x @ y
    return sum(x[:, i, None] * y[i] for i in range(k))  # pyright: ignore[reportReturnType]


def _typed(derivatives):
    """Derivatives by both factors, each of the type of its factor."""

    def pull(saved, g):
        return tuple(by.astype(one.dtype) for by, one in zip(derivatives(*saved, g), saved))

    return pull


times.defvjp(
    lambda x, weights: (times(x, weights), (x, weights)),
    _typed(lambda x, weights, g: (_product(g, weights.T), _product(x.T, g))),
)
_small_times_transposed.defvjp(
    lambda x, weights: (_small_times_transposed(x, weights), (x, weights)),
    _typed(lambda x, weights, g: (_product(g, weights), _product(g.T, x))),
)
