"""Bayesian logistic regression."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from quell._gaussian import Gaussian, check_size, full_covariance
from quell.models._types import Model, predictor
from quell.noise import normal


def logistic_regression(dim: int, family: Callable[[int], Gaussian] = full_covariance) -> Model:
    """p(y = 1 | x, w) = σ(wᵀx), prior w ~ N(0, I), posterior approximated by a Gaussian.

    There is no intercept: give the inputs a column of ones (`dataset.with_bias()`).

    Args:
      dim: d, the number of inputs.
      family: the posterior's family, `full_covariance` (P = d + d(d+1)/2) or `mean_field` (2d).

    Returns:
      A model for examples `{"x": [d], "y": 0.0 or 1.0}` with noise `[d]`. At ε = 0 it offers the
      residual p − y and the curvature p(1 − p), `[2]`.

    >>> logistic_regression(4).noise.shape
    (4,)
    """
    weights = family(check_size(dim, "dim"))
    noise = normal(dim)

    def log_likelihood(w, example):
        # log σ(±z) = y z − log(1 + eᶻ)
        z = (example["x"] * w).sum()
        return example["y"] * z - jax.nn.softplus(z)

    def moments(params, eps, x):
        p = jax.nn.sigmoid((x * weights.sample(params, eps)).sum())
        return p, p * (1 - p)

    def at_zero(params, example):
        p = jax.nn.sigmoid((example["x"] * weights.sample(params, jnp.zeros(dim))).sum())
        return jnp.stack([p - example["y"], p * (1 - p)])

    return Model(
        init=lambda key: weights.init(),
        loss=lambda params, eps, example: -log_likelihood(weights.sample(params, eps), example),
        noise=noise,
        regulariser=weights.kl,
        predict=predictor(moments, noise),
        family=weights,
        log_likelihood=log_likelihood,
        at_zero=at_zero,
    )
