"""Ensembles: the difference of two unbiased estimates has mean zero, so it is a control variate.

G̃ = G₀ − Σᵢ aᵢ cᵢ,  cᵢ = G₀ − Gᵢ,  a = (A + λD)⁻¹ (r + λD a₀),  A = mean of cc', r = mean of cG₀
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from quell._arguments import ESTIMATOR, checked
from quell._errors import invalid
from quell.estimators._pooling import Pooling, one_coefficient
from quell.estimators._terms import Change, Term, changed, given, minus
from quell.estimators._types import Estimate, Estimator, Refresh, Started, check_estimator
from quell.objective import Objective


class Weighted(NamedTuple):
    """State of an ensemble of k + 1 members.

    Attributes:
      members: the state of each member.
      mean: running sum of the first member's gradient, with forgetting; a pytree like params.
      gram: A, products of the variates with each other, `[G, k, k]` for each block of the pooling.
      cross: r, products of the variates with the centred gradient, `[G, k]` for each block.
      weight: the weight of these sums, `[]`.
    """

    members: tuple[PyTree[Array], ...]
    mean: PyTree[Array]
    gram: list[Float[Array, "G k k"]]
    cross: list[Float[Array, "G k"]]
    weight: Float[Array, ""]


@checked(others=ESTIMATOR)
def ensemble(
    base: Estimator,
    *others: Estimator,
    pooling: Pooling = one_coefficient,
    decay: float = 0.99,
    ridge: float = 1.0,
) -> Estimator:
    """Combine estimators of the same gradient by the regularised empirical optimum.

    T. Geffner and J. Domke, "Using large ensembles of control variates for variational inference",
    2018. All members are given the same key, so that members with the same sampling see the same
    draws. The weights come from the steps before, so the combination is unbiased if its members
    are; before there is evidence the combination is `base`.

    Args:
      base: the estimator that the others correct.
      others: at least one; each turns its difference from `base` into a variate.
      pooling: the parameters that share a weight: `one_coefficient`, `per_leaf` or `per_entry`.
      decay: forgetting of the running sums, in (0, 1].
      ridge: λ, the number of steps of evidence that the prior a₀ = 0 is worth. The paper's prior
        is the same for every variate; here each variate is first brought to unit size.
    """
    if not others:
        raise invalid(
            "others", expected="at least one", got="none", advice="Add an estimator to combine."
        )
    members = (base, *others)
    for member in members:
        check_estimator("base" if member is base else "others", member)
    name = f"ensemble({', '.join(member.name for member in members)})"

    def start_members(*problem):
        return [member.start(*problem) for member in members]

    return _weighted(name, start_members, pooling, 0.0, decay, ridge)


def without_term(
    name: str,
    inner: Estimator,
    term_of: Callable[[Objective], Term],
    pooling: Pooling | None,
    decay: float,
    *,
    change: Change = lambda original, objective: objective,
    prior: float = 1.0,
) -> Estimator:
    """The inner estimator minus a times its estimate of a term of mean zero.

    The coefficient a is a running average that starts at `prior`. Without a pooling a is 1, and
    `inner` learns from the rest.

    Args:
      term_of: `term_of(objective)`, the term.
      change: a change of the objective before the term is subtracted.
    """

    def reduced(original, objective):
        return minus(change(original, objective), term_of(objective))

    def start_members(key, objective, params, data):
        started = inner.start(key, objective, params, data)
        return [given(started, objective, change), given(started, objective, reduced)]

    if pooling is None:
        return changed(name, inner, reduced)  # a = 1 needs one estimate, not two
    # The variate is the difference of two estimates rather than an estimate of the term alone, so
    # that all corrections by `inner` cancel in it. The compiler shares the common part.
    return _weighted(name, start_members, pooling, prior, decay, ridge=1.0)


def _weighted(
    name: str,
    start_members: Callable[..., Sequence[Started]],
    pooling: Pooling,
    prior: float,
    decay: float,
    ridge: float,
) -> Estimator:
    """The estimator G₀ − Σᵢ aᵢ cᵢ with cᵢ = G₀ − Gᵢ, whose coefficients start at `prior`."""

    def start(key, objective, params, data) -> Started:
        members = start_members(key, objective, params, data)

        def init(key, params):
            k = len(members) - 1
            repeated = [jnp.broadcast_to(p, (k, *p.shape)) for p in jax.tree.leaves(params)]
            blocks = pooling.split(repeated)
            return Weighted(
                members=tuple(member.init(key, params) for member in members),
                mean=jax.tree.map(jnp.zeros_like, params),
                gram=[jnp.zeros((len(b), k, k), b.dtype) for b in blocks],
                cross=[jnp.zeros((len(b), k), b.dtype) for b in blocks],
                weight=jnp.zeros(()),
            )

        def estimate(key, objective, params, batch, state: Weighted) -> Estimate:
            found = [  # one key for all members: the noise they share cancels in the differences
                member.estimate(key, objective, params, batch, inside)
                for member, inside in zip(members, state.members)
            ]
            base = found[0]
            variates = jax.tree.map(_differences, *(each.gradient for each in found))
            blocks = pooling.split(jax.tree.leaves(variates))
            taken = [  # coefficients from past steps: this draw in them would bias the estimate
                (_coefficients(A, r, state.weight, prior, ridge)[..., None] * c).sum(1)
                for A, r, c in zip(state.gram, state.cross, blocks)
            ]
            leaves, treedef = jax.tree.flatten(base.gradient)
            correction = treedef.unflatten(pooling.join(taken, leaves))
            quieter = jax.tree.map(jnp.subtract, base.gradient, correction)
            states = tuple(each.state for each in found)
            learned = _learn(state, states, base.gradient, blocks, pooling, decay)
            return Estimate(quieter, base.value, learned, optax.tree.norm(correction))

        return Started(init, estimate, _refresh_members(members))

    return Estimator(name, start)


def _refresh_members(members: Sequence[Started]) -> Refresh | None:
    """The refresh of all members at once, if any of them is due."""
    works = [member.refresh for member in members]
    if not any(works):
        return None

    def due(state: Weighted, batch_size):
        wanted = [w.due(s, batch_size) for w, s in zip(works, state.members) if w]
        return jnp.stack(wanted).any()

    def run(key, objective, params, data, batch_size, state: Weighted):
        refreshed = tuple(  # one key for all, as in a step
            w.run(key, objective, params, data, batch_size, s) if w else s
            for w, s in zip(works, state.members)
        )
        return state._replace(members=refreshed)

    return Refresh(due, run)


def _differences(g: Array, *others: Array) -> Float[Array, "k ..."]:
    """The variates c = G₀ − Gᵢ; rounding errors become zero, since their coefficient is huge."""
    c = g - jnp.stack(others)  # equal members may still differ: sums in another order
    rounding = jnp.finfo(g.dtype).eps ** (2 / 3) * jnp.abs(g).max(initial=0)
    return jnp.where(jnp.abs(c) <= rounding, 0, c)


def _coefficients(A, r, weight, prior, ridge) -> Float[Array, "G k"]:
    """The weights a = a₀ + (A + λD)⁻¹ (r − A a₀), with D the diagonal of A per step."""
    size = jnp.diagonal(A, axis1=-2, axis2=-1)
    pull = ridge * jnp.where(size > 0, size, 1) / jnp.maximum(weight, 1)  # 1 avoids 0 / 0
    excess = r - prior * A.sum(-1)
    if A.shape[-1] == 1:  # `per_entry` has a system for each parameter: divide instead of solve
        return prior + excess / (size + pull)
    damped = A + pull[..., None] * jnp.eye(A.shape[-1], dtype=A.dtype)
    return prior + jnp.linalg.solve(damped, excess[..., None])[..., 0]


def _learn(state: Weighted, members, gradient, blocks, pooling: Pooling, decay: float) -> Weighted:
    """The running sums with this step added, unless the step is not finite."""
    finite = jnp.isfinite(optax.tree.norm((gradient, blocks)))  # one NaN would stay in the sums
    past = jnp.maximum(state.weight, 1)  # the first step is centred at zero
    centred = jax.tree.map(lambda g, mean: (g - mean / past)[None], gradient, state.mean)
    targets = pooling.split(jax.tree.leaves(centred))

    def add(total, new):
        return jnp.where(finite, decay * total + new, total)

    return Weighted(
        members=members,
        mean=jax.tree.map(add, state.mean, gradient),
        gram=[add(A, c @ jnp.swapaxes(c, 1, 2)) for A, c in zip(state.gram, blocks)],
        cross=[add(r, (c * g).sum(-1)) for r, c, g in zip(state.cross, blocks, targets)],
        weight=add(state.weight, 1.0),
    )
