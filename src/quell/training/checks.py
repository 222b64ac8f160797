"""Checks of a run before the first step."""

from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array, Key, PyTree

from quell._checks import (
    check_batch_size,
    check_function,
    check_key,
    check_optimizer,
    check_traces,
    check_whole,
    checked_problem,
)
from quell.estimators._types import check_estimator
from quell.training.hooks import check_hooks


def checked_arguments(
    key: Any,
    objective: Any,
    params: Any,
    data: PyTree[Any],
    optimizer: Any,
    estimator: Any,
    batches: Any,
    hooks: Any,
    *,
    num_steps: int,
    batch_size: int,
) -> tuple[PyTree[Array] | Callable[[Key[Array, ""]], PyTree[Array]], PyTree[Array]]:
    """Parameters and data, after a check that the arguments of `fit` work together."""
    check_key(key, seeds=True)
    function = drawn(params)
    first = params
    if function:  # checked by the parameters that it draws for the first run
        one = key[0] if key.ndim else key
        check_traces("params", "params(key)", params, one)
        first = params(one)
    first, data = checked_problem(key, objective, first, data, seeds=True)
    check_optimizer(optimizer)
    check_estimator("estimator", estimator)
    check_function("batches", batches, "such as quell.reshuffle")
    check_hooks(hooks)
    check_whole("num_steps", num_steps, 0)
    check_batch_size(batch_size, objective.num_data)
    return params if function else first, data


def drawn(params: Any) -> bool:
    """Whether parameters are a function that draws them, rather than a pytree."""
    # A pytree may be callable too, such as a module of Equinox; a function is its own leaf.
    return callable(params) and jax.tree_util.all_leaves([params])
