"""Checks of a run before the first step."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Key, PyTree

from quell._checks import (
    check_batch_size,
    check_function,
    check_key,
    check_optimizer,
    check_traces,
    check_updates,
    check_whole,
    checked_problem,
)
from quell._errors import invalid
from quell.estimators._types import check_estimator
from quell.training.batches import reshuffle, with_replacement
from quell.training.hooks import check_hooks
from quell.training.loop import start_key


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
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((key, params, data))):
        raise invalid(
            "fit",
            expected="arrays, since it visits the host between steps",
            got="traced arrays",
            advice="Call it outside of jit, grad and vmap; several keys are several runs at once.",
        )
    function = drawn(params)
    first = params
    if function:  # checked by the parameters that it draws for the first run
        one = key[0] if key.ndim else key
        check_traces("params", "params(key)", params, one)
        first = params(one)
    first, data = checked_problem(key, objective, first, data, seeds=True)
    check_optimizer(optimizer)
    check_updates(optimizer, first)
    check_estimator("estimator", estimator)
    check_hooks(hooks)
    check_whole("num_steps", num_steps, 0)
    check_batch_size(batch_size, objective.num_data)
    _check_batches(batches, start_key(key), objective.num_data, batch_size)
    return params if function else first, data


def _check_batches(batches: Any, key: Key[Array, ""], N: int, B: int) -> None:
    """Refuse a stream of one's own whose first indices are no rows of the data."""
    call = "batches(key, step, num_steps, num_data, batch_size)"
    check_function("batches", batches, call)
    if batches in (reshuffle, with_replacement):
        return

    def first(key, step):
        return batches(key, step, 2, N, B)

    check_traces("batches", call, first, key, 0)
    found = np.asarray(jax.jit(first)(key, 0))
    got = f"shape {found.shape} of {found.dtype}"
    good = found.shape == (2, B) and np.issubdtype(found.dtype, np.integer)
    if good:
        got = f"{found.min()} to {found.max()}"
    if not good or found.min() < 0 or found.max() >= N:
        raise invalid(
            "batches",
            expected=f"whole numbers [num_steps, batch_size] from 0 to {N - 1}",
            got=got,
            advice="They are indices of the rows of each batch; quell.reshuffle is an example.",
        )


def drawn(params: Any) -> bool:
    """Whether parameters are a function that draws them, rather than a pytree."""
    # A pytree may be callable too, such as a module of Equinox; a function is its own leaf.
    return callable(params) and jax.tree_util.all_leaves([params])
