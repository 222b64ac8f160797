"""Context maps h(y): a vector for each example, on which the coefficients may depend.

The first entry of every h is the constant 1.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Key, PyTree

from quell._errors import invalid
from quell._tree import batch_size

__all__ = ["adaptive", "computed", "raw", "standardised"]

_MOST = 128  # features of one kind
_LEVELS, _INDICATORS = 64, 256  # the most indicators of one column, and of all

Select = Callable[[PyTree[Array]], PyTree[Array]]


class Context(NamedTuple):
    """A context map h(y), fixed after its fit to the data.

    Attributes:
      fit: `fit(key, data)` fits the map to the data, leaves `[N, ...]`, on the host.
      apply: `apply(fitted, params, batch)` gives h `[B, H]`, whose first column is 1.
      moving: whether h looks at the parameters too, so that its mean over the data is not known
        beforehand.
    """

    fit: Callable[[Key[Array, ""], PyTree[Array]], PyTree[Array]]
    apply: Callable[[PyTree[Array], PyTree[Array], PyTree[Array]], Float[Array, "B H"]]
    moving: bool = False


def as_matrix(batch: PyTree[Array], select: Select | None = None) -> Float[Array, "B C"]:
    """Every example as one row: the leaves that `select` keeps, flattened and side by side.

    >>> as_matrix({"x": jnp.ones((5, 2)), "y": jnp.arange(5)}).shape
    (5, 3)
    """
    kept = batch if select is None else jax.vmap(select)(batch)
    B = batch_size(kept)
    leaves = [jnp.asarray(leaf, float).reshape(B, -1) for leaf in jax.tree.leaves(kept)]
    return leaves[0] if len(leaves) == 1 else jnp.concatenate(leaves, axis=1)


class Columns(NamedTuple):
    """The columns of a raw context: magnitudes as they are, categories as indicators.

    Attributes:
      apply: `apply(batch)` gives the columns `[B, C]`.
      width: C.
    """

    apply: Callable[[PyTree[Array]], Float[Array, "B C"]]
    width: int


def categories(data: PyTree[Array], select: Select | None = None) -> Columns:
    """The raw context with an indicator for each level of integer and boolean columns.

    The dtype decides: an integer is a category, a float a magnitude. Each column has indicators of
    its most frequent levels but one, at most 64; if the indicators of all columns are more than
    256, integers count as magnitudes, as the pixels of an image do.
    """
    kept = data if select is None else jax.vmap(select)(data)
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(kept)]
    levels = [
        [_levels(column) for column in np.asarray(leaf).reshape(leaf.shape[0], -1).T]
        if jnp.issubdtype(leaf.dtype, jnp.integer) or leaf.dtype == bool
        else None
        for leaf in leaves
    ]
    if sum(len(found) for columns in levels if columns for found in columns) > _INDICATORS:
        levels = [None] * len(leaves)

    def apply(batch):
        kept = batch if select is None else jax.vmap(select)(batch)
        B, parts = batch_size(kept), []
        for leaf, known in zip(jax.tree.leaves(kept), levels):
            rows = jnp.asarray(leaf).reshape(B, -1)
            if known is None:
                parts.append(rows.astype(float))
            else:
                parts += [
                    (rows[:, i, None] == jnp.asarray(found)).astype(float)
                    for i, found in enumerate(known)
                ]
        return jnp.concatenate(parts, axis=1)

    return Columns(apply, jax.eval_shape(apply, data).shape[1])


def _levels(column: np.ndarray) -> np.ndarray:
    """The most frequent values of a column except the first, at most 64."""
    values, counts = np.unique(column, return_counts=True)
    return values[np.argsort(-counts, kind="stable")][1 : _LEVELS + 1]


def constant() -> Context:
    """The context h(y) = 1: none at all."""
    return Context(
        fit=lambda key, data: (),
        apply=lambda fitted, params, batch: jnp.ones((batch_size(batch), 1)),
    )


def raw(select: Select | None = None) -> Context:
    """The context h(y) = [1, y]: the example unchanged, as in the paper.

    Args:
      select: `select(example)`, the part of an example to look at; all leaves by default.
    """
    return Context(
        fit=lambda key, data: (),
        apply=lambda fitted, params, batch: _with_one(as_matrix(batch, select)),
    )


class Standardised(NamedTuple):
    """Mean and inverse scale of the raw contexts, `[C]` each; zero for constant columns."""

    mean: Float[Array | np.ndarray, " C"]
    inverse_scale: Float[Array | np.ndarray, " C"]


def standardised(select: Select | None = None) -> Context:
    """The context h(y) = [1, (y − mean) / scale]: each column of the example at unit scale.

    Args:
      select: `select(example)`, the part of an example to look at; all leaves by default.
    """

    def apply(fitted: Standardised, params, batch):
        return _with_one((as_matrix(batch, select) - fitted.mean) * fitted.inverse_scale)

    return Context(
        fit=lambda key, data: jax.tree.map(jnp.asarray, _standardise(_rows(data, select))),
        apply=apply,
    )


class RandomFeatures(NamedTuple):
    """Products and random hinges of the standardised context.

    Attributes:
      scaling: mean and scale of the raw contexts.
      left: directions of the first factors of the products, `[C, K]`.
      right: directions of their second factors, `[C, K]`.
      hinges: directions of the hinges, `[C, M]`.
      offsets: the places where the hinges bend, `[M]`.
    """

    scaling: Standardised
    left: Float[Array, "C K"]
    right: Float[Array, "C K"]
    hinges: Float[Array, "C M"]
    offsets: Float[Array, " M"]


def random_features(number: int | None = None, select: Select | None = None) -> Context:
    """The context h(y) = [1, z, zᵢzⱼ, max(Ωᵀz + b, 0)]: curved functions of z, the standardised y.

    Products are taken of all pairs of columns if there are at most 128, otherwise of pairs with a
    column of two values, such as a label: a difference between two classes is a product with their
    indicator. Every hinge bends at one of the rows of the data.

    Args:
      number: number of hinge features M. By default four times the effective rank of a
        squared-exponential kernel (median-distance lengthscale) on a sample of contexts, at most
        128.
      select: `select(example)`, the part of an example to look at; all leaves by default.
    """

    def fit(key, data):
        rows = _rows(data, select)
        scaling = _standardise(rows)
        z = (rows - scaling.mean) * scaling.inverse_scale
        i, j = _pairs(z)
        M = _directions(z) if number is None else number
        direction_key, row_key = jax.random.split(key)
        hinges = jax.random.normal(direction_key, (z.shape[1], M))
        hinges = hinges / jnp.linalg.norm(hinges, axis=0)  # z has unit scale already
        bends = jnp.asarray(z)[jax.random.randint(row_key, (M,), 0, len(z))]
        columns = jnp.eye(z.shape[1])
        return RandomFeatures(
            scaling=jax.tree.map(jnp.asarray, scaling),
            left=columns[:, i],
            right=columns[:, j],
            hinges=hinges,
            offsets=-(bends * hinges.T).sum(1),  # zero at its own row
        )

    def apply(fitted: RandomFeatures, params, batch):
        z = (as_matrix(batch, select) - fitted.scaling.mean) * fitted.scaling.inverse_scale
        K = fitted.left.shape[1]
        # One product with all directions: a factor by itself is a column of z.
        along = z @ jnp.concatenate([fitted.left, fitted.right, fitted.hinges], axis=1)
        products = along[:, :K] * along[:, K : 2 * K]
        hinged = jax.nn.relu(along[:, 2 * K :] + fitted.offsets)
        return _with_one(jnp.concatenate([z, products, hinged], axis=1))

    return Context(fit, apply)


class Distinct(NamedTuple):
    """The distinct contexts of the data except the first, `[K − 1, C]`."""

    table: Float[Array, "K C"]


def distinct(select: Select | None = None) -> Context:
    """The context h(y) = [1, an indicator of each distinct row]: exact if there are few rows.

    For examples that are all categories. An example that is not in the data counts as the row that
    has no indicator.

    Args:
      select: `select(example)`, the part of an example to look at; all leaves by default.
    """

    def apply(fitted: Distinct, params, batch):
        y = as_matrix(batch, select)
        same = (y[:, None, :] == fitted.table[None]).all(-1)
        return _with_one(same.astype(y.dtype))

    return Context(
        fit=lambda key, data: Distinct(jnp.asarray(np.unique(_rows(data, select), axis=0)[1:])),
        apply=apply,
    )


def adaptive(most: int = 64, select: Select | None = None) -> Context:
    """`distinct` if the data has few distinct rows, otherwise `random_features`.

    Args:
      most: the largest number of distinct rows for which `distinct` is used.
      select: `select(example)`, the part of an example to look at; all leaves by default.
    """
    few, many = distinct(select), random_features(select=select)

    def fit(key, data):
        kinds = len(np.unique(_rows(data, select), axis=0))
        return (few if kinds <= most else many).fit(key, data)

    def apply(fitted, params, batch):
        return (few if isinstance(fitted, Distinct) else many).apply(fitted, params, batch)

    return Context(fit, apply)


def computed(
    function: Callable[[PyTree[Array], PyTree[Array]], PyTree[Array]], of: Context | None = None
) -> Context:
    """The context h = [1, q] ⊗ h₀(y), with q a function of the parameters and the example.

    The context follows the parameters at once, while coefficients would have to be learned anew.
    It serves the draws alone: the points need its mean over the data, which changes at every step.

    Args:
      function: `function(params, example)`, for example the residual of the model without noise:
        an array or a pytree of arrays.
      of: h₀; by default 1, so that h = [1, q].
    """

    def apply(fitted, params, batch):
        q = _with_one(as_matrix(jax.vmap(function, (None, 0))(params, batch)))
        if of is None:
            return q
        h = of.apply(fitted, params, batch)
        return (q[:, :, None] * h[:, None, :]).reshape(q.shape[0], -1)

    return Context(
        fit=lambda key, data: () if of is None else of.fit(key, data), apply=apply, moving=True
    )


def mean_over(apply: Callable[[PyTree[Array]], Float[Array, "B H"]], data: PyTree[Array]):
    """h̄, the exact mean of h over the data, a few thousand rows at a time."""
    N = batch_size(data)
    size = min(N, 4096)  # bounds the memory of the features
    whole = N - N % size
    chunks = jax.tree.map(lambda y: y[:whole].reshape(whole // size, size, *y.shape[1:]), data)
    total = jax.lax.map(lambda part: apply(part).sum(0), chunks).sum(0)  # chunk by chunk
    if whole < N:
        total = total + apply(jax.tree.map(lambda y: y[whole:], data)).sum(0)
    return total / N


def _with_one(features: Float[Array, "B M"]) -> Float[Array, "B 1+M"]:
    return jnp.concatenate([jnp.ones((features.shape[0], 1), features.dtype), features], axis=1)


def _rows(data: PyTree[Array], select: Select | None) -> np.ndarray:
    """The data as rows, on the host: maps are fitted before anything is compiled."""
    leaves = jax.tree.leaves(data)
    if any(isinstance(leaf, jax.ShapeDtypeStruct | Tracer) for leaf in leaves):
        raise invalid(
            "data",
            expected="arrays, to which a context map is fitted",
            got="shapes alone" if isinstance(leaves[0], jax.ShapeDtypeStruct) else "traced arrays",
            advice="Call this function outside of jit, with the data itself.",
        )
    return np.asarray(as_matrix(jax.tree.map(jnp.asarray, data), select))


def _standardise(rows: np.ndarray) -> Standardised:
    scale = rows.std(0)
    inverse = np.where(scale > 1e-8, 1 / np.where(scale > 1e-8, scale, 1), 0)  # constant columns: 0
    return Standardised(rows.mean(0), inverse.astype(rows.dtype))


def _pairs(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The pairs of columns i ≤ j to multiply, `[K]` each."""
    two_valued = np.array([len(np.unique(column)) <= 2 for column in z.T], bool)
    i, j = np.triu_indices(z.shape[1])  # i ≤ j, squares included
    useful = ~((i == j) & two_valued[i])  # the square of two values is affine in the column
    if useful.sum() > _MOST:
        useful &= two_valued[i] | two_valued[j]
    if useful.sum() > _MOST:  # still too many: the hinges have to do
        useful[:] = False
    return i[useful], j[useful]


def _directions(z: np.ndarray) -> int:
    """Four times the effective rank of a kernel on the contexts, from 8 to 128."""
    rows = z[:: max(1, len(z) // 512)][:512]  # an eigenvalue problem of 512: a fraction of a second
    square = np.maximum((rows**2).sum(1)[:, None] + (rows**2).sum(1)[None] - 2 * rows @ rows.T, 0)
    apart = square[square > 1e-6 * max(square.max(), 1e-12)]
    width = float(np.median(apart)) if apart.size else 1.0
    spectrum = np.linalg.eigvalsh(np.exp(-square / (2 * width)))
    return int(np.clip(4 * (spectrum > 1e-3 * spectrum[-1]).sum(), 8, _MOST))
