"""Checks of the arguments that many public functions share: keys, data, whole numbers, seconds."""

import inspect
import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer
from jaxtyping import Array, PyTree

from quell._errors import invalid, is_invalid, shortened
from quell._tree import named_leaves

_LARGEST = 2**31 - 1  # steps and rows are counted in 32 bits, as JAX does by default


def checked_problem(
    key: Any,
    objective: Any,
    params: PyTree[Any],
    data: PyTree[Any],
    *,
    seeds: bool = False,
    loss: bool = True,
) -> tuple[PyTree[Array], PyTree[Array]]:
    """Parameters and data as arrays, after a check that the four form a problem.

    Args:
      key: a typed key; with `seeds`, a one-dimensional array of keys is accepted too.
      objective: L, whose `num_data` the data must match.
      params: a pytree of finite floating-point arrays that the loss of the objective takes.
      data: a pytree of finite arrays `[N, ...]`.
      loss: whether the loss will be called, and so must take these parameters.
    """
    check_key(key, seeds=seeds)
    check_objective(objective)
    data = checked_data(objective.num_data, data)
    params = checked_params(params)
    if loss:
        check_loss(objective, params, data)
    return params, data


def check_objective(objective: Any) -> None:
    """Refuse anything but an objective with parts that can be used."""
    if not all(hasattr(objective, name) for name in ("loss", "noise", "num_data", "gradient")):
        raise invalid(
            "objective",
            expected="a quell.Objective",
            got=type(objective).__name__,
            advice="The order of arguments is (key, objective, params, data).",
        )
    check_whole("objective.num_data", objective.num_data, 1)
    check_function("objective.loss", objective.loss, "loss(params, noise, example)")
    if objective.regulariser is not None:
        check_function("objective.regulariser", objective.regulariser, "regulariser(params)")
    if not (hasattr(objective.noise, "sample") and hasattr(objective.noise, "standardise")):
        raise invalid(
            "objective.noise",
            expected="a noise, such as quell.normal(3)",
            got=shortened(objective.noise),
            advice="Call the factory: it returns the noise."
            if callable(objective.noise)
            else "Choose one from quell.noise.",
        )


def checked_data(num_data: int, data: PyTree[Any]) -> PyTree[Array]:
    """The data as arrays, after a check of their lengths and values."""
    data = _as_arrays("data", "a pytree of arrays of numbers", data)
    check_data(num_data, data)
    for name, leaf in named_leaves(data):
        check_finite(f"data{name}", leaf, "Drop the row, or code the gap as a number and mask it.")
    return data


def checked_params(params: PyTree[Any]) -> PyTree[Array]:
    """The parameters as arrays, after a check that they can be trained."""
    params = _as_arrays("params", "a pytree of arrays", params)
    leaves = named_leaves(params)
    if not leaves:
        raise invalid(
            "params",
            expected="a pytree with at least one array",
            got=shortened(params),
            advice="The order of arguments is (key, objective, params, data).",
        )
    for name, leaf in leaves:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise invalid(
                f"params{name}",
                expected="floating-point numbers, which gradients can change",
                got=leaf.dtype,
                advice="Write 1.0 in place of 1, or keep constants out of params.",
            )
        check_finite(f"params{name}", leaf, "Start from finite parameters.")
    return params


def check_finite(argument: str, leaf: Array, advice: str) -> None:
    """Refuse an array with entries that are not finite; names the first row that has one."""
    if isinstance(leaf, Tracer) or not jnp.issubdtype(leaf.dtype, jnp.inexact):
        return
    values = np.asarray(leaf)
    with np.errstate(all="ignore"):
        if np.isfinite(values.sum()):  # one fast pass, which an overflow can only send on
            return
    good = np.isfinite(values)
    if good.all():
        return
    rows = np.flatnonzero(~good.reshape(len(good), -1).all(1)) if good.ndim else [None]
    first = values[rows[0]] if good.ndim else values
    bad = first[~np.isfinite(first)].ravel()[0] if np.ndim(first) else first
    raise invalid(
        argument,
        expected="finite numbers",
        got=f"{bad} in row {rows[0]}, and {len(rows)} such rows of {len(good)}"
        if good.ndim
        else bad,
        advice=advice,
    )


def check_loss(objective: Any, params: PyTree[Array], data: PyTree[Array]) -> None:
    """Refuse a loss or regulariser that cannot be traced with these parameters and data."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape[1:]), leaf.dtype), data)
    noisy = objective._replace(regulariser=None)

    def value(key, params, batch):
        return noisy.value(params, noisy.sample_noise(key, 1), batch)

    check_traces("loss", "loss(params, noise, example)", value, key, params, one)
    if objective.regulariser is not None:
        check_traces("regulariser", "regulariser(params)", objective.penalty, params)


def check_measured(variance: float, batch_size: int) -> None:
    """Refuse a measurement of gradients that are not finite."""
    if not math.isfinite(variance):
        raise invalid(
            "objective",
            expected=f"finite gradients at batch size {batch_size}",
            got=f"a variance of {variance}",
            advice="Check logarithms, square roots and divisions in the loss at these parameters, "
            "and lower the learning rate of coefficients.",
        )


def check_traces(
    argument: str,
    call: str,
    function: Callable[..., Any],
    *args: Any,
    advice: str = "Check that params, noise and data have the leaves and shapes that it uses.",
) -> None:
    """Refuse a user's function that raises an error while it is traced, in one sentence."""
    try:
        jax.eval_shape(function, *args)
    except Exception as error:
        if is_invalid(error):  # says already what is wrong
            raise
        got = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        raise invalid(
            argument,
            expected=f"a function that JAX can trace as {call}",
            got=got.rstrip("."),
            advice=advice,
        ) from error


def check_function(argument: str, value: Any, call: str) -> None:
    """Refuse anything that cannot be called in this way, such as `loss(params, noise, example)`."""
    got = None if callable(value) else shortened(value)
    try:
        inspect.signature(value).bind(*call.partition("(")[2].split(","))
    except TypeError as error:
        got = got or f"a function that does not take these arguments: {error}"
    except ValueError:  # some functions of C have no signature
        pass
    if got is not None:
        raise invalid(
            argument,
            expected=f"a function called as {call}",
            got=got,
            advice="Pass a function of these positional arguments.",
        )


def check_optimizer(optimizer: Any, argument: str = "optimizer") -> None:
    """Refuse anything but an optimiser: by its functions, not its class."""
    if not all(callable(getattr(optimizer, name, None)) for name in ("init", "update")):
        raise invalid(
            argument,
            expected="an optax.GradientTransformation",
            got=getattr(optimizer, "__name__", type(optimizer).__name__),
            advice="Pass for example optax.adam(1e-2).",
        )


def check_updates(optimizer: Any, params: PyTree[Array]) -> None:
    """Refuse an optimiser that cannot take a step from a gradient and a value alone."""
    updating = optax.with_extra_args_support(optimizer)

    def step(params):
        value = jnp.zeros((), jnp.result_type(float))
        updates, _ = updating.update(params, optimizer.init(params), params, value=value)
        return optax.apply_updates(params, updates)

    call = "optimizer.update(gradient, state, params, value=value)"
    advice = "Optimisers that need more than the gradient and the value, such as a line search, "
    check_traces("optimizer", call, step, params, advice=advice + "do not fit into the loop.")


def _as_arrays(argument: str, expected: str, tree: PyTree[Any]) -> PyTree[Array]:
    """The leaves as arrays; names one that is not numbers."""

    def array(path, leaf):
        try:
            if isinstance(leaf, str | bytes):  # NumPy takes some letters for dtypes
                raise TypeError("text")
            return jnp.asarray(leaf)
        except (TypeError, ValueError, OverflowError) as error:
            dtype = getattr(leaf, "dtype", None)
            kind = type(leaf).__name__ if dtype is None else f"an array of {dtype}"
            name = f"{argument}{jax.tree_util.keystr(path)}"
            raise invalid(
                argument,
                expected=expected,
                got=f"{name}, which is {kind}" if path else kind,
                advice="The order of arguments is (key, objective, params, data).",
            ) from error

    return jax.tree_util.tree_map_with_path(array, tree)


def check_key(key: Any, *, seeds: bool = False) -> None:
    """Refuse anything but a typed key, or an array of typed keys if `seeds` allows one."""
    dtype = getattr(key, "dtype", np.dtype(object))
    if jnp.issubdtype(dtype, jax.dtypes.prng_key) and key.ndim <= seeds and key.size:
        return
    many = ", or a one-dimensional array of keys" if seeds else ""
    raise invalid(
        "key",
        expected=f"a typed key{many}",
        got=f"{type(key).__name__} of {dtype}"
        + (f" and shape {key.shape}" if getattr(key, "shape", ()) else ""),
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
            got=_some(f"{name} of length {n}" for name, n in lengths.items()) or "no leaves",
            advice="Give every leaf one row per data point; a list of numbers is a pytree of "
            "scalars, so pass jnp.asarray(list).",
        )
    N = next(iter(lengths.values()))
    if num_data != N:
        raise invalid(
            "data",
            expected=f"the {num_data} rows of objective.num_data",
            got=f"{N} rows",
            advice=f"Use objective._replace(num_data={N}) for these data.",
        )


def _some(words: Iterable[str], most: int = 6) -> str:
    words = list(words)
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


def check_batch_size(batch_size: Any, num_data: int) -> None:
    """Refuse a batch size outside 1 … N."""
    check_whole("batch_size", batch_size, 1, num_data, "A batch cannot be larger than the data.")


def check_whole(
    argument: str, value: Any, least: int, most: int = _LARGEST, advice: str | None = None
) -> None:
    """Refuse anything but a whole number from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):  # True is an int
        expected, got = "a whole number", shortened(value)
    elif not least <= value <= most:
        expected, got = f"{least} to {most}", value
    else:
        return
    advice = advice or f"Set {argument} to a number in this range."
    raise invalid(argument, expected=expected, got=got, advice=advice)


def check_positive(argument: str, value: Any, example: object) -> None:
    """Refuse anything but a positive, finite number."""
    check_number(argument, value, "a positive number", lambda x: x > 0, example)


def check_number(
    argument: str,
    value: Any,
    expected: str = "a finite number",
    holds: Callable[[Any], bool] = lambda x: True,
    example: object = 1.0,
) -> None:
    """Refuse anything but a finite number for which a condition holds."""
    is_number = isinstance(value, int | float | np.integer | np.floating)
    usable = is_number and not isinstance(value, bool) and abs(value) < 2.0**63  # nor NaN
    if not usable or not holds(value):
        raise invalid(
            argument,
            expected=expected,
            got=shortened(value),
            advice=f"Try {argument}={example}.",
        )


def check_bool(argument: str, value: Any) -> None:
    """Refuse anything but True and False."""
    if not isinstance(value, bool | np.bool_):
        raise invalid(
            argument,
            expected="True or False",
            got=shortened(value),
            advice="A choice is a bool here.",
        )
