"""Control variates by name, as transformations and estimators of the library."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key, PyTree

import quell
from quell.bases import linear, polynomial
from quell.coefficients import context_free, recognition_network, unit_scale
from quell.commands.catalogue import Problem
from quell.contexts import raw
from quell.types import Coefficients, Estimator, Started
from quell_paper.config import PLAIN, Variate

BASES = {"linear": linear, "quadratic": lambda: polynomial(2)}
Rate = float | Float[Array, ""]


def control(
    problem: Problem,
    variate: Variate,
    rate: Rate,
    params: PyTree[Array],
    key: Key[Array, ""] | None = None,
) -> optax.GradientTransformationExtraArgs:
    """The transformation of a variate, whose coefficients learn by Adam at a rate.

    The key draws the first coefficients; only `init` needs it.
    """
    return quell.control_variate(
        jax.random.key(0) if key is None else key,
        problem.objective,
        params,
        problem.data,
        _coefficients(problem, variate, rate),
        **_parts(variate),
    )


def estimator(problem: Problem, variate: Variate, rate: Rate) -> Estimator:
    """The controlled estimator of a variate; plain Monte Carlo for `PLAIN`."""
    if variate == PLAIN:
        return quell.monte_carlo()
    return quell.controlled(_coefficients(problem, variate, rate), **_parts(variate))


def started(problem: Problem, variate: Variate, rate: Rate) -> Started:
    """The estimator of a variate after its look at the problem, of which only shapes matter."""
    key = jax.random.key(0)
    at = (problem.objective, problem.init(key), problem.data)
    return estimator(problem, variate, rate).start(key, *at)


def _coefficients(problem: Problem, variate: Variate, rate: Rate) -> Coefficients:
    """The paper's network: raw contexts, Xavier initialisation throughout, no gate."""
    optimizer, targets = optax.adam(rate), unit_scale(per_leaf=True, gated=False)
    if not variate.hidden:
        return context_free(optimizer, targets=targets)
    return recognition_network(
        variate.hidden,
        optimizer,
        context=raw(problem.select),
        last_layer=jax.nn.initializers.glorot_uniform(),
        targets=targets,
    )


def _parts(variate: Variate) -> dict[str, Any]:
    return {
        "basis": BASES[variate.basis](),
        "criterion": getattr(quell.criteria, variate.criterion),
        "order": getattr(quell, variate.order),
    }


def update(
    problem: Problem,
    variate: Variate,
    rate: Rate,
    gradient: PyTree[Array],
    state: PyTree[Array],
    params: PyTree[Array],
    noise: PyTree[Array],
    batch: PyTree[Array],
) -> tuple[PyTree[Array], PyTree[Array]]:
    """The corrected gradient of a batch, and the state after learning from the batch."""
    per_example = None
    if getattr(quell.criteria, variate.criterion).per_example:
        per_example = problem.objective.per_example_gradients(params, noise, batch)
    return control(problem, variate, rate, params).update(
        gradient, state, params, noise=noise, batch=batch, per_example=per_example
    )


def correct(
    problem: Problem,
    variate: Variate,
    gradient: PyTree[Array],
    state: PyTree[Array],
    params: PyTree[Array],
    noise: PyTree[Array],
    batch: PyTree[Array],
) -> PyTree[Array]:
    """Correct the gradient of a batch by the present coefficients of an `unlearned` variate.

    The variate applies its coefficients before they learn, and the compiler drops the learning,
    because the new state is not used.
    """
    return update(problem, variate, 1.0, gradient, state, params, noise, batch)[0]


def flat(tree: PyTree[Array]) -> Float[Array, " P"]:
    """All leaves as one vector."""
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)])
