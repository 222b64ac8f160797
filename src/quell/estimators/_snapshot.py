"""The snapshot: features of every example from the model itself, and a regression on them.

The context of an example is h = [z, s], with z its standardised raw context and s = ∂f(θ̃, ε₀)/∂θ
the gradient of its own loss at past parameters θ̃ and without noise, for small leaves alone. One
pass over the data gives the features of all points, and so their mean h̄ exactly. Some gradients,
drawn as the estimator draws them, are regressed on the features.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from quell import _tree
from quell._jit import quick_jit
from quell._tree import batch_size, take
from quell.bases import Basis
from quell.contexts import Select, columns
from quell.control_variate import basis_means
from quell.criteria import example_features, mean_features
from quell.estimators._regression import regressed
from quell.estimators._types import Sampling
from quell.objective import Objective

_FEATURES = 320  # the most features of one kind: a regression of a few thousand rows bears as many
_TABLE = 2**26  # the most numbers of a table of features that is kept
_COEFFICIENTS = 2**18  # the most coefficients by default: a product beside a gradient
_GLANCE = 256  # examples that show which leaves tell them apart
_NEARBY = 0.1  # the distance of other parameters at which they are asked
_CHUNK = 2**20  # the most numbers of features computed at once
_ROWS = 512, 4096  # rows of a regression, at least and at most
_ROWS_PER_FEATURE = 4
_GRADIENTS = 2**23  # the most numbers in the gradients of these rows
_LONGEST = 2**25  # the most rows of a pass: with more, the raw context alone remains
_PASS = 4  # examples of a pass, at full width and without noise, for the price of one in a batch
_PRODUCT = 50  # multiplications of a regression, by parameters, for the price of one gradient


class Snapshot(NamedTuple):
    """Features of the examples at past parameters, and the coefficients fitted to them.

    Attributes:
      params: θ̃.
      mean: h̄, the mean of the features over the data, `[F]`.
      table: h of every example, `[N, F]`; `[0, F]` if the table would be too large.
      low, high: the range of h in the rows of the regression, to which h is clipped, `[F]`.
      theta: Θ `[F + D·(C + 1), P]`, for the points and then for the draws.
    """

    params: PyTree[Array]
    mean: Float[Array, " F"]
    table: Float[Array, "N F"]
    low: Float[Array, " F"]
    high: Float[Array, " F"]
    theta: Float[Array, "G P"]


class Plan(NamedTuple):
    """The sizes of a snapshot, and its functions.

    Attributes:
      empty: `empty(params)` gives a snapshot that corrects nothing.
      retake: `retake(key, objective, params, data, snapshot)` gives the snapshot at these
        parameters in place of the old one, and the mean square of the correction of one example,
        `[P]`.
      mean_features: `mean_features(snapshot, noise, params, examples, indices)` gives φ̄ `[G]`, the
        mean of [h − h̄, w ⊗ [1, z]] over a batch.
      flat: the controlled leaves as one vector `[P]`.
      evaluations: the cost of taking a snapshot, in gradients of one example and one draw.
      passes: whether a snapshot takes a pass over the data, or has the raw context alone.
    """

    empty: Callable[[PyTree[Array]], Snapshot]
    retake: Callable[..., tuple[Snapshot, Float[Array, " P"]]]
    mean_features: Callable[..., Float[Array, " G"]]
    flat: _tree.Flattener
    evaluations: float
    passes: bool


def plan(
    objective: Objective,
    params: PyTree[Array],
    data: PyTree[Array],
    sampling: Sampling,
    basis: Basis,
    leaves: _tree.Leaves,
    select: Select | None,
) -> Plan | None:
    """Lay out the snapshots of a problem, from a look at the data; None if nothing can be learned.

    That is so if there is no feature, or if even the smallest leaf has too many coefficients.
    """
    N = batch_size(data)
    raw = columns(data, select)
    C = raw.width if raw.width <= _FEATURES else 0  # wider contexts cost more than they explain
    centre = _centre(objective)
    picked = None
    if N <= _LONGEST:
        telling = telling_leaves(objective, params, data, centre)
        picked = _tree.flattener(telling, params) if any(jax.tree.leaves(telling)) else None
    F = C + (picked.size if picked else 0)
    D = _basis_size(basis, objective, params, data)
    G = F + D * (C + 1)
    if leaves is None:
        leaves = smallest(params, _COEFFICIENTS // max(1, G))
        if not G or not any(jax.tree.leaves(leaves)):
            return None
    flat = _tree.flattener(leaves, params)
    P, dtype = flat.size, jax.eval_shape(flat.flatten, params).dtype
    kept = N if picked is not None and N * F <= _TABLE else 0
    R = max(2, min(int(np.clip(_ROWS_PER_FEATURE * G, *_ROWS)), _GRADIENTS // max(1, P)))

    def all_features(params, examples):
        """h = [z, s] of the objective that was planned for."""
        parts = [raw.apply(examples)] if C else []
        if picked is not None:
            slopes = jax.vmap(jax.grad(objective.loss), (None, None, 0))
            parts.append(picked.flatten(slopes(params, centre, examples), lead=1))
        return jnp.concatenate([part.astype(dtype) for part in parts], axis=1)

    def features(snapshot: Snapshot, examples, indices):
        if kept:
            return snapshot.table.at[indices].get(mode="promise_in_bounds")
        return jnp.clip(all_features(snapshot.params, examples), snapshot.low, snapshot.high)

    def products(h, drawn, params, examples, contract):
        """w(ε) ⊗ [1, z], for each example or contracted over the batch."""
        w = basis_means(basis, objective.noise, drawn, params, examples)[0].astype(dtype)
        return contract(w, jnp.concatenate([jnp.ones((h.shape[0], 1), dtype), h[:, :C]], 1))

    def batch_mean(snapshot, drawn, params, examples, indices):
        h = features(snapshot, examples, indices)
        points = h.mean(0) - snapshot.mean
        if not D:
            return points
        return jnp.concatenate([points, products(h, drawn, params, examples, mean_features)])

    def empty(params):
        zeros, ends = jnp.zeros(F, dtype), jnp.full(F, jnp.inf, dtype)
        table, theta = jnp.zeros((kept, F), dtype), jnp.zeros((G, P), dtype)
        return Snapshot(params, zeros, table, -ends, ends, theta)

    def retake(key, objective: Objective, params, data, old: Snapshot):
        index_key, draw_key = jax.random.split(key)
        # All rows in turn if they are few, so that each of them is learned from.
        indices = jnp.arange(R) % N if N <= R else jax.random.randint(index_key, (R,), 0, N)
        examples = take(data, indices)
        fresh, h = old._replace(params=params), all_features(params, examples)
        if picked is not None:  # z alone has mean zero, and is not worth a table
            # No rare row may lie where the regression has seen nothing: of heavy tails it would
            # make a correction that is as rare as it is large.
            fresh = fresh._replace(low=h.min(0), high=h.max(0))
            table, mean = _passed(
                lambda rows: jnp.clip(all_features(params, rows), fresh.low, fresh.high),
                data,
                old.table,
            )
            fresh = fresh._replace(table=table, mean=mean)
        drawn = sampling.draw(draw_key, objective, R)
        rows = objective.per_example_gradients(params, drawn, examples, leaves=leaves)
        phi = [h, products(h, drawn, params, examples, example_features)] if D else [h]
        theta, square = regressed(jnp.concatenate(phi, 1), flat.flatten(rows, lead=1))
        return fresh._replace(theta=theta), square

    S = jax.tree.leaves(jax.eval_shape(lambda k: sampling.draw(k, objective, 1), _KEY))[0].shape[0]
    evaluations = (N / _PASS if picked else 0) + 2 * R * S + R * G * (G / P + 2) / _PRODUCT
    return Plan(empty, retake, batch_mean, flat, evaluations, picked is not None)


def telling_leaves(
    objective: Objective, params: PyTree[Array], data: PyTree[Array], centre: PyTree[Array]
) -> PyTree[bool]:
    """The leaves that a snapshot differentiates, a tree of bools like params.

    The smallest leaves, up to so many entries in all, whose gradient without noise differs between
    examples: that of a scale is mostly zero. Parameters nearby are asked too, since at a start of
    zeros a layer below another has no gradient yet.
    """
    spread = np.linspace(0, batch_size(data) - 1, _GLANCE).astype(int)  # rows may be sorted

    @quick_jit
    def differ(params, few):
        slopes = jax.vmap(jax.grad(objective.loss), (None, None, 0))(params, centre, few)
        return jax.tree.map(lambda s: ((s != s[:1]) & jnp.isfinite(s)).any(), slopes)

    few = jax.tree.map(lambda leaf: np.asarray(leaf)[spread], data)
    rng = np.random.default_rng(0)
    nearby = jax.tree.map(
        lambda p: (np.asarray(p) + _NEARBY * rng.normal(size=np.shape(p))).astype(p.dtype), params
    )
    here, there = differ(params, few), differ(nearby, few)
    return smallest(params, _FEATURES, jax.tree.map(lambda a, b: bool(a | b), here, there))


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


_KEY = jax.eval_shape(lambda: jax.random.key(0))


def _basis_size(basis: Basis, objective: Objective, params, data) -> int:
    """D, the number of functions of the noise."""
    drawn = jax.eval_shape(lambda key: objective.sample_noise(key, 1), _KEY)
    draw, example = (
        jax.tree.map(lambda leaf, k=k: jax.ShapeDtypeStruct(leaf.shape[k:], leaf.dtype), tree)
        for k, tree in ((2, drawn), (1, data))
    )
    apply = partial(basis.apply, objective.noise)
    return math.prod(jax.eval_shape(apply, draw, params, example).shape)


def _centre(objective: Objective) -> PyTree[Array]:
    """ε₀, the middle of the noise: halfway between a draw and its mirror image, or a mean.

    Noise that has neither, such as integers, is held at one draw: any fixed value will do.
    """
    noise = objective.noise

    @quick_jit
    def middle(key):
        drawn = noise.sample(key, (256,))
        one = jax.tree.map(lambda e: e[0], drawn)
        if noise.reflect is not None:
            return jax.tree.map(lambda e, m: (e + m) / 2, one, noise.reflect(one))
        inexact = partial(jnp.issubdtype, jnp.inexact)
        return jax.tree.map(lambda e: e.mean(0) if inexact(e.dtype) else e[0], drawn)

    return middle(jax.random.key(0))


def _passed(
    features: Callable[[Any], Array], data: PyTree[Array], table: Float[Array, "N F"]
) -> tuple[Float[Array, "N F"], Float[Array, " F"]]:
    """One pass over the data: the features of all rows, written into the table, and their mean.

    A table without rows stays as it is. Rows are taken in chunks that stay in the cache; the last
    chunk overlaps the one before it.
    """
    N, keep = batch_size(data), table.shape[0] > 0
    size = int(min(N, max(1, _CHUNK // table.shape[1])))

    def chunk(i, carried):
        table, total = carried
        start = jnp.minimum(i * size, N - size)
        rows = jax.tree.map(lambda y: jax.lax.dynamic_slice_in_dim(y, start, size), data)
        h = features(rows)
        new = (start + jnp.arange(size) >= i * size)[:, None]  # not counted by the chunk before
        table = jax.lax.dynamic_update_slice_in_dim(table, h, start, 0) if keep else table
        return table, total + jnp.where(new, h, 0).sum(0)

    start = table, jnp.zeros(table.shape[1], table.dtype)
    table, total = jax.lax.fori_loop(0, -(-N // size), chunk, start)
    return table, total / N
