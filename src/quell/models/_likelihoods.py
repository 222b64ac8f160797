"""Likelihoods: distributions of one target, given the outputs of a model."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from quell._arguments import checked
from quell._errors import invalid


class Likelihood(NamedTuple):
    """A distribution of the target, given the outputs of a model.

    Attributes:
      log_prob: `log_prob(outputs, y)`, log p(y | outputs) for one example.
      moments: `moments(outputs)`, mean and variance of the target.
    """

    log_prob: Callable[[Float[Array, " O"], Array], Float[Array, ""]]
    moments: Callable[[Float[Array, " O"]], tuple[Array, Array]]


def categorical() -> Likelihood:
    """A likelihood for classes: the outputs `[O]` are logits, y is a class index; moments `[O]`."""

    def log_prob(outputs, y):
        return (jax.nn.log_softmax(outputs) * jax.nn.one_hot(y, outputs.shape[-1])).sum()

    def moments(outputs):
        p = jax.nn.softmax(outputs)
        return p, p * (1 - p)

    return Likelihood(log_prob, moments)


def bernoulli() -> Likelihood:
    """A likelihood for two classes: the output is the logit of y = 1; moments `[]`."""

    def log_prob(outputs, y):
        # log σ(±z) = y z − log(1 + eᶻ)
        return y * outputs[0] - jax.nn.softplus(outputs[0])

    def moments(outputs):
        p = jax.nn.sigmoid(outputs[0])
        return p, p * (1 - p)

    return Likelihood(log_prob, moments)


@checked()
def gaussian(variance: float) -> Likelihood:
    """A likelihood for numbers: the output is the mean of y, with known variance; moments `[]`."""
    if not variance > 0:
        raise invalid("variance", expected="a positive number", got=variance, advice="Try 0.1.")

    def log_prob(outputs, y):
        return -0.5 * ((y - outputs[0]) ** 2 / variance + math.log(2 * math.pi * variance))

    return Likelihood(log_prob, lambda outputs: (outputs[0], jnp.asarray(variance)))
