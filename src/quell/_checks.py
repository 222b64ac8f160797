"""Checks of the arguments that many public functions share: keys, data, whole numbers, seconds."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from quell._errors import invalid
from quell._tree import named_leaves

_LARGEST = 2**31 - 1  # steps and rows are counted in 32 bits, as JAX does by default


def checked_problem(
    key: Any, objective: Any, data: PyTree[Any], *, seeds: bool = False
) -> PyTree[Array]:
    """The data as arrays, after a check that key, objective and data form a problem.

    Args:
      key: a typed key; with `seeds`, a one-dimensional array of keys is accepted too.
      objective: L, whose `num_data` the data must match.
      data: a pytree with leaves `[N, ...]`.
    """
    check_key(key, seeds=seeds)
    if not hasattr(objective, "num_data"):
        raise invalid(
            "objective",
            expected="a quell.Objective",
            got=type(objective).__name__,
            advice="The order of arguments is (key, objective, params, data).",
        )
    data = jax.tree.map(_as_array, data)
    check_data(objective.num_data, data)
    return data


def _as_array(leaf: Any) -> Array:
    try:
        return jnp.asarray(leaf)
    except (TypeError, ValueError) as error:
        raise invalid(
            "data",
            expected="a pytree of arrays of numbers",
            got=f"a leaf of type {type(leaf).__name__}",
            advice="The order of arguments is (key, objective, params, data).",
        ) from error


def check_key(key: Any, *, seeds: bool = False) -> None:
    """Refuse anything but a typed key, or an array of typed keys if `seeds` allows one."""
    dtype = getattr(key, "dtype", np.dtype(object))
    if jnp.issubdtype(dtype, jax.dtypes.prng_key) and key.ndim <= seeds:
        return
    many = ", or a one-dimensional array of keys" if seeds else ""
    raise invalid(
        "key",
        expected=f"a typed key{many}",
        got=f"{type(key).__name__} of {dtype}",
        advice="Use jax.random.key(seed)"
        + (", and jax.random.split(key, K) for K runs at once." if seeds else "."),
    )


def check_data(num_data: int, data: PyTree[Array]) -> None:
    """Refuse data whose leaves differ in length, or whose length is not N of the objective."""
    lengths = {
        f"data{name}": leaf.shape[0] if leaf.ndim else None for name, leaf in named_leaves(data)
    }
    if len(set(lengths.values())) != 1 or None in lengths.values():
        raise invalid(
            "data",
            expected="leaves with one common leading length",
            got=", ".join(f"{name} of length {n}" for name, n in lengths.items()) or "no leaves",
            advice="Give every leaf one row per data point.",
        )
    N = next(iter(lengths.values()))
    if num_data != N:
        raise invalid(
            "data",
            expected=f"the {num_data} rows of objective.num_data",
            got=f"{N} rows",
            advice=f"Use objective._replace(num_data={N}) for these data.",
        )


def check_batch_size(batch_size: Any, num_data: int) -> None:
    """Refuse a batch size outside 1 … N."""
    check_whole("batch_size", batch_size, 1, num_data, "A batch cannot be larger than the data.")


def check_whole(
    argument: str, value: Any, least: int, most: int = _LARGEST, advice: str | None = None
) -> None:
    """Refuse anything but a whole number from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):  # True is an int
        expected, got = "a whole number", repr(value)
    elif not least <= value <= most:
        expected, got = f"{least} to {most}", value
    else:
        return
    advice = advice or f"Set {argument} to a number in this range."
    raise invalid(argument, expected=expected, got=got, advice=advice)


def check_positive(argument: str, value: Any, example: object) -> None:
    """Refuse anything but a positive number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise invalid(
            argument,
            expected="a positive number",
            got=repr(value),
            advice=f"Try {argument}={example}.",
        )


def check_decay(decay: Any) -> None:
    """Refuse a forgetting factor outside (0, 1]."""
    if not (isinstance(decay, int | float) and 0 < decay <= 1):
        raise invalid("decay", expected="a number in (0, 1]", got=repr(decay), advice="Try 0.99.")
