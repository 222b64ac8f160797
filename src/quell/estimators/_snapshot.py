"""The snapshot: features of every example from the model itself, and a regression on them.

The context of an example is h = [z, s], with z its standardised raw context and s = ∂f(θ̃, ε₀)/∂θ
the gradient of its own loss at past parameters θ̃ and without noise, for small leaves alone. One
pass over the data gives the features of all points, and so their mean h̄ exactly. A few thousand
gradients, drawn as the estimator draws them, are regressed on the features.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float, PyTree

from quell import _tree
from quell._tree import batch_size, take
from quell.bases import Basis
from quell.contexts import Select, categories
from quell.control_variate import basis_means
from quell.criteria import best_multiplier, example_features, mean_features
from quell.estimators._types import Sampling
from quell.objective import Objective

_FEATURES = 320  # the most features of one kind: a regression of a few thousand rows bears as many
_TABLE = 2**26  # the most numbers of a table of features that is kept
_COEFFICIENTS = 2**18  # the most coefficients by default: a product beside a gradient
_GLANCE = 256  # examples that show which leaves tell them apart
_CHUNK = 2**22  # the most numbers of features computed at once
_ROWS = 512, 4096  # rows of a regression, at least and at most
_ROWS_PER_FEATURE = 8
_GRADIENTS = 2**23  # the most numbers in the gradients of these rows
_RIDGE = 1e-4  # relative to the mean square of the features
_ROUNDING = 1e-5  # noise below this share of a gradient's size is rounding


class Snapshot(NamedTuple):
    """Features of the examples at past parameters, and the coefficients fitted to them.

    Attributes:
      params: θ̃.
      mean: the mean of the raw features over the data, `[F]`.
      inverse_scale: one over their standard deviations, zero for constant features, `[F]`.
      table: h − h̄ of every example, `[N, F]`; `[0, F]` if the table would be too large.
      theta: Θ `[F + D·(C + 1), P]`, for the points and then for the draws.
    """

    params: PyTree[Array]
    mean: Float[Array, " F"]
    inverse_scale: Float[Array, " F"]
    table: Float[Array, "N F"]
    theta: Float[Array, "G P"]


class Plan(NamedTuple):
    """The sizes of a snapshot, and its functions.

    Attributes:
      empty: `empty(params)` gives a snapshot that corrects nothing.
      take: `take(key, objective, params, data)` gives the snapshot at these parameters, and the
        mean square of the correction of one example, summed over each leaf, `[leaves]`.
      mean_features: `mean_features(snapshot, noise, params, examples, indices)` gives φ̄ `[G]`, the
        mean of [h − h̄, w ⊗ [1, z]] over a batch.
      flat: the controlled leaves as one vector `[P]`.
      evaluations: the cost of taking a snapshot, in gradients of one example and one draw.
    """

    empty: Callable[[PyTree[Array]], Snapshot]
    take: Callable[..., tuple[Snapshot, Float[Array, " leaves"]]]
    mean_features: Callable[..., Float[Array, " G"]]
    flat: _tree.Flattener
    evaluations: float


def telling_leaves(
    objective: Objective, params: PyTree[Array], data: PyTree[Array], centre: PyTree[Array]
) -> PyTree[bool]:
    """The leaves that a snapshot differentiates, a tree of bools like params.

    The smallest leaves, up to so many entries in all, whose gradient without noise differs between
    examples: that of a scale is mostly zero.
    """
    spread = np.linspace(0, batch_size(data) - 1, _GLANCE).astype(int)  # rows may be sorted
    few = take(data, jnp.asarray(spread))
    slopes = jax.jit(jax.vmap(jax.grad(objective.loss), (None, None, 0)))(params, centre, few)
    differ = jax.tree.map(lambda s: bool((s != s[:1]).any()), slopes)
    return smallest(params, _FEATURES, differ)


def smallest(params: PyTree[Array], most: int, among: PyTree[bool] | None = None) -> PyTree[bool]:
    """The smallest leaves, up to so many entries in all, a tree of bools like params.

    >>> smallest({"mean": jnp.zeros(3), "scale": jnp.zeros(6), "shift": jnp.zeros(2)}, 7)
    {'mean': True, 'scale': False, 'shift': True}
    """
    sizes = [int(jnp.size(leaf)) for leaf in jax.tree.leaves(params)]
    allowed = [True] * len(sizes) if among is None else jax.tree.leaves(among)
    picks = [False] * len(sizes)
    for i in sorted(range(len(sizes)), key=sizes.__getitem__):
        picks[i] = allowed[i] and sizes[i] <= most
        most -= sizes[i] if picks[i] else 0
    return jax.tree.unflatten(jax.tree.structure(params), picks)


def plan(
    objective: Objective,
    params: PyTree[Array],
    data: PyTree[Array],
    sampling: Sampling,
    basis: Basis,
    leaves: _tree.Leaves,
    select: Select | None,
) -> Plan:
    """Lay out the snapshots of a problem: sizes and functions, from a look at the data."""
    N, noise = batch_size(data), objective.noise
    raw = categories(data, select)
    C = raw.width if raw.width <= _FEATURES else 0  # wider contexts cost more than they explain
    centre = _centre(objective)
    telling = telling_leaves(objective, params, data, centre)
    picked = _tree.flattener(telling, params) if any(jax.tree.leaves(telling)) else None
    F = C + (picked.size if picked else 0)
    example = jax.tree.map(lambda y: jax.ShapeDtypeStruct(y.shape[1:], y.dtype), data)
    D = basis_size(basis, objective, params, example)
    G = F + D * (C + 1)
    leaves = smallest(params, _COEFFICIENTS // max(1, G)) if leaves is None else leaves
    flat = _tree.flattener(leaves, params)
    P, dtype = flat.size, jax.eval_shape(flat.flatten, params).dtype
    kept = N if N * F <= _TABLE else 0
    rows = int(np.clip(_ROWS_PER_FEATURE * G, *_ROWS))
    rows = max(2, min(rows, _GRADIENTS // max(1, P)))

    def raw_features(params, examples):
        """[z, s] before they are centred and scaled, of the objective that was planned for."""

        parts = [raw.apply(examples)] if C else []
        if picked is not None:
            slopes = jax.vmap(jax.grad(objective.loss), (None, None, 0))
            parts.append(picked.flatten(slopes(params, centre, examples), lead=1))
        return jnp.concatenate([part.astype(dtype) for part in parts], axis=1)

    def features(snapshot: Snapshot, examples, indices):
        if kept:
            return snapshot.table.at[indices].get(mode="promise_in_bounds")
        return (raw_features(snapshot.params, examples) - snapshot.mean) * snapshot.inverse_scale

    def products(h, drawn, params, examples, contract):
        """w(ε) ⊗ [1, z], for each example or contracted over the batch."""
        w = basis_means(basis, noise, drawn, params, examples)[0].astype(dtype)
        return contract(w, jnp.concatenate([jnp.ones((h.shape[0], 1), dtype), h[:, :C]], 1))

    def batch_mean(snapshot, drawn, params, examples, indices):
        h = features(snapshot, examples, indices)
        if not D:
            return h.mean(0)
        return jnp.concatenate([h.mean(0), products(h, drawn, params, examples, mean_features)])

    def empty(params):
        zeros = jnp.zeros(F, dtype)
        return Snapshot(params, zeros, zeros, jnp.zeros((kept, F), dtype), jnp.zeros((G, P), dtype))

    def take_snapshot(key, objective: Objective, params, data):
        index_key, draw_key = jax.random.split(key)
        every = _by_chunks(lambda part: raw_features(params, part), data, F)
        if kept:
            table = every(lambda part: part)
            mean = table.mean(0)
            table, scale = table - mean, jnp.sqrt(((table - mean) ** 2).mean(0))
        else:
            mean = every(lambda part: part.sum(0)).sum(0) / N
            scale = jnp.sqrt(every(lambda part: ((part - mean) ** 2).sum(0)).sum(0) / N)
            table = jnp.zeros((0, F), dtype)
        # A feature that is not finite, or constant up to rounding, says nothing.
        usable = jnp.isfinite(scale) & (scale > _ROUNDING * jnp.abs(mean) + 1e-30)
        inverse = jnp.where(usable, 1 / jnp.where(usable, scale, 1), 0)
        mean = jnp.where(usable, mean, 0)
        table = jnp.where(usable, table, 0) * inverse
        table = table - table.mean(0) if kept else table  # the rounding of the first mean
        fresh = Snapshot(params, mean, inverse, table, jnp.zeros((G, P), dtype))
        indices = jax.random.randint(index_key, (rows,), 0, N)
        examples = take(data, indices)
        drawn = sampling.draw(draw_key, objective, rows)
        g = flat.flatten(
            objective.per_example_gradients(params, drawn, examples, leaves=leaves), lead=1
        )
        h = features(fresh, examples, indices)
        phi = [h, products(h, drawn, params, examples, example_features)] if D else [h]
        theta, size = _regressed(jnp.concatenate(phi, 1), g)
        return fresh._replace(theta=theta), _tree.leaf_sums(size, flat.sizes)

    draws = jax.tree.leaves(jax.eval_shape(lambda k: sampling.draw(k, objective, 1), _KEY))[0]
    evaluations = N / 4 + 2 * rows * draws.shape[0]  # a pass over all points runs at full width
    return Plan(empty, take_snapshot, batch_mean, flat, evaluations)


_KEY = jax.eval_shape(lambda: jax.random.key(0))


def basis_size(basis: Basis, objective: Objective, params, example) -> int:
    """D, the number of functions of the noise."""
    draw = jax.eval_shape(
        lambda key: jax.tree.map(lambda e: e[0], objective.noise.sample(key, (1,))), _KEY
    )
    return math.prod(
        jax.eval_shape(lambda *a: basis.apply(objective.noise, *a), draw, params, example).shape
    )


def _centre(objective: Objective) -> PyTree[Array]:
    """ε₀, the middle of the noise: halfway between a draw and its mirror image, or a mean.

    Noise that has neither, such as integers, is held at one draw: any fixed value will do.
    """
    noise = objective.noise
    drawn = noise.sample(jax.random.key(0), (256,))
    if noise.reflect is not None:
        one = jax.tree.map(lambda e: e[0], drawn)
        return jax.tree.map(lambda e, m: (e + m) / 2, one, noise.reflect(one))
    return jax.tree.map(
        lambda e: e.mean(0) if jnp.issubdtype(e.dtype, jnp.floating) else e[0], drawn
    )


def _by_chunks(features: Callable, data: PyTree[Array], F: int) -> Callable:
    """`every(reduce)`: the features of all rows, reduced chunk by chunk to bound the memory."""
    N = batch_size(data)
    size = int(min(N, max(1, _CHUNK // max(1, F))))
    whole = N - N % size

    def every(reduce):
        if size == N:
            found = reduce(features(data))
            return found if found.ndim == 2 else found[None]
        parts = jax.tree.map(lambda y: y[:whole].reshape(whole // size, size, *y.shape[1:]), data)
        found = jax.lax.map(lambda part: reduce(features(part)), parts)
        found = found.reshape(-1, found.shape[-1])
        if whole < N:
            rest = reduce(features(jax.tree.map(lambda y: y[whole:], data)))
            found = jnp.concatenate([found, rest.reshape(-1, found.shape[-1])])
        return found

    return every


def _regressed(
    x: Float[Array, "R G"], g: Float[Array, "R P"]
) -> tuple[Float[Array, "G P"], Float[Array, " P"]]:
    """Θ by least squares with an intercept, gated for each parameter on rows that were held out.

    Each half of the rows gives coefficients that the other half judges; their mean is used.

    Returns:
      Θ, and the mean square of the correction of one example.
    """
    half = x.shape[0] // 2
    xs, gs = (v[: 2 * half].reshape(2, half, -1) for v in (x, g))
    xs, gs = xs - xs.mean(1, keepdims=True), gs - gs.mean(1, keepdims=True)
    rounding = (_ROUNDING * jnp.abs(g).max(0)) ** 2

    def fitted(i):
        theta = _solve(xs[i], gs[i])
        t, d = xs[1 - i] @ theta, gs[1 - i]
        gt, tt, gg = (d * t).sum(0), (t**2).sum(0), (d**2).sum(0)
        gate = best_multiplier(gt, tt, gg, jnp.asarray(half, x.dtype))
        return jnp.where(gg > half * rounding, gate, 0) * theta  # else there is nothing to remove

    # One after the other: two batched factorisations at once can wait for each other's threads.
    theta = jax.lax.map(fitted, jnp.arange(2)).mean(0)
    theta = jnp.where(jnp.isfinite(theta).all(), theta, 0)  # no correction rather than a wrong one
    return theta, ((x @ theta) ** 2).mean(0)


def _solve(x: Float[Array, "R G"], g: Float[Array, "R P"]) -> Float[Array, "G P"]:
    """The ridge regression of g on x."""
    A = x.T @ x
    ridge = _RIDGE * jnp.trace(A) / A.shape[0] + jnp.finfo(A.dtype).tiny
    factor = jnp.linalg.cholesky(A + ridge * jnp.eye(A.shape[0], dtype=A.dtype))
    return cho_solve((factor, True), x.T @ g)
