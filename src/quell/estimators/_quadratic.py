"""A quadratic in place of the log-likelihood, whose mean under a Gaussian is in closed form.

With slope v and Hessian H at a centre z, and q(w) = N(m, Σ):

    ℓ̃(w) = v'(w − z) + ½ (w − z)'H(w − z),   E_q[ℓ̃] = v'(m − z) + ½ (m − z)'H(m − z) + ½ tr HΣ
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from quell._arguments import checked
from quell.estimators._ensemble import without_term
from quell.estimators._pooling import Pooling, per_leaf
from quell.estimators._terms import Term, inner_or_plain, structure_of
from quell.estimators._types import Estimator
from quell.gaussian import Gaussian
from quell.objective import Objective, Variational


class Quadratic(NamedTuple):
    """ℓ̃, the quadratic that stands for the log-likelihood of one example.

    Attributes:
      centre: z, `[d]`.
      slope: v, `[d]`.
      hessian: H, `[d, d]`.
    """

    centre: Float[Array, " d"]
    slope: Float[Array, " d"]
    hessian: Float[Array, "d d"]

    def at(self, w: Float[Array, " d"]) -> Float[Array, ""]:
        """ℓ̃(w)."""
        delta = w - self.centre
        return ((self.slope + 0.5 * self.hessian @ delta) * delta).sum()

    def mean(self, family: Gaussian, params: PyTree[Array]) -> Float[Array, ""]:
        """E_q[ℓ̃(w)]."""
        trace = (self.hessian * family.covariance(params)).sum()
        return self.at(mean_of(family, params)) + 0.5 * trace


MakeQuadratic = Callable[[Variational, Float[Array, " d"], PyTree[Array]], Quadratic]


def second_order(
    structure: Variational, centre: Float[Array, " d"], example: PyTree[Array]
) -> Quadratic:
    """The Taylor expansion of the log-likelihood, by d Hessian–vector products."""
    slope = jax.grad(structure.log_likelihood)
    return Quadratic(centre, slope(centre, example), jax.jacfwd(slope)(centre, example))


@checked()
def quadratic_surrogate(
    inner: Estimator | None = None,
    *,
    quadratic: MakeQuadratic = second_order,
    pooling: Pooling | None = per_leaf,
    decay: float = 0.99,
) -> Estimator:
    """Subtract a times the gradient of ℓ̃(w) − E_q[ℓ̃] from any estimator.

    J. Paisley, D. M. Blei and M. I. Jordan, "Variational Bayesian inference with stochastic
    search", 2012, here for the reparameterised gradient. The coefficient a is a running average of
    Cov/Var, applied before it is learned; it starts at 1. Needs an objective with its variational
    structure.

    Args:
      inner: the estimator to subtract from; `monte_carlo()` by default.
      quadratic: `quadratic(structure, centre, example)`, a `Quadratic` about the mean of q:
        the second-order expansion, or a bound of your own.
      pooling: the parameters that share a coefficient. With None, every coefficient is 1, and
        `inner` learns from the rest.
      decay: forgetting of the running average, in (0, 1].
    """
    inner = inner_or_plain(inner)
    term_of = partial(_quadratic_term, quadratic)
    return without_term(f"quadratic_surrogate({inner.name})", inner, term_of, pooling, decay)


def _quadratic_term(quadratic: MakeQuadratic, objective: Objective) -> Term:
    """E_q[ℓ̃] − ℓ̃(w), of mean zero, expanded about the mean of q."""
    structure = structure_of(objective, "quadratic_surrogate")
    family = structure.family

    def term(params, eps, example):
        centre = jax.lax.stop_gradient(mean_of(family, params))
        # fixed: for a quadratic that moves with θ, autodiff would take third derivatives
        local = jax.lax.stop_gradient(quadratic(structure, centre, example))
        return local.mean(family, params) - local.at(family.sample(params, eps))

    return term


def mean_of(family: Gaussian, params: PyTree[Array]) -> Float[Array, " d"]:
    """m, the mean of q."""
    return family.sample(params, jnp.zeros(family.size))  # w is affine in ε
