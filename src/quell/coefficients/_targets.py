"""Targets: the gradients as coefficients learn them, and a gate on the correction.

With `unit_scale` the running mean of the gradient is taken out and every entry is divided by its
spread, so that one learning rate serves gradients of any size. The correction is multiplied by a
gate: the multiplier in [0, 1] that would have served best on the batches so far, each of them
predicted before it was learned from. Without evidence the gate is closed.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from quell._arguments import checked
from quell._tree import leaf_means
from quell.coefficients._types import Sizes
from quell.criteria import Criterion, Evidence, best_multiplier

_OUTLIER = 10.0  # standard deviations at which gradients are clipped


class Targets(NamedTuple):
    """A way to bring gradients to the scale at which coefficients are learned.

    Attributes:
      init: `init(sizes)` gives the state.
      scale: `scale(state)`, the factor that turns a prediction Θᵀφ into a correction, `[P]`.
      update: `update(state, criterion, evidence, prediction)` gives the next state and the
        evidence at the scale to learn from. The prediction Θᵀφ̄ `[P]` was made before learning.
    """

    init: Callable[[Sizes], PyTree[Array]]
    scale: Callable[[PyTree[Array]], Float[Array, "..."]]
    update: Callable[
        [PyTree[Array], Criterion, Evidence, Float[Array, " P"]], tuple[PyTree[Array], Evidence]
    ]


class Statistics(NamedTuple):
    """Running sums of the gradient of one example, with forgetting.

    Attributes:
      mean: sum of the gradient, `[P]`.
      square: sum of its squared deviation, `[P]`.
      weight: the weight of both sums, so that sum / weight is the average, `[]`.
      gt: sum of the product of gradient and ungated correction, averaged over each leaf, `[P]`.
      tt: sum of the squared correction, averaged likewise, `[P]`.
      gg: sum of the squared gradient, averaged likewise, `[P]`.
    """

    mean: Float[Array, " P"]
    square: Float[Array, " P"]
    weight: Float[Array, ""]
    gt: Float[Array, " P"]
    tt: Float[Array, " P"]
    gg: Float[Array, " P"]


@checked()
def unit_scale(*, decay: float = 0.99, per_leaf: bool = False, gated: bool = True) -> Targets:
    """Bring gradients to mean zero and unit spread, with a gate on the correction.

    An outlier, as when a variance passes close to zero, would inflate the spread and the correction
    for as long as it is remembered, so gradients are clipped to ten standard deviations.

    Args:
      decay: forgetting of the running sums, in (0, 1].
      per_leaf: one spread for all entries of a leaf instead of one for each entry.
      gated: whether the correction is multiplied by its gate, one for each leaf.
    """

    def init(sizes: Sizes):
        each = jnp.zeros(sizes.outputs, sizes.dtype)
        return Statistics(each, each, jnp.zeros((), sizes.dtype), each, each, each)

    def deviation(state: Statistics):
        return jnp.sqrt(state.square / jnp.maximum(state.weight, 1))

    def scale(state: Statistics):
        s = deviation(state)
        return s * best_multiplier(state.gt, state.tt, state.gg, state.weight) if gated else s

    def update(state: Statistics, criterion, evidence, prediction):
        correction = prediction * deviation(state)  # ungated: the gate must be able to reopen
        if not criterion.per_example:
            evidence = evidence._replace(per_example=None)  # the criterion will not look at them
        evidence = _without_outliers(state, deviation(state), evidence)
        examples, B = evidence.per_example, evidence.w.shape[0]
        total = evidence.total if examples is None else examples.mean(0)  # without the regulariser
        weight = decay * state.weight + 1  # sum / weight has no bias towards its start at zero
        mean = decay * state.mean + total
        centre = mean / weight
        if examples is None:  # Ĝ averages |B| examples, so its squared deviation counts |B|-fold
            squares = B * (total - centre) ** 2
        else:
            squares = ((examples - centre) ** 2).mean(0)
        if per_leaf:
            squares = leaf_means(squares, evidence.leaves)
        # The gate is judged like the coefficients: by a mean from before this batch.
        centred = evidence.total - state.mean / jnp.maximum(state.weight, 1)

        def by_leaf(old, new):
            return decay * old + leaf_means(new, evidence.leaves)

        state = Statistics(
            mean=mean,
            square=decay * state.square + squares,
            weight=weight,
            gt=by_leaf(state.gt, centred * correction),
            tt=by_leaf(state.tt, correction**2),
            gg=by_leaf(state.gg, centred**2),
        )
        s = deviation(state)
        inverse = jnp.where(s > 0, 1 / jnp.where(s > 0, s, 1), 0)  # a constant entry: 0
        return state, evidence._replace(
            total=(evidence.total - centre) * inverse,
            per_example=None if examples is None else (examples - centre) * inverse,
        )

    return Targets(init, scale, update)


@checked()
def raw_targets(scale: float) -> Targets:
    """Divide gradients by one number, and neither centre nor gate them.

    The literal reading of the paper, for its reproduction: with scale N the targets are Σ_b g_b up
    to a factor, with scale |B| the coefficients belong to N/|B| Σ_b g_b.
    """

    def update(state, criterion, evidence, prediction):
        examples = evidence.per_example if criterion.per_example else None
        return state, evidence._replace(
            total=evidence.total / scale,
            per_example=None if examples is None else examples / scale,
        )

    return Targets(
        init=lambda sizes: (),
        scale=lambda state: jnp.asarray(scale),
        update=update,
    )


def _without_outliers(state: Statistics, s: Any, evidence: Evidence) -> Evidence:
    """Gradients within ten standard deviations of the mean of the steps before."""
    centre = state.mean / jnp.maximum(state.weight, 1)
    reach = jnp.where(s > 0, _OUTLIER * s, jnp.inf)  # no limit before there is a spread

    def within(g, reach):
        return jnp.clip(g, centre - reach, centre + reach)

    if evidence.per_example is None:
        return evidence._replace(total=within(evidence.total, reach / evidence.w.shape[0] ** 0.5))
    return evidence._replace(
        total=within(evidence.total, reach), per_example=within(evidence.per_example, reach)
    )
