"""A Bayesian neural network with one hidden layer, whose noise is that of weights or of units."""

import math
from collections.abc import Callable
from itertools import accumulate

import jax
import jax.numpy as jnp

from quell._arguments import checked
from quell._checks import check_whole
from quell.gaussian import Gaussian, mean_field
from quell.models._likelihoods import Likelihood, categorical
from quell.models._types import Model, family_of, predictor, weights_model
from quell.noise import normal


@checked()
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
    split, size = _layers(dim, hidden, outputs)
    likely = categorical() if likelihood is None else likelihood
    weights = family_of(family, size)

    def forward(w, x):
        V, a, U, b = split(w)
        h = jnp.tanh(x @ V / math.sqrt(dim) + a)
        return h @ U / math.sqrt(hidden) + b

    def log_likelihood(w, example):
        return likely.log_prob(forward(w, example["x"]), example["y"])

    def moments(w, x):
        return likely.moments(forward(w, x))

    def init(key):
        # A draw from the prior, so that the hidden units differ.
        return weights.init(jax.random.normal(key, (weights.size,)), initial_scale)

    return weights_model(init, log_likelihood, weights, moments)


@checked()
def local_neural_network(
    dim: int,
    outputs: int,
    *,
    hidden: int = 50,
    likelihood: Likelihood | None = None,
    initial_scale: float = 0.05,
) -> Model:
    """The mean-field `bayesian_neural_network`, drawn unit by unit: the same bound, less noise.

    For one example, independent Gaussian weights make every input of a unit Gaussian, too. Drawing
    that input instead of the weights gives the outputs the same distribution, from H + O numbers
    instead of one for each weight. D. P. Kingma, T. Salimans and M. Welling, "Variational dropout
    and the local reparameterization trick", 2015.

    Args:
      dim: d, the number of inputs.
      outputs: O, the number of classes, or 1 for regression.
      hidden: H, the number of hidden units.
      likelihood: `categorical()` by default, or `gaussian(variance)`.
      initial_scale: the posterior's standard deviation at the start.

    Returns:
      A model for examples `{"x": [d], "y": []}` with noise `[H + O]`; params as in
      `bayesian_neural_network`.

    >>> local_neural_network(64, 10, hidden=20).noise.shape
    (30,)
    """
    split, size = _layers(dim, hidden, outputs)
    likely = categorical() if likelihood is None else likelihood
    weights, noise = mean_field(size), normal(hidden + outputs)

    def drawn(x, mean, variance, bias, bias_variance, eps):
        """Inputs of units `[H]` for x `[d]`, whose weights are divided by √d."""
        d = x.shape[0]
        centre = x @ mean / math.sqrt(d) + bias
        return centre + jnp.sqrt(x**2 @ variance / d + bias_variance) * eps

    def forward(params, eps, x):
        (V, a, U, b), (V2, a2, U2, b2) = split(params["mean"]), split(jnp.exp(2 * params["scale"]))
        h = jnp.tanh(drawn(x, V, V2, a, a2, eps[:hidden]))
        return drawn(h, U, U2, b, b2, eps[hidden:])

    def loss(params, eps, example):
        return -likely.log_prob(forward(params, eps, example["x"]), example["y"])

    def moments(params, eps, x):
        return likely.moments(forward(params, eps, x))

    def init(key):
        return weights.init(jax.random.normal(key, (size,)), initial_scale)

    return Model(init, loss, noise, weights.kl, predictor(moments, noise))


def _layers(dim: int, hidden: int, outputs: int) -> tuple[Callable, int]:
    """`split(w)` gives V `[d, H]`, a `[H]`, U `[H, O]` and b `[O]`; beside it, the size of w."""
    for argument, size in (("dim", dim), ("hidden", hidden), ("outputs", outputs)):
        check_whole(argument, size, 1)
    sizes = [dim * hidden, hidden, hidden * outputs, outputs]
    ends = list(accumulate(sizes))

    def split(w):
        V, a, U, b = jnp.split(w, ends[:-1])
        return V.reshape(dim, hidden), a, U.reshape(hidden, outputs), b

    return split, ends[-1]
