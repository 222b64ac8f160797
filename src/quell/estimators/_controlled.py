"""A control variate as an estimator: it draws, differentiates and subtracts the correction."""

import jax
import jax.numpy as jnp
import optax

from quell import _tree
from quell._arguments import checked, function
from quell._tree import batch_size
from quell.bases import Basis
from quell.coefficients._types import Coefficients
from quell.control_variate import Order, apply_then_learn, started_control
from quell.criteria import Criterion, squared_difference
from quell.estimators._sampling import monte_carlo
from quell.estimators._types import (
    Batch,
    Estimate,
    Estimator,
    Started,
    check_sampling,
)


@checked(order=function("order(before, after)"))
def controlled(
    coefficients: Coefficients,
    *,
    basis: Basis | None = None,
    criterion: Criterion = squared_difference,
    leaves: _tree.Leaves = None,
    order: Order = apply_then_learn,
    sampling: Estimator | None = None,
) -> Estimator:
    """The gradient of plain draws with a control variate subtracted.

    Args:
      coefficients: Θ and h, and how they are learned, such as `quell.recognition_network()`.
      basis: w, functions of the noise of mean zero; `bases.linear()` by default.
      criterion: V, by which Θ is learned.
      leaves: the leaves to control, as for `quell.control_variate`.
      order: `apply_then_learn`, or `learn_then_apply`, which is biased.
      sampling: how the draws are made: `monte_carlo()` (the default), `antithetic()` or
        `quasi_monte_carlo()`.
    """
    sampling = monte_carlo() if sampling is None else sampling
    draws = check_sampling("sampling", sampling)

    def start(key, objective, params, data) -> Started:
        parts = (coefficients, basis, criterion, leaves, order)
        control = started_control(key, objective, params, data, *parts)

        def estimate(key, objective, params, batch: Batch, state) -> Estimate:
            noise = draws.draw(key, objective, batch_size(batch.examples))  # the gradient's own
            if criterion.per_example:  # gradients of examples cost more than their sum
                value, gradient, per_example = objective.value_gradient_and_examples(
                    params, noise, batch.examples, leaves=leaves
                )
            else:
                value, gradient = objective.value_and_gradient(params, noise, batch.examples)
                per_example = None
            quieter, state = control.update(
                gradient, state, params, noise=noise, batch=batch.examples, per_example=per_example
            )
            norm = optax.tree.norm(jax.tree.map(jnp.subtract, gradient, quieter))
            return Estimate(quieter, value, state, norm)

        return Started(lambda key, params: control.init(key), estimate, guarded=True)

    return Estimator(f"controlled({sampling.name})", start)
