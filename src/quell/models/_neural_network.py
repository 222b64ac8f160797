"""A Bayesian neural network with one hidden layer."""

import math
from collections.abc import Callable
from itertools import accumulate
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from quell._checks import check_whole
from quell._errors import invalid
from quell.gaussian import Gaussian, mean_field
from quell.models._types import Model, weights_model


class Likelihood(NamedTuple):
    """A distribution of the target, given the outputs of a network.

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


def gaussian(variance: float) -> Likelihood:
    """A likelihood for numbers: the output is the mean of y, with known variance; moments `[]`."""
    if not variance > 0:
        raise invalid("variance", expected="a positive number", got=variance, advice="Try 0.1.")

    def log_prob(outputs, y):
        return -0.5 * ((y - outputs[0]) ** 2 / variance + math.log(2 * math.pi * variance))

    return Likelihood(log_prob, lambda outputs: (outputs[0], jnp.asarray(variance)))


def bayesian_neural_network(
    dim: int,
    outputs: int,
    *,
    hidden: int = 50,
    likelihood: Likelihood | None = None,
    family: Callable[[int], Gaussian] = mean_field,
    initial_scale: float = 0.05,
) -> Model:
    """A network tanh(xV/√d + a) U/√H + b with prior N(0, 1) on each of its W weights.

    Dividing by the square root of the number of inputs lets one unit prior serve every width.

    Args:
      dim: d, the number of inputs.
      outputs: O, the number of classes, or 1 for regression.
      hidden: H, the number of hidden units.
      likelihood: `categorical()` by default, or `gaussian(variance)`.
      family: the posterior's family over the flat vector of weights.
      initial_scale: the posterior's standard deviation at the start: small, so that the first
        draws agree.

    Returns:
      A model for examples `{"x": [d], "y": []}` with noise `[W]`, W = dH + H + HO + O, one draw of
      all weights for each example.
    """
    for argument, size in (("dim", dim), ("hidden", hidden), ("outputs", outputs)):
        check_whole(argument, size, 1)
    d, H, O = dim, hidden, outputs  # noqa: E741
    likely = categorical() if likelihood is None else likelihood
    sizes = [d * H, H, H * O, O]
    weights = family(sum(sizes))

    def forward(w, x):
        ends = list(accumulate(sizes))[:-1]
        V, a, U, b = jnp.split(w, ends)
        h = jnp.tanh(x @ V.reshape(d, H) / math.sqrt(d) + a)
        return h @ U.reshape(H, O) / math.sqrt(H) + b

    def log_likelihood(w, example):
        return likely.log_prob(forward(w, example["x"]), example["y"])

    def moments(w, x):
        return likely.moments(forward(w, x))

    def init(key):
        # A draw from the prior, so that the hidden units differ.
        return weights.init(jax.random.normal(key, (weights.size,)), initial_scale)

    return weights_model(init, log_likelihood, weights, moments)
