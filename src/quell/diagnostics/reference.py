"""The gradient itself, from passes over all of the data."""

import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Key, PyTree

from quell import _tree
from quell._jit import quick_jit
from quell._tree import batch_size, number_of_parameters
from quell.estimators._sampling import antithetic, monte_carlo
from quell.estimators._types import Sampling, check_sampling
from quell.objective import Objective

_PASSES = 1000  # the most passes: their mean is precise enough for every estimator
_GROUPS = 8  # groups of passes: independent gradients, few enough to keep
_CHUNK_NUMBERS = 2**22  # the most numbers that a chunk of rows may hold at once


class Reference(NamedTuple):
    """The gradient of the objective, all leaves flattened.

    Attributes:
      mean: the mean over passes, `[P]`.
      standard_error: the standard error of each entry of the mean, `[P]`.
      passes: the number of passes over the data.
      groups: the means over groups of passes, which are independent, `[R, P]`.
    """

    mean: Float[np.ndarray, " P"]
    standard_error: Float[np.ndarray, " P"]
    passes: int
    groups: Float[np.ndarray, "R P"]


def no_reference(P: int) -> Reference:
    """A reference that knows nothing: no estimator is biased against it."""
    return Reference(np.zeros(P), np.full(P, np.inf), _PASSES, np.zeros((1, P)))


def full_gradient(
    key: Key[Array, ""],
    objective: Objective,
    params: PyTree[Array],
    data: PyTree[Array],
    *,
    seconds: float,
) -> Reference:
    """Average ∇L(θ) over passes through all points, with one pair of draws for each, or one draw.

    Every pass sees every point, so the points add no noise; passes differ by their draws alone.

    Args:
      key: the key for the draws.
      objective: L.
      params: θ.
      data: leaves `[N, ...]`.
      seconds: the time to take, with compilation; at least three passes are made.
    """
    flat, began = _tree.flattener(None, params), time.monotonic()
    reflected = objective.noise.reflect is not None
    draws = check_sampling("sampling", antithetic() if reflected else monte_carlo())
    one_pass = quick_jit(lambda k, p, data: flat.flatten(_pass(k, objective, p, data, draws)))
    first = np.asarray(one_pass(jax.random.fold_in(key, 0), params, data), float)
    # Sums of differences from the first pass: sums of squares of the passes would lose digits.
    groups, squares, passes = np.zeros((_GROUPS, len(first))), np.zeros_like(first), 1
    while passes < 3 or (passes < _PASSES and time.monotonic() - began < seconds):
        moved = np.asarray(one_pass(jax.random.fold_in(key, passes), params, data), float) - first
        groups[passes % _GROUPS] += moved
        squares, passes = squares + moved**2, passes + 1
    offset = groups.sum(0) / passes  # from the first pass
    variance = np.maximum(squares / passes - offset**2, 0.0) / (passes - 1)
    sizes = (passes + _GROUPS - 1 - np.arange(min(passes, _GROUPS))) // _GROUPS
    groups = first + groups[: len(sizes)] / sizes[:, None]
    return Reference(first + offset, np.sqrt(variance), passes, groups)


def _pass(key, objective: Objective, params, data, draws: Sampling) -> PyTree[Array]:
    """The gradient from all points, chunk by chunk so that memory stays bounded."""
    N = batch_size(data)
    rows = max(1, min(N, _CHUNK_NUMBERS // max(1, number_of_parameters(params))))
    noisy = objective._replace(regulariser=None)  # added once, at the end

    def add(total, key, chunk):
        B = batch_size(chunk)
        gradient = noisy.gradient(params, draws.draw(key, noisy, B), chunk)
        return jax.tree.map(lambda t, g: t + g * (B / N), total, gradient)  # g carries N/B

    def step(total, inputs):
        return add(total, *inputs), None

    whole = N // rows
    keys = jax.random.split(key, whole + 1)
    chunks = jax.tree.map(lambda y: y[: whole * rows].reshape(whole, rows, *y.shape[1:]), data)
    total, _ = lax.scan(step, jax.tree.map(jnp.zeros_like, params), (keys[:-1], chunks))
    if whole * rows < N:
        total = add(total, keys[-1], jax.tree.map(lambda y: y[whole * rows :], data))
    if objective.regulariser is None:
        return total
    return jax.tree.map(jnp.add, total, jax.grad(objective.regulariser)(params))
