"""The joint control variate: draws and points at once, from a table of past parameters.

Each point n keeps θⁿ, the parameters at its last visit, and stands there for its gradient by that
of the quadratic ℓ̃ₙ about the mean of q(·; θⁿ):

    G̃ = Ĝ(θ) + mean_b N ∇ℓ̃_b(w(θᵇ, ε_b)) − Σₙ ∇E_q[ℓ̃ₙ](θⁿ)
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from quell._errors import invalid
from quell._objective import Objective, batch_size
from quell.estimators._quadratic import MakeQuadratic, mean_of, second_order
from quell.estimators._sampling import monte_carlo
from quell.estimators._terms import linear, minus, structure_of
from quell.estimators._types import Estimator, MakeEstimator


class Joint(NamedTuple):
    """State of `joint`.

    Attributes:
      table: θⁿ, the parameters at the last visit of each point, leaves `[N, ...]`.
      expected: ∇E_q[−ℓ̃ₙ](θⁿ), leaves `[N, ...]`.
      total: their sum over n, a pytree like params.
      inner: the state of the inner estimator.
    """

    table: PyTree[Array]
    expected: PyTree[Array]
    total: PyTree[Array]
    inner: PyTree[Array]


def index_of(example: PyTree[Array]) -> Int[Array, ""]:
    """Which point an example is, from the leaf `index` of the data."""
    if not isinstance(example, dict) or "index" not in example:
        raise invalid(
            "batch",
            expected="a dict with a leaf 'index' that numbers the points",
            got=jax.tree.structure(example),
            advice="Add index=jnp.arange(N) to the data, or pass index= to say where it is.",
        )
    return example["index"]


def joint(
    inner: MakeEstimator | None = None,
    *,
    quadratic: MakeQuadratic = second_order,
    index: Callable[[PyTree[Array]], Int[Array, ""]] = index_of,
) -> MakeEstimator:
    """Any estimator, of the objective less a quadratic stand-in for each point's gradient.

    X. Wang, T. Geffner and J. Domke, "Joint control variate for faster black-box variational
    inference", 2024, for location and scale alike: the closed-form mean of the quadratic takes
    the whole Hessian, at d Hessian–vector products per example. Keeps 2 N P numbers. Unbiased,
    whatever the table holds. Needs an objective with its variational structure, and `init` must
    be given all of the data.

    Args:
      inner: the estimator to use on what is left; `monte_carlo()` by default.
      quadratic: as in `surrogate`.
      index: `index(example)`, the number of the point, 0 … N − 1.
    """
    inner = monte_carlo() if inner is None else inner

    def make(objective: Objective) -> Estimator:
        structure = structure_of(objective, "joint")
        family, N = structure.family, objective.num_data
        inside = inner(objective)

        def local(params, example):
            return quadratic(structure, mean_of(family, params), example)

        @partial(jax.vmap, in_axes=(None, 0))
        def expected_gradient(params, example):
            fixed = local(params, example)
            return jax.grad(lambda p: -fixed.mean(family, p))(params)

        def init(key, params, batch):
            if batch_size(batch) != N:
                raise invalid(
                    "batch",
                    expected=f"all {N} points: the table has a row for each",
                    got=batch_size(batch),
                    advice="Initialise with the whole data set, as fit does.",
                )
            rows = jax.vmap(index)(batch)
            expected = jax.tree.map(
                lambda e: jnp.zeros_like(e).at[rows].set(e), expected_gradient(params, batch)
            )
            return Joint(
                table=jax.tree.map(lambda p: jnp.broadcast_to(p, (N, *p.shape)), params),
                expected=expected,
                total=jax.tree.map(lambda e: e.sum(0), expected),
                inner=inside.init(key, params, batch),
            )

        def estimate(key, params, batch, state):
            def stand_in(params, eps, example):
                past = jax.tree.map(lambda t: t[index(example)], state.table)
                fixed = local(past, example)

                def value(p):
                    return -fixed.at(family.sample(p, eps))

                return jax.jvp(value, (past,), (params,))[1]

            zeros = jax.tree.map(jnp.zeros_like, params)
            mean = partial(linear, state.total, origin=zeros)
            quieter = inner(minus(objective, stand_in, mean))
            gradient, value, inner_state = quieter.estimate(key, params, batch, state.inner)
            rows = jax.vmap(index)(batch)
            visited = _visit(state, rows, params, expected_gradient(params, batch), inner_state)
            return gradient, value, visited

        return Estimator(init, estimate)

    return make


def _visit(state: Joint, rows: Int[Array, " B"], params, expected, inner) -> Joint:
    """Put the visited points' new entries in the tables; a point seen twice counts once."""
    N = jax.tree.leaves(state.table)[0].shape[0]
    times = jnp.zeros(N).at[rows].add(1.0)[rows]

    def gained(total, old, new):
        share = times.reshape(-1, *(1,) * (new.ndim - 1))
        return total + ((new - old[rows]) / share).sum(0)

    return Joint(
        table=jax.tree.map(lambda t, p: t.at[rows].set(p), state.table, params),
        expected=jax.tree.map(lambda old, new: old.at[rows].set(new), state.expected, expected),
        total=jax.tree.map(gained, state.total, state.expected, expected),
        inner=inner,
    )
