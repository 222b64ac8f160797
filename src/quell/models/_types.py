"""What every model is: a NamedTuple of pure functions, an `Objective` away from training."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import jax
from jaxtyping import Array, Float, Key, PyTree

from quell._objective import Objective
from quell._variational import variational
from quell.noise import Noise

if TYPE_CHECKING:
    from quell._gaussian import Gaussian


class Prediction(NamedTuple):
    """Mean and variance of the predicted target, draws averaged: leaves `[N, ...]`.

    For classes the mean is the probability, and the variance that of the 0-or-1 indicator.
    """

    mean: Float[Array, " N *shape"]
    variance: Float[Array, " N *shape"]


class Model(NamedTuple):
    """A model as pure functions. It knows nothing of estimators or control variates.

    Attributes:
      init: `init(key)` gives the initial params.
      loss: `loss(params, noise, example)`: one example, one draw; minimised.
      noise: the base noise of one example.
      regulariser: `regulariser(params)`, the noise-free part of the objective, or None.
      predict: `predict(key, params, x, samples)` for inputs `[N, ...]`, a `Prediction`.
      prepare: `prepare(data)` adds to a data set what stays constant during training; optional,
        the loss takes examples of either kind.
      family: the Gaussian family of the weights, where the model has one.
      log_likelihood: `log_likelihood(weights, example)`, log p(y | x, w), where it has one. With
        `family` and the unit Gaussian prior it is the whole variational structure.
      at_zero: `at_zero(params, example)`, what it says of one example at ε = 0, where it offers
        that.
    """

    init: Callable[[Key[Array, ""]], PyTree[Array]]
    loss: Callable[[PyTree[Array], PyTree[Array], PyTree[Array]], Float[Array, ""]]
    noise: Noise
    regulariser: Callable[[PyTree[Array]], Float[Array, ""]] | None
    predict: Callable[..., Prediction]
    prepare: Callable[[PyTree[Array]], PyTree[Array]] = lambda data: data
    family: "Gaussian | None" = None
    log_likelihood: Callable[[Array, PyTree[Array]], Float[Array, ""]] | None = None
    at_zero: Callable[[PyTree[Array], PyTree[Array]], PyTree[Array]] | None = None

    def objective(self, num_data: int) -> Objective:
        """The negative evidence lower bound of N data points."""
        structure = None
        if self.family is not None and self.log_likelihood is not None:
            structure = variational(self.log_likelihood, self.family)
        return Objective(self.loss, self.noise, num_data, self.regulariser, structure, self.at_zero)


def predictor(
    moments: Callable[[PyTree[Array], PyTree[Array], Array], tuple[Array, Array]], noise: Noise
) -> Callable[..., Prediction]:
    """A `predict` from `moments(params, noise, x)`: mean and variance given one draw, one input.

    The draws are averaged by the law of total variance.
    """

    def predict(
        key: Key[Array, ""], params: PyTree[Array], x: Float[Array, "N *d"], samples: int = 64
    ) -> Prediction:
        draws = noise.sample(key, (samples, x.shape[0]))
        one_draw = jax.vmap(moments, in_axes=(None, 0, 0))
        mean, variance = jax.vmap(one_draw, in_axes=(None, 0, None))(params, draws, x)
        return Prediction(mean.mean(0), variance.mean(0) + mean.var(0))

    return predict
