"""Ceilings: the variance that remains under an ideal control variate of each basis."""

import time
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree

from quell import _tree
from quell._jit import quick_jit
from quell.bases import Basis, hermite, linear, polynomial
from quell.diagnostics.statistics import Interval, ratio_interval
from quell.noise import Noise
from quell.objective import Objective

_CROSS = 40  # the most components of the noise for which cross terms are tried: 860 functions
_NUMBERS = 2**24  # the most numbers that the gradients of one point's draws may hold
_LEAST = 3  # the fewest points that give an interval
_MOST = 2000  # the most points: the interval is then narrow enough for every purpose


def default_bases(noise: Noise) -> dict[str, Basis]:
    """The usual bases: linear, quadratic, and quadratic with cross terms if these are few."""
    bases = {"linear": linear(), "quadratic": polynomial(2)}
    if noise.name == "normal" and noise.size <= _CROSS:
        bases["quadratic with cross terms"] = hermite(2, cross=True)
    return bases


def ceilings(
    key: Key[Array, ""],
    objective: Objective,
    params: PyTree[Array],
    data: PyTree[Array],
    *,
    bases: Mapping[str, Basis],
    seconds: float,
) -> dict[str, Interval | str]:
    """The share of the draws' variance that remains under the best coefficients of each basis.

    The gradients of each sampled point at K draws are regressed on the basis, with an intercept,
    and the mean squared residual is divided by the variance. Residuals are corrected for the
    degrees of freedom one by one, r_k² / (1 − H_kk) with H the hat matrix, since the remaining
    noise is seldom the same for every draw. No coefficients, whatever their context, leave less on
    average.

    Args:
      key: the key for points and draws.
      objective: L.
      params: θ.
      data: leaves `[N, ...]`.
      bases: the bases, by name.
      seconds: the time to take, after compilation, for all bases together.

    Returns:
      For each basis the share with an interval over points, or the reason why there is none.
    """
    flat = _tree.flattener(None, params)
    most = _NUMBERS // flat.size
    sizes, results = {}, {}
    for name, basis in bases.items():
        try:
            D = _size(objective, params, data, basis)
        except ValueError as error:
            results[name] = f"not available: {error}"
            continue
        if most < 2 * (D + 1):  # at least two draws per coefficient
            results[name] = f"not available: {D} functions of the noise are too many"
        else:
            sizes[name] = D
    if sizes:
        draws = min(most, max(128, 8 * (max(sizes.values()) + 1)))  # 8 draws per coefficient
        chosen = {name: bases[name] for name in sizes}
        results |= _regressed(key, objective, params, data, flat, chosen, draws, seconds)
    return {name: results[name] for name in bases}


def _regressed(key, objective, params, data, flat, bases, draws, seconds) -> dict[str, Interval]:
    noise, N = objective.noise, objective.num_data

    @quick_jit
    def one_point(key, params, data):
        """The variance and the residual mean squares of each basis: `[1 + bases]`."""
        point_key, noise_key = jax.random.split(key)
        n = jax.random.randint(point_key, (), 0, N)
        example = jax.tree.map(lambda y: y[n], data)
        eps = noise.sample(noise_key, (draws,))
        gradients = jax.vmap(jax.grad(objective.loss), (None, 0, None))(params, eps, example)
        g = flat.flatten(gradients, lead=1)
        g = g - g.mean(0)
        squares = [(g**2).sum() / (draws - 1)]  # the mean took one degree of freedom
        for basis in bases.values():
            w = jax.vmap(basis.apply, (None, 0, None, None))(noise, eps, params, example)
            q = jnp.linalg.qr(w - w.mean(0))[0]  # H = 1/K + QQᵀ, without forming it
            residual = g - q @ (q.T @ g)
            freedom = 1 - 1 / draws - (q**2).sum(1)  # 1 − H_kk of each draw, `[K]`
            squares.append(((residual**2).sum(1) / freedom).mean())
        return jnp.stack(squares)

    jax.block_until_ready(one_point(key, params, data))  # compiles, off the clock
    began, table = time.monotonic(), []
    while len(table) < _LEAST or (len(table) < _MOST and time.monotonic() - began < seconds):
        table.append(np.asarray(one_point(jax.random.fold_in(key, len(table)), params, data)))
    variance, *residuals = np.asarray(table, np.float64).T
    if not variance.any():  # no noise: nothing remains
        return {name: Interval(0.0, 0.0, 0.0) for name in bases}
    return {name: ratio_interval(r, variance) for name, r in zip(bases, residuals)}


def _size(objective: Objective, params, data, basis: Basis) -> int:
    """The size D of a basis, by tracing it without computation."""

    def apply(key, params, data):
        example = jax.tree.map(lambda y: y[0], data)
        return basis.apply(objective.noise, objective.noise.sample(key, ()), params, example)

    return jax.eval_shape(apply, jax.random.key(0), params, data).shape[0]
