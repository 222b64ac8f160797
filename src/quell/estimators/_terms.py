"""Surgery on objectives: what an estimator subtracts is the gradient of a term of the loss.

A term is `term(params, noise, example)` whose gradient in the parameters has mean zero, over the
draws or over draws and points. Taken off the loss, it makes another objective with the same mean
gradient, and every estimator works on that one too: this is how estimators compose.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from quell._errors import invalid
from quell._objective import Objective

if TYPE_CHECKING:
    from quell._variational import Variational

Term = Callable[[PyTree[Array], PyTree[Array], PyTree[Array]], Float[Array, ""]]


def minus(
    objective: Objective,
    term: Term,
    regulariser: Callable[[PyTree[Array]], Float[Array, ""]] | None = None,
) -> Objective:
    """The objective with a term taken off every loss, and a noise-free one added."""

    def both(params):
        parts = [part for part in (objective.regulariser, regulariser) if part is not None]
        return jnp.asarray(sum(part(params) for part in parts))

    noise_free = objective.regulariser is not None or regulariser is not None
    return Objective(
        loss=lambda params, eps, y: objective.loss(params, eps, y) - term(params, eps, y),
        noise=objective.noise,
        num_data=objective.num_data,
        regulariser=both if noise_free else None,
        variational=objective.variational,
    )


def only(objective: Objective, term: Term) -> Objective:
    """An objective that is the term and nothing else: its estimates are the variate."""
    return Objective(term, objective.noise, objective.num_data, None, objective.variational)


def linear(slope: PyTree[Array], params: PyTree[Array], origin: PyTree[Array]) -> Float[Array, ""]:
    """⟨slope, θ − origin⟩, whose gradient is the slope."""
    parts = jax.tree.map(lambda s, p, o: (s * (p - o)).sum(), slope, params, origin)
    return jnp.asarray(sum(jax.tree.leaves(parts)))


def structure_of(objective: Objective, estimator: str) -> "Variational":
    """The variational structure of an objective; refuses one that has none."""
    if objective.variational is None:
        raise invalid(
            "objective",
            expected=f"an objective that carries its variational structure: {estimator} looks at "
            "the density of q or at the likelihood",
            got="one without",
            advice="Make it with quell.closed_form_kl or quell.sampled_entropy.",
        )
    return objective.variational
