"""A hierarchical model with crossed effects: one for the level of each factor."""

from collections.abc import Sequence
from itertools import accumulate

import jax.numpy as jnp
import numpy as np

from quell._arguments import checked, several, whole
from quell._checks import check_whole
from quell._errors import invalid
from quell.gaussian import mean_field
from quell.models._likelihoods import Likelihood, bernoulli
from quell.models._types import Model, predictor
from quell.noise import normal


@checked(levels=several(whole(1), "(200, 300)", least=1))
def crossed_effects(
    levels: Sequence[int], *, likelihood: Likelihood | None = None, initial_scale: float = 0.1
) -> Model:
    """A regression on factors that cross, such as rater and item: z = w₀ + Σₖ exp(tₖ) aₖ[levelₖ].

    The intercept w₀, the log of each factor's spread tₖ and all effects aₖ have the prior N(0, 1),
    and a mean-field posterior. An example depends on few of these weights, so only they are drawn:
    the noise of an example is 1 + 2K numbers, however many the levels.

    Args:
      levels: the number of levels of each of the K factors.
      likelihood: by default a coin with logit z, y 0.0 or 1.0; or `gaussian(variance)`.
      initial_scale: the posterior's standard deviation at the start.

    Returns:
      A model for examples `{"levels": [K] integers, "y": []}` with noise `[1 + 2K]` and params
      `mean` and `scale` `[W]` of `quell.mean_field(W)`, in the order w₀, t, a₁, a₂, ...

    >>> crossed_effects((200, 300)).noise.shape
    (5,)
    """
    if not levels:
        raise invalid(
            "levels", expected="a number for each factor", got=levels, advice="(200, 300)"
        )
    for count in levels:
        check_whole("levels", count, 1)
    K, likely = len(levels), bernoulli() if likelihood is None else likelihood
    weights = mean_field(1 + K + sum(levels))
    starts = np.array([1 + K, *accumulate(levels, initial=1 + K)][1:-1])  # of each factor's effects

    def moments(params, eps, x):
        return likely.moments(outputs(params, eps, x))

    def outputs(params, eps, x):
        used = jnp.concatenate([jnp.arange(1 + K), starts + x])
        w = params["mean"][used] + jnp.exp(params["scale"][used]) * eps
        return (w[0] + jnp.exp(w[1 : 1 + K]) @ w[1 + K :])[None]

    def loss(params, eps, example):
        return -likely.log_prob(outputs(params, eps, example["levels"]), example["y"])

    noise = normal(1 + 2 * K)
    return Model(
        init=lambda key: weights.init(scale=initial_scale),
        loss=loss,
        noise=noise,
        regulariser=weights.kl,
        predict=predictor(moments, noise),
    )
