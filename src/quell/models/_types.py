"""The protocol of models: a NamedTuple of pure functions, from which an `Objective` is made."""

from collections.abc import Callable
from typing import NamedTuple

import jax
from jaxtyping import Array, Float, Key, PyTree

from quell._arguments import GAUSSIAN
from quell._errors import invalid
from quell.gaussian import Gaussian
from quell.noise import Noise
from quell.objective import Objective, negative_elbo


class Prediction(NamedTuple):
    """Mean and variance of the predicted target, averaged over draws: leaves `[N, ...]`.

    For classes the mean is the probability, and the variance belongs to the 0-or-1 indicator.
    """

    mean: Float[Array, " N *shape"]
    variance: Float[Array, " N *shape"]


class Model(NamedTuple):
    """A model as pure functions, which know nothing of estimators or control variates.

    Attributes:
      init: `init(key)` gives the initial params.
      loss: `loss(params, noise, example)` gives the loss of one example and draw; minimised.
      noise: the base noise of one example.
      regulariser: `regulariser(params)`, the noise-free part of the objective, or None.
      predict: `predict(key, params, x, draws=64)` gives a `Prediction` for inputs `[N, ...]`.
      prepare: `prepare(data)` adds to the data the parts of the loss that stay constant during
        training; optional, since the loss takes examples of either kind.
      family: the Gaussian family of the weights, if the model has one.
      log_likelihood: `log_likelihood(weights, example)`, log p(y | x, w), if the model has one.
    """

    init: Callable[[Key[Array, ""]], PyTree[Array]]
    loss: Callable[[PyTree[Array], PyTree[Array], PyTree[Array]], Float[Array, ""]]
    noise: Noise
    regulariser: Callable[[PyTree[Array]], Float[Array, ""]] | None
    predict: Callable[..., Prediction]
    prepare: Callable[[PyTree[Array]], PyTree[Array]] = lambda data: data
    family: Gaussian | None = None
    log_likelihood: Callable[[Array, PyTree[Array]], Float[Array, ""]] | None = None

    def objective(self, num_data: int) -> Objective:
        """The negative evidence lower bound of N data points."""
        if self.family is None or self.log_likelihood is None:
            return Objective(self.loss, self.noise, num_data, self.regulariser)
        return negative_elbo(self.log_likelihood, self.family, num_data=num_data)


def family_of(family: Callable[[int], Gaussian], size: int) -> Gaussian:
    """The family of so many weights, from its factory."""
    try:
        made = family(size)
    except TypeError as error:
        raise invalid(
            "family",
            expected="a factory of families, such as quell.mean_field",
            got=f"an error when called with {size}: {error}",
            advice="Pass the factory itself.",
        ) from error
    GAUSSIAN("family", made)
    return made


def weights_model(
    init: Callable[[Key[Array, ""]], PyTree[Array]],
    log_likelihood: Callable[[Array, PyTree[Array]], Float[Array, ""]],
    family: Gaussian,
    moments: Callable[[Float[Array, " W"], Array], tuple[Array, Array]],
) -> Model:
    """A model whose only unknowns are weights w with prior N(0, I) and posterior in a family.

    Args:
      init: `init(key)` gives params of the family.
      log_likelihood: `log_likelihood(w, example)`, log p(y | x, w).
      family: q(w).
      moments: `moments(w, x)`, mean and variance of the target of one input.
    """
    one_point = negative_elbo(log_likelihood, family, num_data=1)

    def given_draw(params, eps, x):
        return moments(family.sample(params, eps), x)

    return Model(
        init=init,
        loss=one_point.loss,
        noise=one_point.noise,
        regulariser=one_point.regulariser,
        predict=predictor(given_draw, one_point.noise),
        family=family,
        log_likelihood=log_likelihood,
    )


def predictor(
    moments: Callable[[PyTree[Array], PyTree[Array], Array], tuple[Array, Array]], noise: Noise
) -> Callable[..., Prediction]:
    """A `predict` from `moments(params, noise, x)`: mean and variance given one draw, one input.

    The draws are averaged by the law of total variance.
    """

    def predict(
        key: Key[Array, ""], params: PyTree[Array], x: Float[Array, "N *d"], draws: int = 64
    ) -> Prediction:
        eps = noise.sample(key, (draws, x.shape[0]))
        one_draw = jax.vmap(moments, in_axes=(None, 0, 0))
        mean, variance = jax.vmap(one_draw, in_axes=(None, 0, None))(params, eps, x)
        return Prediction(mean.mean(0), variance.mean(0) + mean.var(0))  # total variance

    return predict
