"""The score-function estimator, with its score as the control variate."""

import jax
from jaxtyping import Array, Float, PyTree

from quell._arguments import checked
from quell.estimators._ensemble import without_term
from quell.estimators._pooling import Pooling
from quell.estimators._terms import Term, changed, inner_or_plain, structure_of
from quell.estimators._types import Estimator
from quell.gaussian import Gaussian
from quell.objective import Objective


@checked()
def score_function(
    inner: Estimator | None = None, *, pooling: Pooling | None = None, decay: float = 0.99
) -> Estimator:
    """Estimate by the score, loss(w) ∂ log q(w; θ)/∂θ: no derivative of the model, large variance.

    R. J. Williams, "Simple statistical gradient-following algorithms for connectionist
    reinforcement learning", 1992. A regulariser in closed form keeps its own gradient. Needs an
    objective with its variational structure.

    With a pooling the score is its own control variate: R. Ranganath, S. Gerrish and D. M. Blei,
    "Black box variational inference", 2014, without its Rao–Blackwellisation:
    G̃ = mean of N (loss(w_b) − a) ∂ log q(w_b; θ)/∂θ. The coefficient
    a = Cov[loss·score, score] / Var[score] is a running average, applied before it is learned; it
    starts at 0. The paper's pooling is `per_entry`.

    Args:
      inner: the estimator to use on this objective; `monte_carlo()` by default.
      pooling: the parameters that share a coefficient; None for no control variate.
      decay: forgetting of the running average, in (0, 1].
    """
    inner = inner_or_plain(inner)
    name = f"score_function({inner.name})"
    if pooling is None:
        return changed(name, inner, score_objective)
    return without_term(name, inner, _score_term, pooling, decay, change=score_objective, prior=0.0)


def score_objective(original: Objective, objective: Objective) -> Objective:
    """The objective with the original loss differentiated through the density of its draws.

    A term that an outer estimator has subtracted is no function of w and y alone. The score would
    not give its gradient, so the term is differentiated through the draws.
    """
    family = structure_of(original, "the score function").family

    def loss(params, eps, example):
        value = jax.lax.stop_gradient(original.loss(params, eps, example))
        # log_density is 0 with the score as its gradient, so that the value does not change
        by_score = value + value * log_density(family, params, eps)
        if objective.loss is original.loss:  # skip the model's derivative, which need not exist
            return by_score
        return by_score + objective.loss(params, eps, example) - original.loss(params, eps, example)

    return objective._replace(loss=loss)


def log_density(family: Gaussian, params: PyTree[Array], eps: Array) -> Float[Array, ""]:
    """log q(w; θ) minus its value, at a fixed w: zero, with the score as its gradient."""
    log_q = family.log_density(params, jax.lax.stop_gradient(family.sample(params, eps)))
    return log_q - jax.lax.stop_gradient(log_q)


def _score_term(objective: Objective) -> Term:
    family = structure_of(objective, "the score function").family
    return lambda params, eps, example: log_density(family, params, eps)
