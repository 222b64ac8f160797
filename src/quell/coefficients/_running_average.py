"""Coefficients as running averages of the empirical Cov[g, w] / Var[w]."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from quell._arguments import checked
from quell._tree import where
from quell.coefficients._types import Coefficients, Sizes


class RunningAverage(NamedTuple):
    """Running sums with forgetting.

    Attributes:
      mean: sum of the gradient, `[P]`.
      covariance: sum of the products of basis and gradient, `[D, P]`.
      variance: sum of the squared basis, `[D]`.
      weight: the weight of all three sums, `[]`.
    """

    mean: Float[Array, " P"]
    covariance: Float[Array, "D P"]
    variance: Float[Array, " D"]
    weight: Float[Array, ""]


@checked()
def running_average(decay: float = 0.99) -> Coefficients:
    """Average C* = Cov[g, w] / Var[w] over the steps so far, one basis function at a time.

    Context-free. C* is learned from the gradient of each example if the criterion needs it,
    otherwise from the gradient of the batch.

    Args:
      decay: forgetting, in (0, 1]; 1 averages over all steps.
    """

    def start(key, sizes: Sizes, params, data):
        D, P = sizes.basis, sizes.outputs
        return lambda key: RunningAverage(
            mean=jnp.zeros(P, sizes.dtype),
            covariance=jnp.zeros((D, P), sizes.dtype),
            variance=jnp.zeros(D, sizes.dtype),
            weight=jnp.zeros((), sizes.dtype),
        )

    def context_features(state, params, batch, B):
        return jnp.ones((B, 1), state.mean.dtype)

    def predict(state, phi):
        seen = state.variance > 0  # no correction before the first step
        theta = state.covariance / jnp.where(seen, state.variance, 1)[:, None]
        return phi @ jnp.where(seen[:, None], theta, 0)

    def learn(state, criterion, evidence):
        if criterion.per_example and not evidence.shared:
            g, w = evidence.per_example, evidence.w[: evidence.per_example.shape[0]]
        else:
            g, w = evidence.total[None], evidence.w.mean(0, keepdims=True)
        weight = decay * state.weight + 1
        mean = decay * state.mean + g.mean(0)
        centred = g - mean / weight  # E[w] = 0, so this only lowers the variance
        learned = RunningAverage(
            mean=mean,
            covariance=decay * state.covariance + w.T @ centred / w.shape[0],
            variance=decay * state.variance + (w**2).mean(0),
            weight=weight,
        )
        return where(evidence.finite, learned, state)

    return Coefficients(start, context_features, predict, learn)
