"""The metric in which noise is measured: of q itself, or of the optimiser.

ν = ½ tr(H⁻¹Σ). For Gaussian families H is the Fisher information of q, and ν is in nats. For other
parameters H⁻¹ is the response of the optimiser to a small gradient: what it multiplies with.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Float, PyTree

from quell import _tree
from quell._jit import quick_jit
from quell.diagnostics.statistics import Interval, mean_interval
from quell.gaussian import Block, Gaussian, full_covariance, gaussian_blocks, mean_field, whitened
from quell.objective import Objective

_ECHO = 64  # steps for which the response of an optimiser with momentum is added up


class Metric(NamedTuple):
    """A way to measure gradients.

    Attributes:
      name: the metric in words.
      nats: whether the unit is the nat, since H is the Fisher information of q.
      whiten: `whiten(params, gradient)` gives H^(-½)g, a tree like params; linear in g.
    """

    name: str
    nats: bool
    whiten: Callable[[PyTree[Array], PyTree[Array]], PyTree[Array]]


def fisher_metric(objective: Objective, params: PyTree[Array]) -> Metric | None:
    """The Fisher information of q, if all params are those of Gaussian families; else None."""
    blocks = _all_blocks(objective, params)
    if blocks is None:
        return None
    return Metric("Fisher information of q", True, lambda at, g: whitened(blocks, at, g))


def _all_blocks(objective: Objective, params: PyTree[Array]) -> list[Block] | None:
    try:
        blocks = gaussian_blocks(params, family_of(objective))
    except ValueError:  # shapes of other families, or of several readings
        return None
    inside = {i for block in blocks for i in (block.mean, block.scale)}
    return blocks if len(inside) == len(jax.tree.leaves(params)) else None


def family_of(objective: Objective) -> Callable[[int], Gaussian] | None:
    """The factory of the family of a variational objective: shapes alone may leave it open."""
    if objective.variational is None:
        return None
    unit = objective.variational.family.init()  # of standard deviations 1, whose logs are 0
    return full_covariance if unit["scale"].any() else mean_field


def optimizer_metric(
    optimizer: optax.GradientTransformation, state: PyTree[Array], params: PyTree[Array]
) -> Metric:
    """The metric of an optimiser that is frozen in a state: P, so that its steps are −Pg.

    P is found from outside: the change of all updates to come, per entry of one small gradient that
    is followed by zeros. For Adam this is the rate over the root of its second moments. It is exact
    for optimisers that treat entries alone, around a mean gradient that is small beside the noise.
    """
    step = optax.with_extra_args_support(optimizer).update
    zeros = jax.tree.map(jnp.zeros_like, params)
    value = jnp.zeros(())

    @quick_jit
    def response(state):
        def total(first):
            def one(carried, i):
                moved, state = carried
                g = jax.tree.map(lambda f: jnp.where(i == 0, f, 0), first)
                updates, state = step(g, state, params, value=value)
                return (jax.tree.map(jnp.add, moved, updates), state), None

            return lax.scan(one, (zeros, state), jnp.arange(_ECHO))[0][0]

        return jax.jvp(total, (zeros,), (jax.tree.map(jnp.ones_like, params),))[1]

    root = jax.tree.map(
        # entries that never saw a gradient have no scale, and no noise
        lambda r: jnp.sqrt(jnp.where(jnp.isfinite(r), jnp.maximum(-r, 0), 0)),
        response(_tree.strongly_typed(state)),
    )
    whiten = lambda at, g: jax.tree.map(jnp.multiply, root, g)  # noqa: E731
    return Metric("response of the optimiser", False, whiten)


def signal(metric: Metric, params: PyTree[Array], groups: Float[np.ndarray, "R P"]) -> Interval:
    """½ gᵀH⁻¹g without bias, from R independent estimates of the gradient g.

    The mean over all pairs of different estimates, with the interval of the jackknife.
    """
    flat = _tree.flattener(None, params)
    dtype = jax.eval_shape(flat.flatten, params).dtype

    @quick_jit
    def whiten(params, g):
        return flat.flatten(metric.whiten(params, flat.replace(params, g)))

    w = np.stack([np.asarray(whiten(params, jnp.asarray(g, dtype)), float) for g in groups])
    R, cross = len(w), w @ w.T
    np.fill_diagonal(cross, 0)  # pairs of different estimates alone

    def half_of_mean(left: np.ndarray) -> float:
        count = int(left.sum())
        return 0.5 * float(left @ cross @ left) / (count * (count - 1))

    whole = half_of_mean(np.ones(R))
    pseudo = [R * whole - (R - 1) * half_of_mean(1.0 - one) for one in np.eye(R)]
    spread = mean_interval(np.array(pseudo))
    half = spread.high - spread.value
    return Interval(whole, whole - half, whole + half)
