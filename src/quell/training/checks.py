"""Checks of a run: the arguments before the first step, the objective right after it."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from quell._checks import check_batch_size, check_whole, checked_problem
from quell._errors import invalid
from quell._tree import named_leaves
from quell.estimators._types import check_estimator
from quell.training.hooks import check_hooks


def checked_arguments(
    key: Any,
    objective: Any,
    data: PyTree[Any],
    optimizer: Any,
    estimator: Any,
    hooks: Any,
    *,
    num_steps: int,
    batch_size: int,
) -> PyTree[Array]:
    """The data as arrays, after a check that the arguments of `fit` work together."""
    data = checked_problem(key, objective, data, seeds=True)
    # by its functions, not its class: any pair of init and update is an optimiser
    if not (callable(getattr(optimizer, "init", None)) and hasattr(optimizer, "update")):
        raise invalid(
            "optimizer",
            expected="an optax.GradientTransformation",
            got=type(optimizer).__name__,
            advice="Pass for example optax.adam(1e-2).",
        )
    check_estimator("estimator", estimator)
    check_hooks(hooks)
    check_whole("num_steps", num_steps, 0)
    check_batch_size(batch_size, objective.num_data)
    return data


def check_finite(objective: np.ndarray, data: PyTree[Array]) -> None:
    """Refuse a run whose first estimate of the objective is not finite."""
    if np.isfinite(objective).all():
        return
    bad = [name for name, leaf in named_leaves(data) if not bool(jnp.isfinite(leaf).all())]
    about_data = f"data{', data'.join(bad)} holds NaN or infinity: clean it" if bad else ""
    raise invalid(
        "objective",
        expected="a finite value at the first step",
        got=objective.tolist(),
        advice=f"{about_data or 'The data are finite: check params, and logarithms in the loss'}.",
    )
