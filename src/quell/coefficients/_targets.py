"""Targets at unit scale: the running mean taken out, each leaf divided by its own spread."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from quell._features import Evidence
from quell._leaves import leaf_means
from quell.criteria import Criterion

_OUTLIER = 10.0  # standard deviations; what is further out is brought there


class Targets(NamedTuple):
    """Running statistics of one example's gradient, with forgetting.

    Attributes:
      mean: running sum of the gradient, `[P]`.
      square: running sum of the squared deviation, averaged over each leaf, `[P]`.
      weight: the weight of both sums, so that sum / weight is the average, `[]`.
    """

    mean: Float[Array, " P"]
    square: Float[Array, " P"]
    weight: Float[Array, ""]


def init(outputs: int, dtype) -> Targets:
    """Nothing seen yet."""
    return Targets(
        mean=jnp.zeros(outputs, dtype),
        square=jnp.zeros(outputs, dtype),
        weight=jnp.zeros((), dtype),
    )


def scale(state: Targets) -> Float[Array, " P"]:
    """The spread of one example's gradient, leaf by leaf; zero until something was seen."""
    return jnp.sqrt(state.square / jnp.maximum(state.weight, 1))


def update(
    state: Targets, criterion: Criterion, evidence: Evidence, decay: float
) -> tuple[Targets, Evidence]:
    """Take the batch into the statistics, and bring its gradients to mean zero and unit scale.

    Ĝ averages |B| examples, so its squared deviation counts |B|-fold. A gradient far off, as where
    a variance passes close to zero, would inflate the scale, and with it the correction, for as
    long as it is remembered; so it counts as far as ten standard deviations.
    """
    if not criterion.per_example:
        evidence = evidence._replace(rows=None)
    evidence = _without_outliers(state, evidence)
    rows = evidence.rows
    total = evidence.total if rows is None else rows.mean(0)
    weight = decay * state.weight + 1
    mean = decay * state.mean + total
    centre = mean / weight
    if rows is None:
        deviation = evidence.w.shape[0] * (total - centre) ** 2
    else:
        deviation = ((rows - centre) ** 2).mean(0)
    square = decay * state.square + leaf_means(deviation, evidence.leaves)
    state = Targets(mean, square, weight)
    s = scale(state)
    inverse = jnp.where(s > 0, 1 / jnp.where(s > 0, s, 1), 0)
    return state, evidence._replace(
        total=(evidence.total - centre) * inverse,
        rows=None if rows is None else (rows - centre) * inverse,
    )


def _without_outliers(state: Targets, evidence: Evidence) -> Evidence:
    """Gradients within ten standard deviations of what was seen before."""
    centre = state.mean / jnp.maximum(state.weight, 1)
    s = scale(state)
    reach = jnp.where(s > 0, _OUTLIER * s, jnp.inf)

    def within(g, reach):
        return jnp.clip(g, centre - reach, centre + reach)

    if evidence.rows is None:
        return evidence._replace(total=within(evidence.total, reach / evidence.w.shape[0] ** 0.5))
    return evidence._replace(total=within(evidence.total, reach), rows=within(evidence.rows, reach))
