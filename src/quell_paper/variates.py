"""Control variates by name, as transformations and estimators of the library."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key, PyTree

import quell
from quell.bases import linear, polynomial
from quell.coefficients import context_free, raw_targets, recognition_network, unit_scale
from quell.contexts import raw
from quell.types import Coefficients, Estimator, Started, Targets
from quell_cli.catalogue import Problem
from quell_paper.config import BATCH_SIZE, FULL, SUM, UNIT, Variate
from quell_paper.jobs import cached
from quell_paper.problems import PROBLEMS

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
    """The controlled estimator of a variate, or the other estimator that it names."""
    if variate.other:
        others = {
            "plain": quell.monte_carlo,
            "pairs": quell.antithetic,
            "closed-form": lambda: quell.closed_form(select=problem.select),
        }
        return others[variate.other]()
    return quell.controlled(_coefficients(problem, variate, rate), **_parts(variate))


def started(model: str, variate: Variate, rate: Rate = 1.0) -> Started:
    """The estimator of a variate after its look at the problem, of which only shapes matter."""
    # Other estimators know no rate, look at the data on the host, and compile functions of their
    # own: all loops and measurements share one. Elsewhere the rate may be a tracer.
    return _other_started(model, variate) if variate.other else _started(model, variate, rate)


@cached
def _other_started(model: str, variate: Variate) -> Started:
    return _started(model, variate, 1.0)


def _started(model: str, variate: Variate, rate: Rate) -> Started:
    problem, key = PROBLEMS[model](), jax.random.key(0)
    at = (problem.objective, problem.init(key), problem.data)
    return estimator(problem, variate, rate).start(key, *at)


def _coefficients(problem: Problem, variate: Variate, rate: Rate) -> Coefficients:
    """The paper's network: raw contexts, Xavier initialisation, no gate."""
    optimizer, targets = optax.adam(rate), _targets(variate.scale, problem.objective.num_data)
    if not variate.hidden:
        return context_free(optimizer, targets=targets)
    return recognition_network(
        variate.hidden,
        optimizer,
        context=raw(problem.select),
        last_layer=xavier_without_bias,
        targets=targets,
    )


def _targets(scale: str, num_data: int) -> Targets:
    """The gradients from which coefficients learn: raw, or brought to unit scale."""
    # The gradient carries N/|B| and features are means over the batch, so raw targets are divided:
    # N turns them into the mean of g_b, |B| leaves coefficients of the whole gradient.
    return {
        FULL: lambda: raw_targets(float(BATCH_SIZE)),
        SUM: lambda: raw_targets(float(num_data)),
        UNIT: lambda: unit_scale(per_leaf=True, gated=False),
    }[scale]()


def xavier_without_bias(key: Key[Array, ""], shape: tuple[int, int], dtype: Any) -> Array:
    """Xavier's weights for a layer whose last input is a constant one, with weight zero."""
    weights = jax.nn.initializers.glorot_uniform()(key, (shape[0] - 1, shape[1]), dtype)
    return jnp.pad(weights, ((0, 1), (0, 0)))


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
