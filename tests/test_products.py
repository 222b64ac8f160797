"""Products for small batches: what they give, and their derivatives, are those of a matmul."""

import jax
import jax.numpy as jnp
import pytest
from _exact import SAME32, max_error

from quell._products import times, times_transposed

pytestmark = pytest.mark.usefixtures("quick")


@pytest.mark.parametrize("B", [1, 3, 20])
@pytest.mark.parametrize(("n", "m"), [(2, 5), (30, 5), (30, 100), (30, 400)])
def test_products_and_their_derivatives_are_those_of_a_matmul(key, B, n, m):
    x_key, w_key, g_key = jax.random.split(key, 3)
    x = jax.random.normal(x_key, (B, n))
    weights = jax.random.normal(w_key, (n, m))
    g = jax.random.normal(g_key, (B, m))

    def both(product):
        def all_three(x, weights, g):
            y, pull = jax.vjp(product, x, weights)
            return y, *pull(g)

        return jax.jit(all_three)(x, weights, g)

    matmul = both(jnp.matmul)
    assert max_error(both(times), matmul) < SAME32
    assert max_error(both(lambda x, w: times_transposed(x, w.T)), matmul) < SAME32
