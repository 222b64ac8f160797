"""Control variates by name, made into the library's transformations and estimators."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

import quell
from quell.bases import linear, polynomial
from quell.coefficients import context_free, recognition_network
from quell.estimators import MakeEstimator, controlled, monte_carlo
from quell_paper.config import PLAIN, Variate
from quell_paper.problems import Problem

BASES = {"linear": linear, "quadratic": lambda: polynomial(2)}


def control(
    problem: Problem, variate: Variate, rate: float | Float[Array, ""]
) -> quell.ControlVariate:
    """The transformation of a variate, whose coefficients learn by Adam at a rate."""
    optimizer = optax.adam(rate)
    hidden = variate.hidden
    return quell.control_variate(
        BASES[variate.basis](),
        recognition_network(hidden, optimizer) if hidden else context_free(optimizer),
        getattr(quell.criteria, variate.criterion),
        noise=problem.objective.noise,
        context=jax.eval_shape(problem.context, problem.data),
        key=jax.random.key(0),  # a placeholder: `init` is given the seed's own
        order=getattr(quell, variate.order),
    )


def estimator(problem: Problem, variate: Variate, rate: float | Float[Array, ""]) -> MakeEstimator:
    """The controlled estimator of a variate; plain Monte Carlo for `PLAIN`."""
    if variate == PLAIN:
        return monte_carlo()
    return controlled(monte_carlo(), control(problem, variate, rate), context=problem.context)


def update(
    problem: Problem,
    transformation: quell.ControlVariate,
    gradient: PyTree[Array],
    state: PyTree[Array],
    params: PyTree[Array],
    noise: PyTree[Array],
    batch: PyTree[Array],
) -> tuple[PyTree[Array], PyTree[Array]]:
    """The corrected gradient of a batch, and the state after learning from the batch."""
    extra: dict[str, Any] = {}
    if transformation.criterion.per_example:
        extra["per_example"] = problem.objective.per_example_gradients(params, noise, batch)
    context = problem.context(batch)
    return transformation.update(gradient, state, params, noise=noise, context=context, **extra)


def correct(
    problem: Problem,
    variate: Variate,
    gradient: PyTree[Array],
    state: PyTree[Array],
    params: PyTree[Array],
    noise: PyTree[Array],
    batch: PyTree[Array],
) -> PyTree[Array]:
    """G̃ of a batch with the coefficients of an `unlearned` variate as they stand.

    The variate applies its coefficients before they learn, and the compiler drops the learning,
    because the new state is not used.
    """
    return update(problem, control(problem, variate, 1.0), gradient, state, params, noise, batch)[0]


def flat(tree: PyTree[Array]) -> Float[Array, " P"]:
    """All leaves as one vector."""
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)])
