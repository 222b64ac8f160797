"""Ensembles: the difference of two unbiased estimates has mean zero, so it is a variate.

G̃ = G₀ − Σᵢ aᵢ cᵢ,  cᵢ = G₀ − Gᵢ,  a = (A + λD)⁻¹ (r + λD a₀),  A = mean of cc', r = mean of cG₀
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from quell._errors import invalid
from quell._objective import Objective
from quell.estimators._pooling import Pooling, together
from quell.estimators._types import Estimator, MakeEstimator


class Weighted(NamedTuple):
    """State of an ensemble of k + 1 members.

    Attributes:
      members: the state of each.
      mean: of the first member's gradient, a sum with forgetting; a pytree like params.
      gram: A, of the variates with each other, one `[G, k, k]` for each block of the pooling.
      cross: r, of the variates with the centred gradient, one `[G, k]` for each block.
      weight: of the sums, `[]`.
      correction_norm: ‖G₀ − G̃‖ at the last step, `[]`.
    """

    members: tuple[PyTree[Array], ...]
    mean: PyTree[Array]
    gram: list[Float[Array, "G k k"]]
    cross: list[Float[Array, "G k"]]
    weight: Float[Array, ""]
    correction_norm: Float[Array, ""]


def ensemble(
    base: MakeEstimator,
    *others: MakeEstimator,
    pooling: Pooling = together,
    decay: float = 0.99,
    ridge: float = 1.0,
) -> MakeEstimator:
    """Any estimators of one gradient, combined by the regularised empirical optimum.

    T. Geffner and J. Domke, "Using large ensembles of control variates for variational inference",
    2018. All members are given the same key, so that those with the same sampling see the same
    draws. The weights come from the steps before, so the combination is unbiased when its members
    are; before there is evidence it is `base`.

    Args:
      base: the estimator that the others correct.
      others: at least one; each turns its difference from `base` into a variate.
      pooling: over which parameters a weight is shared: `together`, `per_leaf` or `per_entry`.
      decay: forgetting of the running sums, in (0, 1].
      ridge: λ, how many steps of evidence the prior a₀ = 0 is worth. The paper's prior is the same
        for every variate; here each is first brought to unit size.
    """
    if not others:
        raise invalid(
            "others", expected="at least one", got="none", advice="Add an estimator to combine."
        )
    return weighted(base, others, jnp.subtract, pooling, 0.0, decay, ridge)


def adaptive(
    base: MakeEstimator, variate: MakeEstimator, pooling: Pooling, start: float, decay: float
) -> MakeEstimator:
    """Subtract one variate, itself an estimator of zero, times a running-average coefficient."""
    return weighted(base, (variate,), lambda _, c: c, pooling, start, decay, ridge=1.0)


def weighted(
    base: MakeEstimator,
    others: tuple[MakeEstimator, ...],
    as_variate: Callable[[Array, Array], Array],
    pooling: Pooling,
    start: float,
    decay: float,
    ridge: float,
) -> MakeEstimator:
    """G₀ − Σᵢ aᵢ cᵢ with cᵢ = as_variate(G₀, Gᵢ); the coefficients start at `start`."""
    if not 0 < decay <= 1:
        raise invalid("decay", expected="a number in (0, 1]", got=decay, advice="Try 0.99.")
    if not ridge > 0:
        raise invalid("ridge", expected="a positive number", got=ridge, advice="Try 1.")

    def make(objective: Objective) -> Estimator:
        members = [make_member(objective) for make_member in (base, *others)]

        def init(key, params, batch):
            keys = jax.random.split(key, len(members))
            k = len(others)
            repeated = [jnp.broadcast_to(p, (k, *p.shape)) for p in jax.tree.leaves(params)]
            blocks = pooling.split(repeated)
            return Weighted(
                members=tuple(m.init(key, params, batch) for m, key in zip(members, keys)),
                mean=jax.tree.map(jnp.zeros_like, params),
                gram=[jnp.zeros((len(b), k, k), b.dtype) for b in blocks],
                cross=[jnp.zeros((len(b), k), b.dtype) for b in blocks],
                weight=jnp.zeros(()),
                correction_norm=jnp.zeros(()),
            )

        def estimate(key, params, batch, state):
            gradients, values, states = zip(
                *(m.estimate(key, params, batch, s) for m, s in zip(members, state.members))
            )
            leaves, treedef = jax.tree.flatten(gradients[0])
            flat = [jax.tree.leaves(gradient) for gradient in gradients[1:]]
            variates = [
                jnp.stack([as_variate(g, o) for o in rest]) for g, rest in zip(leaves, zip(*flat))
            ]
            blocks = pooling.split(variates)
            taken = [
                (_coefficients(A, r, state.weight, start, ridge)[..., None] * c).sum(1)
                for A, r, c in zip(state.gram, state.cross, blocks)
            ]
            correction = treedef.unflatten(pooling.join(taken, leaves))
            quieter = jax.tree.map(jnp.subtract, gradients[0], correction)
            state = _learn(state, gradients[0], blocks, pooling, decay)
            norm = optax.tree.norm(correction)
            return quieter, values[0], state._replace(members=states, correction_norm=norm)

        return Estimator(init, estimate)

    return make


def _coefficients(A, r, weight, start, ridge) -> Float[Array, "G k"]:
    """a = a₀ + (A + λD)⁻¹ (r − A a₀), D the diagonal of A per step; a₀ without evidence."""
    size = jnp.diagonal(A, axis1=-2, axis2=-1)
    pull = ridge * jnp.where(size > 0, size, 1) / jnp.maximum(weight, 1)
    excess = r - start * A.sum(-1)
    if A.shape[-1] == 1:
        return start + excess / (size + pull)
    damped = A + pull[..., None] * jnp.eye(A.shape[-1], dtype=A.dtype)
    return start + jnp.linalg.solve(damped, excess[..., None])[..., 0]


def _learn(state: Weighted, gradient, blocks, pooling: Pooling, decay: float) -> Weighted:
    """Add this step to the running sums, unless it is not finite."""
    finite = jnp.isfinite(optax.tree.norm((gradient, blocks)))
    past = jnp.maximum(state.weight, 1)
    centred = jax.tree.map(lambda g, mean: (g - mean / past)[None], gradient, state.mean)
    targets = pooling.split(jax.tree.leaves(centred))

    def add(total, new):
        return jnp.where(finite, decay * total + new, total)

    return Weighted(
        members=state.members,
        mean=jax.tree.map(add, state.mean, gradient),
        gram=[add(A, c @ jnp.swapaxes(c, 1, 2)) for A, c in zip(state.gram, blocks)],
        cross=[add(r, (c * g).sum(-1)) for r, c, g in zip(state.cross, blocks, targets)],
        weight=add(state.weight, 1.0),
        correction_norm=state.correction_norm,
    )
