"""Bayesian logistic regression."""

from collections.abc import Callable

import jax

from quell._arguments import checked
from quell.gaussian import Gaussian, full_covariance
from quell.models._types import Model, family_of, weights_model


@checked()
def logistic_regression(dim: int, family: Callable[[int], Gaussian] = full_covariance) -> Model:
    """A classifier p(y = 1 | x, w) = σ(wᵀx) with prior w ~ N(0, I) and a Gaussian posterior.

    There is no intercept: give the inputs a column of ones (`dataset.with_bias()`).

    Args:
      dim: d, the number of inputs.
      family: the posterior's family, `full_covariance` (P = d + d(d+1)/2) or `mean_field` (2d).

    Returns:
      A model for examples `{"x": [d], "y": 0.0 or 1.0}` with noise `[d]`.

    >>> logistic_regression(4).noise.shape
    (4,)
    """
    weights = family_of(family, dim)

    def log_likelihood(w, example):
        # log σ(±z) = y z − log(1 + eᶻ)
        z = (example["x"] * w).sum()
        return example["y"] * z - jax.nn.softplus(z)

    def moments(w, x):
        p = jax.nn.sigmoid((x * w).sum())
        return p, p * (1 - p)

    return weights_model(lambda key: weights.init(), log_likelihood, weights, moments)
