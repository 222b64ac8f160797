"""Sticking the landing: the divergence is differentiated along the path of the draw alone."""

import jax

from quell._arguments import checked
from quell.estimators._score import log_density
from quell.estimators._terms import changed, inner_or_plain, minus, structure_of
from quell.estimators._types import Estimator
from quell.objective import Objective


@checked()
def sticking_the_landing(inner: Estimator | None = None) -> Estimator:
    """Differentiate −log p(y | w) + (log q(w) − log p(w)) / N through w = w(θ, ε) alone.

    G. Roeder, Y. Wu and D. Duvenaud, "Sticking the landing: simple, lower-variance gradient
    estimators for variational inference", 2017. The omitted part, the score ∂ log q(w; θ)/∂θ at
    fixed w, has mean zero. If q is the posterior, the remaining gradient vanishes for every draw,
    provided that the batch is the whole data and shares its draws.

    Needs an objective with its variational structure; a divergence in closed form is replaced by
    one from the draws.

    Args:
      inner: the estimator to use on that objective; `monte_carlo()` by default.
    """
    inner = inner_or_plain(inner)
    return changed(f"sticking_the_landing({inner.name})", inner, _path_objective)


def _path_objective(original: Objective, objective: Objective) -> Objective:
    structure = structure_of(original, "sticking_the_landing")
    family, divergence = structure.family, original.regulariser

    def term(params, eps, example):
        if divergence is None:  # already from the draws: only its score has to go
            return log_density(family, params, eps) / original.num_data
        w = family.sample(params, eps)
        log_q = family.log_density(jax.lax.stop_gradient(params), w)  # no score: the path alone
        return (divergence(params) - log_q + structure.log_prior(w)) / original.num_data

    return minus(objective, term)
