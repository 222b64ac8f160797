"""Changes of objectives: a wrapper subtracts the gradient of a term of the loss.

A term is `term(params, noise, example)` whose gradient in the parameters has mean zero, over the
draws or over draws and points. The loss minus the term makes another objective with the same mean
gradient, and every estimator works on that objective too: this is how estimators compose.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from quell._errors import invalid
from quell.estimators._sampling import monte_carlo
from quell.estimators._types import Estimator, Started, check_estimator
from quell.objective import Objective, Variational

Term = Callable[[PyTree[Array], PyTree[Array], PyTree[Array]], Float[Array, ""]]

Change = Callable[[Objective, Objective], Objective]
"""`change(original, objective)`: the original is the objective that the estimator was started with,
`objective` the objective of one step, which an outer estimator may have changed."""


def minus(
    objective: Objective,
    term: Term,
    regulariser: Callable[[PyTree[Array]], Float[Array, ""]] | None = None,
) -> Objective:
    """The objective with a term subtracted from every loss, and a noise-free part added."""

    parts = [part for part in (objective.regulariser, regulariser) if part is not None]

    def both(params):
        return jnp.asarray(sum(part(params) for part in parts))

    return Objective(
        loss=lambda params, eps, y: objective.loss(params, eps, y) - term(params, eps, y),
        noise=objective.noise,
        num_data=objective.num_data,
        regulariser=both if parts else None,
        variational=objective.variational,
    )


def linear(slope: PyTree[Array], params: PyTree[Array], origin: PyTree[Array]) -> Float[Array, ""]:
    """⟨slope, θ − origin⟩, whose gradient is the slope."""
    parts = jax.tree.map(lambda s, p, o: (s * (p - o)).sum(), slope, params, origin)
    return jnp.asarray(sum(jax.tree.leaves(parts)))


def inner_or_plain(inner: Estimator | None) -> Estimator:
    """The inner estimator of a wrapper, checked; `monte_carlo()` if there is none."""
    inner = monte_carlo() if inner is None else inner
    check_estimator("inner", inner)
    return inner


def changed(name: str, inner: Estimator, change: Change) -> Estimator:
    """The inner estimator, given a changed objective at every step."""

    def start(key, objective, params, data):
        return given(inner.start(key, objective, params, data), objective, change)

    return Estimator(name, start)


def given(started: Started, original: Objective, change: Change) -> Started:
    """A started estimator that is given a changed objective at every step."""
    change(original, original)  # refuses an unsuitable objective now rather than while tracing

    def estimate(key, objective, params, batch, state):
        return started.estimate(key, change(original, objective), params, batch, state)

    work = started.refresh
    if work is None:
        return Started(started.init, estimate)

    def run(key, objective, *rest):
        return work.run(key, change(original, objective), *rest)

    return Started(started.init, estimate, work._replace(run=run))


def structure_of(objective: Objective, estimator: str) -> Variational:
    """The variational structure of an objective; refuses an objective that has none."""
    if objective.variational is None:
        raise invalid(
            "objective",
            expected=f"an objective that carries its variational structure: {estimator} looks at "
            "the density of q or at the likelihood",
            got="an objective without it",
            advice="Make it with quell.negative_elbo.",
        )
    return objective.variational
