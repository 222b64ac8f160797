"""Sticking the landing: the divergence along the path of the draw alone."""

import jax

from quell._objective import Objective
from quell.estimators._sampling import monte_carlo
from quell.estimators._terms import structure_of
from quell.estimators._types import MakeEstimator


def sticking_the_landing(inner: MakeEstimator | None = None) -> MakeEstimator:
    """The gradient of −log p(y | w) + (log q(w) − log p(w)) / N through w = w(θ, ε) alone.

    G. Roeder, Y. Wu and D. Duvenaud, "Sticking the landing: simple, lower-variance gradient
    estimators for variational inference", 2017. What it leaves out, the score ∂ log q(w; θ)/∂θ at
    fixed w, has mean zero. Where q is the posterior, the rest vanishes for every draw, once the
    batch is the data and shares its draws.

    Needs an objective with its variational structure; one with the divergence in closed form is
    turned into one that samples it.

    Args:
      inner: the estimator to use on that objective; `monte_carlo()` by default.
    """
    inner = monte_carlo() if inner is None else inner
    return lambda objective: inner(_path_objective(objective))


def _path_objective(objective: Objective) -> Objective:
    structure = structure_of(objective, "sticking_the_landing")
    family, N = structure.family, objective.num_data

    def loss(params, eps, example):
        w = family.sample(params, eps)
        log_q = family.log_density(jax.lax.stop_gradient(params), w)
        return (log_q - structure.log_prior(w)) / N - structure.log_likelihood(w, example)

    return Objective(loss, objective.noise, N, None, structure)
