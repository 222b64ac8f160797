"""The gradient itself, from passes over all of the data."""

import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Key, PyTree

from quell import _tree
from quell._tree import batch_size, number_of_parameters
from quell.objective import Objective

_PASSES = 1000  # the most passes: their mean is precise enough for every estimator
_CHUNK_NUMBERS = 2**22  # the most numbers that a chunk of rows may hold at once


class Reference(NamedTuple):
    """The gradient of the objective, all leaves flattened.

    Attributes:
      mean: the mean over passes, `[P]`.
      standard_error: the standard error of each entry of the mean, `[P]`.
      passes: the number of passes over the data.
    """

    mean: Float[np.ndarray, " P"]
    standard_error: Float[np.ndarray, " P"]
    passes: int


def full_gradient(
    key: Key[Array, ""],
    objective: Objective,
    params: PyTree[Array],
    data: PyTree[Array],
    *,
    seconds: float,
) -> Reference:
    """Average ∇L(θ) over passes through all points, with one draw for each point and pass.

    Every pass sees every point, so the points add no noise; passes differ by their draws alone.

    Args:
      key: the key for the draws.
      objective: L.
      params: θ.
      data: leaves `[N, ...]`.
      seconds: the time to take, after compilation; at least three passes are made.
    """
    flat = _tree.flattener(None, params)
    one_pass = jax.jit(lambda key, params, data: flat.flatten(_pass(key, objective, params, data)))
    first = np.asarray(one_pass(jax.random.fold_in(key, 0), params, data), float)
    # Sums of differences from the first pass: sums of squares of the passes would lose digits.
    total, squares, passes = np.zeros_like(first), np.zeros_like(first), 1
    began = time.monotonic()
    while passes < 3 or (passes < _PASSES and time.monotonic() - began < seconds):
        moved = np.asarray(one_pass(jax.random.fold_in(key, passes), params, data), float) - first
        total, squares, passes = total + moved, squares + moved**2, passes + 1
    offset = total / passes  # from the first pass
    variance = np.maximum(squares / passes - offset**2, 0.0) / (passes - 1)
    return Reference(first + offset, np.sqrt(variance), passes)


def _pass(key, objective: Objective, params, data) -> PyTree[Array]:
    """The gradient from all points, one draw each, chunk by chunk so that memory stays bounded."""
    N = batch_size(data)
    rows = max(1, min(N, _CHUNK_NUMBERS // max(1, number_of_parameters(params))))
    noisy = objective._replace(regulariser=None)  # added once, at the end

    def add(total, key, chunk):
        B = batch_size(chunk)
        gradient = noisy.gradient(params, noisy.sample_noise(key, B), chunk)
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
