"""What `fit` refuses, before the first step and right after it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from quell._automatic import Automatic
from quell._errors import invalid
from quell._objective import Objective


def check_arguments(
    objective: Objective,
    data: PyTree[Array],
    optimizer: Any,
    key: Any,
    estimator: Any,
    control: Any,
    *,
    num_steps: int,
    batch_size: int,
    **every: int,
) -> None:
    """Refuse what cannot work."""
    if not isinstance(estimator, Automatic) and control is not None:
        raise invalid(
            "control",
            expected="either an estimator or a control variate",
            got="both",
            advice="Put the control variate into the estimator: controlled(sampling, control).",
        )
    if not (callable(getattr(optimizer, "init", None)) and hasattr(optimizer, "update")):
        raise invalid(
            "optimizer",
            expected="an optax.GradientTransformation",
            got=type(optimizer).__name__,
            advice="Pass for example optax.adam(1e-2).",
        )
    dtype = getattr(key, "dtype", np.dtype(object))
    if not jnp.issubdtype(dtype, jax.dtypes.prng_key) or key.ndim > 1:
        raise invalid(
            "key",
            expected="a typed key, or a one-dimensional array of them",
            got=f"{type(key).__name__} of {dtype}",
            advice="Use jax.random.key(seed), and jax.random.split(key, K) for K runs at once.",
        )
    _check_data(objective, data)
    _check_whole("num_steps", num_steps, least=0, most=2**31 - 1)
    _check_whole("batch_size", batch_size, least=1, most=objective.num_data)
    for name, steps in every.items():
        _check_whole(name, steps, least=1, most=2**31 - 1)


def check_finite(objective: np.ndarray, data: PyTree[Array]) -> None:
    """Refuse a run whose first estimate of the objective is not finite."""
    if np.isfinite(objective).all():
        return
    bad = [name for name, leaf in _named(data) if not bool(jnp.isfinite(leaf).all())]
    about_data = f"data{', data'.join(bad)} holds NaN or infinity: clean it" if bad else ""
    raise invalid(
        "objective",
        expected="a finite value at the first step",
        got=objective.tolist(),
        advice=f"{about_data or 'The data is finite: check params, and logarithms in the loss'}.",
    )


def _check_data(objective: Objective, data: PyTree[Array]) -> None:
    lengths = {name: leaf.shape[0] if leaf.ndim else None for name, leaf in _named(data)}
    if len(set(lengths.values())) != 1 or None in lengths.values():
        raise invalid(
            "data",
            expected="leaves with one common leading length",
            got=", ".join(f"data{name} of length {n}" for name, n in lengths.items()) or "none",
            advice="Give every leaf one row per data point.",
        )
    N = next(iter(lengths.values()))
    if objective.num_data != N:
        raise invalid(
            "data",
            expected=f"the {objective.num_data} rows of objective.num_data",
            got=f"{N} rows",
            advice=f"Use objective._replace(num_data={N}) for these data.",
        )


def _check_whole(argument: str, value: Any, *, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        expected, got = "a whole number", repr(value)
    elif not least <= value <= most:
        expected, got = f"{least} to {most}", value
    else:
        return
    hint = "A batch cannot be larger than the data." if argument == "batch_size" else ""
    raise invalid(argument, expected=expected, got=got, advice=hint or f"Set {argument} in there.")


def _named(data: PyTree[Array]) -> list[tuple[str, Array]]:
    return [(jax.tree_util.keystr(p), x) for p, x in jax.tree_util.tree_leaves_with_path(data)]
