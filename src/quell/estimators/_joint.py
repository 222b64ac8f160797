"""The joint control variate: draws and points at once, from a table of past parameters.

Each point n keeps θⁿ, the parameters at its last visit, where the gradient of the quadratic ℓ̃ₙ
about the mean of q(·; θⁿ) replaces the gradient of the point:

    G̃ = Ĝ(θ) + mean_b N ∇ℓ̃_b(w(θᵇ, ε_b)) − Σₙ ∇E_q[ℓ̃ₙ](θⁿ)
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from quell import _tree
from quell._arguments import checked
from quell._checks import check_data
from quell._tree import take
from quell.estimators._quadratic import MakeQuadratic, mean_of, second_order
from quell.estimators._terms import inner_or_plain, linear, minus, structure_of
from quell.estimators._types import Batch, Estimate, Estimator, Started, refresh_inside
from quell.objective import Objective


class Joint(NamedTuple):
    """State of `joint`.

    Attributes:
      table: θⁿ, the parameters at the last visit of each point, leaves `[N, ...]`.
      expected: ∇E_q[−ℓ̃ₙ](θⁿ), leaves `[N, ...]`.
      total: the sum of `expected` over n, a pytree like params.
      inner: the state of the inner estimator.
    """

    table: PyTree[Array]
    expected: PyTree[Array]
    total: PyTree[Array]
    inner: PyTree[Array]


@checked()
def joint(inner: Estimator | None = None, *, quadratic: MakeQuadratic = second_order) -> Estimator:
    """Apply any estimator to the objective minus a quadratic stand-in for each point's gradient.

    X. Wang, T. Geffner and J. Domke, "Joint control variate for faster black-box variational
    inference", 2024, for location and scale alike: the closed-form mean of the quadratic takes
    the whole Hessian, at d Hessian–vector products per example. The state keeps 2 N P numbers;
    points with equal rows share an entry. The estimate is unbiased whatever the table holds. Needs
    an objective with its variational structure.

    Args:
      inner: the estimator to use on the rest; `monte_carlo()` by default.
      quadratic: as in `quadratic_surrogate`.
    """
    inner = inner_or_plain(inner)

    def start(key, objective: Objective, params, data) -> Started:
        structure, N = structure_of(objective, "joint"), objective.num_data
        family = structure.family
        check_data(N, data)
        inside = inner.start(key, objective, params, data)
        entry = _first_equal(data)  # on the host, once
        shares = jnp.asarray(np.bincount(entry, minlength=N))  # number of points behind each entry

        def local(params, example):
            return quadratic(structure, mean_of(family, params), example)

        @partial(jax.vmap, in_axes=(None, 0))
        def expected_gradient(params, example):
            fixed = local(params, example)
            return jax.grad(lambda p: -fixed.mean(family, p))(params)

        def init(key, params):
            expected = expected_gradient(params, data)
            return Joint(
                table=jax.tree.map(lambda p: jnp.broadcast_to(p, (N, *p.shape)), params),
                expected=expected,
                total=jax.tree.map(lambda e: e.sum(0), expected),
                inner=inside.init(key, params),
            )

        def estimate(key, objective, params, batch: Batch, state: Joint) -> Estimate:
            rows = jnp.asarray(entry)[batch.indices]
            pasts = take(state.table, rows)

            def stand_in(params, eps, example):
                past = take(pasts, _position(batch.examples, example))
                at = local(past, example).at
                # linear in θ, so that its gradient is the one at the past parameters
                return jax.jvp(lambda p: -at(family.sample(p, eps)), (past,), (params,))[1]

            mean = partial(linear, state.total, origin=jax.tree.map(jnp.zeros_like, params))
            quieter = minus(objective, stand_in, mean)
            found = inside.estimate(key, quieter, params, batch, state.inner)
            expected = expected_gradient(params, batch.examples)  # renewed after use: unbiased
            finite = _tree.finite((found.gradient, expected))  # one NaN would stay in the total
            entries = _tree.where(finite, (params, expected), (pasts, take(state.expected, rows)))
            table, expected = entries
            return found._replace(state=_visit(state, rows, shares, table, expected, found.state))

        return Started(init, estimate, refresh_inside(inside), inside.guarded)

    return Estimator(f"joint({inner.name})", start)


def _first_equal(data: PyTree[Array]) -> Int[np.ndarray, " N"]:
    """For each row of the data the first row equal to it, on the host."""
    flat = [np.asarray(leaf).reshape(len(leaf), -1) for leaf in jax.tree.leaves(data)]
    kinds = [np.unique(leaf, axis=0, return_inverse=True)[1].reshape(-1) for leaf in flat]
    _, first, kind = np.unique(np.stack(kinds, 1), axis=0, return_index=True, return_inverse=True)
    return first[kind.reshape(-1)]


def _position(examples: PyTree[Array], example: PyTree[Array]) -> Int[Array, ""]:
    """The place of an example in its batch.

    A loss sees one example and not its index. Equal rows share an entry of the table, so the first
    row of the batch that equals the example leads to the right entry.
    """
    same = jax.tree.map(lambda ys, y: (ys == y).reshape(len(ys), -1).all(1), examples, example)
    return jnp.argmax(jnp.stack(jax.tree.leaves(same)).all(0))  # the first True


def _visit(state: Joint, rows: Int[Array, " B"], shares, params, expected, inner) -> Joint:
    """The state with the entries of the visited rows renewed; a row seen twice counts once."""
    times = jnp.zeros(len(shares)).at[rows].add(1.0)[rows]  # copies in this batch
    weights = shares[rows] / times  # an entry stands for all of its points

    def gained(total, old, new):
        return total + jnp.tensordot(weights.astype(new.dtype), new - old[rows], 1)

    return Joint(
        table=jax.tree.map(lambda t, p: t.at[rows].set(p), state.table, params),
        expected=jax.tree.map(lambda old, new: old.at[rows].set(new), state.expected, expected),
        total=jax.tree.map(gained, state.total, state.expected, expected),
        inner=inner,
    )
