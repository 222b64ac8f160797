"""Bayesian Poisson regression."""

from collections.abc import Callable

import jax.numpy as jnp
from jax.scipy.special import gammaln

from quell._arguments import checked
from quell.gaussian import Gaussian, full_covariance
from quell.models._types import Model, family_of, weights_model


@checked()
def poisson_regression(dim: int, family: Callable[[int], Gaussian] = full_covariance) -> Model:
    """A model of counts, y ~ Poisson(exp(wᵀx)), with prior w ~ N(0, I) and a Gaussian posterior.

    There is no intercept: give the inputs a column of ones (`dataset.with_bias()`).

    Args:
      dim: d, the number of inputs.
      family: the posterior's family, `full_covariance` (P = d + d(d+1)/2) or `mean_field` (2d).

    Returns:
      A model for examples `{"x": [d], "y": 0.0, 1.0, ...}` with noise `[d]`. Draws from the prior
      overflow where wᵀx is large, so it starts from standard deviations of a hundredth.

    >>> poisson_regression(4).noise.shape
    (4,)
    """
    weights = family_of(family, dim)

    def log_likelihood(w, example):
        # log p(y) = y z − eᶻ − log y!
        z, y = (example["x"] * w).sum(), example["y"]
        return y * z - jnp.exp(z) - gammaln(y + 1)

    def moments(w, x):
        rate = jnp.exp((x * w).sum())
        return rate, rate

    return weights_model(lambda key: weights.init(scale=0.01), log_likelihood, weights, moments)
