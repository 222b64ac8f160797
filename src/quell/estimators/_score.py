"""The score-function estimator, and its score as the control variate."""

import jax
from jaxtyping import Array, Float, PyTree

from quell._objective import Objective
from quell.estimators._ensemble import adaptive
from quell.estimators._pooling import Pooling, per_entry
from quell.estimators._sampling import Sampling, monte_carlo
from quell.estimators._terms import only, structure_of
from quell.estimators._types import MakeEstimator


def score_function(inner: MakeEstimator | None = None) -> MakeEstimator:
    """loss(w) ∂ log q(w; θ)/∂θ: no derivative of the model, and a large variance.

    R. J. Williams, "Simple statistical gradient-following algorithms for connectionist
    reinforcement learning", 1992. A regulariser in closed form keeps its own gradient. Needs an
    objective with its variational structure.

    Args:
      inner: the estimator to use on the objective whose gradient this is; `monte_carlo()` by
        default.
    """
    inner = monte_carlo() if inner is None else inner
    return lambda objective: inner(_score_objective(objective))


def black_box(
    sampling: Sampling | None = None, *, pooling: Pooling = per_entry, decay: float = 0.99
) -> MakeEstimator:
    """The score-function estimator with the score as its control variate.

    R. Ranganath, S. Gerrish and D. M. Blei, "Black box variational inference", 2014, without its
    Rao–Blackwellisation: G̃ = mean of N (loss(w_b) − a) ∂ log q(w_b; θ)/∂θ. The coefficient
    a = Cov[loss·score, score] / Var[score] is a running average for each parameter, applied before
    it is learned; it starts at 0.

    Args:
      sampling: how the draws are made; `monte_carlo()` by default.
      pooling: over which parameters the coefficient is shared.
      decay: forgetting of the running average, in (0, 1].
    """
    sampling = monte_carlo() if sampling is None else sampling

    def score(objective):
        return sampling(only(objective, lambda params, eps, y: log_density(objective, params, eps)))

    return adaptive(score_function(sampling), score, pooling, start=0.0, decay=decay)


def log_density(objective: Objective, params: PyTree[Array], eps: Array) -> Float[Array, ""]:
    """log q(w; θ) less its value, at a fixed w: zero, with the score as its gradient."""
    family = structure_of(objective, "the score function").family
    w = jax.lax.stop_gradient(family.sample(params, eps))
    log_q = family.log_density(params, w)
    return log_q - jax.lax.stop_gradient(log_q)


def _score_objective(objective: Objective) -> Objective:
    structure = structure_of(objective, "score_function")

    def loss(params, eps, example):
        value = jax.lax.stop_gradient(objective.loss(params, eps, example))
        return value + value * log_density(objective, params, eps)

    return Objective(loss, objective.noise, objective.num_data, objective.regulariser, structure)
