"""A control variate on top of any sampling."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from quell._control_variate import ControlVariate, row_shapes
from quell._errors import invalid
from quell._objective import Objective, batch_size
from quell.contexts import as_matrix
from quell.estimators._sampling import Sampling
from quell.estimators._types import Estimator, MakeEstimator
from quell.noise import shape_leaves


class Controlled(NamedTuple):
    """State of a controlled estimator.

    Attributes:
      control: the control variate's state.
      correction_norm: ‖Ĝ − G̃‖ at the last step, `[]`.
    """

    control: PyTree[Array]
    correction_norm: Float[Array, ""]


def controlled(
    sampling: Sampling,
    control: ControlVariate,
    *,
    context: Callable[[PyTree[Array]], PyTree[Array]] | None = None,
    rows: int | None = None,
) -> MakeEstimator:
    """The gradient of `sampling` with a control variate subtracted.

    Args:
      sampling: how the draws are made, such as `monte_carlo()`.
      control: made by `quell.control_variate`.
      context: the contexts of a batch; by default the batch itself if `control` was given contexts
        of its kind, else every leaf of it, side by side.
      rows: how many examples per batch the criterion may learn from, where it needs their
        gradients; all by default.
    """

    def announced(batch):
        return batch if row_shapes(batch) == control.context else as_matrix(batch)

    context_of = announced if context is None else context

    def make(objective: Objective) -> Estimator:
        _check_noise(control, objective)

        def init(key, params, batch):
            return Controlled(control.init(params, key=key), jnp.zeros(()))

        def estimate(key, params, batch, state):
            noise = sampling.draw(key, objective, batch_size(batch))
            if control.criterion.per_example:
                value, gradient, per_example = objective.value_gradient_and_rows(
                    params, noise, batch, leaves=control.leaves, rows=rows
                )
            else:
                value, gradient = objective.value_and_gradient(params, noise, batch)
                per_example = None
            quieter, control_state = control.update(
                gradient,
                state.control,
                params,
                noise=noise,
                context=context_of(batch),
                per_example=per_example,
            )
            moved = optax.tree.norm(jax.tree.map(jnp.subtract, gradient, quieter))
            return quieter, value, Controlled(control_state, moved)

        return Estimator(init, estimate)

    return make


def _check_noise(control: ControlVariate, objective: Objective) -> None:
    ours, theirs = control.noise, objective.noise
    if (ours.name, shape_leaves(ours.shape)) != (theirs.name, shape_leaves(theirs.shape)):
        raise invalid(
            "control",
            expected=f"a control variate for {theirs.name} noise of shape {theirs.shape}",
            got=f"one for {ours.name} noise of shape {ours.shape}",
            advice="Pass noise=objective.noise to control_variate.",
        )
