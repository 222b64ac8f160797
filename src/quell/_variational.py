"""The variational structure an objective may carry, and the two objectives it makes.

The negative evidence lower bound of N data points is −Σₙ E_q[log p(yₙ | w)] + KL[q ‖ p], with the
divergence in closed form, or from the draws: E_q[log q(w) − log p(w)].
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Array, Float, PyTree

from quell._errors import invalid
from quell._gaussian import Gaussian
from quell._objective import Objective
from quell.noise import normal


class Variational(NamedTuple):
    """What a variational objective is made of; what an estimator that looks inside may use.

    The parameters of the objective are those of the family and nothing else.

    Attributes:
      log_likelihood: `log_likelihood(w, example)`, log p(y | w) of one example.
      family: q(w), a Gaussian family such as `quell.mean_field(d)`.
      log_prior: `log_prior(w)`, log p(w).
      kl: `kl(params)`, KL[q ‖ p] in closed form, or None.
    """

    log_likelihood: Callable[[Float[Array, " d"], PyTree[Array]], Float[Array, ""]]
    family: Gaussian
    log_prior: Callable[[Float[Array, " d"]], Float[Array, ""]]
    kl: Callable[[PyTree[Array]], Float[Array, ""]] | None = None


def variational(
    log_likelihood: Callable[[Float[Array, " d"], PyTree[Array]], Float[Array, ""]],
    family: Gaussian,
    log_prior: Callable[[Float[Array, " d"]], Float[Array, ""]] | None = None,
) -> Variational:
    """The structure of a model with a Gaussian posterior.

    Args:
      log_likelihood: `log_likelihood(w, example)` for weights `[d]`.
      family: `quell.full_covariance(d)` or `quell.mean_field(d)`.
      log_prior: any log density of `w`; the unit Gaussian by default, which is the one whose
        divergence is known in closed form.
    """
    if log_prior is None:
        return Variational(log_likelihood, family, _unit_log_density, family.kl)
    return Variational(log_likelihood, family, log_prior)


def closed_form_kl(structure: Variational, num_data: int) -> Objective:
    """−Σₙ E_q[log p(yₙ | w)] + KL[q ‖ p], the divergence in closed form, free of noise.

    >>> from quell._gaussian import mean_field
    >>> linear = variational(lambda w, y: -0.5 * (y - w[0]) ** 2, mean_field(1))
    >>> closed_form_kl(linear, 10).regulariser(mean_field(1).init()).item()
    0.0
    """
    if structure.kl is None:
        raise invalid(
            "structure",
            expected="a divergence in closed form",
            got="a prior of your own, without one",
            advice="Use sampled_entropy, or the unit Gaussian prior.",
        )

    def loss(params, eps, example):
        return -structure.log_likelihood(structure.family.sample(params, eps), example)

    return _objective(structure, num_data, loss, structure.kl)


def sampled_entropy(structure: Variational, num_data: int) -> Objective:
    """−Σₙ E_q[log p(yₙ | w) + (log p(w) − log q(w)) / N]: the divergence from the draws as well."""

    def loss(params, eps, example):
        w = structure.family.sample(params, eps)
        divergence = structure.family.log_density(params, w) - structure.log_prior(w)
        return divergence / num_data - structure.log_likelihood(w, example)

    return _objective(structure, num_data, loss, None)


def _objective(structure, num_data, loss, regulariser) -> Objective:
    noise = normal(structure.family.size)
    return Objective(loss, noise, num_data, regulariser, variational=structure)


def _unit_log_density(w: Float[Array, " d"]) -> Float[Array, ""]:
    return -0.5 * (w**2).sum() - 0.5 * w.shape[-1] * math.log(2 * math.pi)
