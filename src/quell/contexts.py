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

from quell._arguments import checked
from quell._checks import check_traces
from quell._errors import invalid
from quell._tree import batch_size

__all__ = ["computed", "raw", "standardised"]

_LEVELS, _INDICATORS = 64, 256  # the most indicators of one column, and of all

Select = Callable[[PyTree[Array]], PyTree[Array]]


class Context(NamedTuple):
    """A context map h(y), fixed after its fit to the data.

    Attributes:
      fit: `fit(key, data)` fits the map to the data, leaves `[N, ...]`, on the host.
      apply: `apply(fitted, params, batch)` gives h `[B, H]`, whose first column is 1.
    """

    fit: Callable[[Key[Array, ""], PyTree[Array]], PyTree[Array]]
    apply: Callable[[PyTree[Array], PyTree[Array], PyTree[Array]], Float[Array, "B H"]]


def as_matrix(batch: PyTree[Array], select: Select | None = None) -> Float[Array, "B C"]:
    """Every example as one row: the leaves that `select` keeps, flattened and side by side.

    >>> as_matrix({"x": jnp.ones((5, 2)), "y": jnp.arange(5)}).shape
    (5, 3)
    """
    kept = _selected(batch, select)
    B = batch_size(kept)
    leaves = [jnp.asarray(leaf, float).reshape(B, -1) for leaf in jax.tree.leaves(kept)]
    return leaves[0] if len(leaves) == 1 else jnp.concatenate(leaves, axis=1)


def _selected(batch: PyTree[Array], select: Select | None) -> PyTree[Array]:
    """The parts of the examples that `select` keeps."""
    if select is None:
        return batch
    each = jax.vmap(select)
    check_traces("select", "select(example)", each, batch)
    return each(batch)


class Columns(NamedTuple):
    """The columns of a raw context: standardised magnitudes, and indicators of categories.

    Attributes:
      apply: `apply(batch)` gives the columns `[B, C]`, of mean zero and unit scale.
      width: C.
    """

    apply: Callable[[PyTree[Array]], Float[Array, "B C"]]
    width: int


def columns(data: PyTree[Array], select: Select | None = None) -> Columns:
    """The standardised raw context, with an indicator for each level of a category.

    The dtype decides: an integer is a category, a float a magnitude. Each column has indicators of
    its most frequent levels but one, at most 64; if the indicators of all columns are more than
    256, integers count as magnitudes, as the pixels of an image do.
    """
    kept = _selected(data, select)
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(kept)]
    levels = [
        [_levels(column) for column in leaf.reshape(leaf.shape[0], -1).T]
        if np.issubdtype(leaf.dtype, np.integer) or leaf.dtype == bool
        else None
        for leaf in leaves
    ]
    if sum(len(found) for leaf in levels if leaf for found in leaf) > _INDICATORS:
        levels = [None] * len(leaves)

    def expand(leaf, known, xp):
        rows = leaf.reshape(leaf.shape[0], -1)
        if known is None:
            return rows.astype(float)
        found = [rows[:, i, None] == level for i, level in enumerate(known)]
        return xp.concatenate(found, axis=1).astype(float)

    expanded = np.concatenate([expand(*pair, np) for pair in zip(leaves, levels)], axis=1)
    scaling = _standardise(expanded)

    def apply(batch):
        kept = _selected(batch, select)
        parts = [
            expand(jnp.asarray(leaf), known, jnp)
            for leaf, known in zip(jax.tree.leaves(kept), levels)
        ]
        return (jnp.concatenate(parts, axis=1) - scaling.mean) * scaling.inverse_scale

    return Columns(apply, expanded.shape[1])


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


@checked()
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


@checked()
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


@checked()
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
        each = jax.vmap(function, (None, 0))
        check_traces("function", "function(params, example)", each, params, batch)
        q = _with_one(as_matrix(each(params, batch)))
        if of is None:
            return q
        h = of.apply(fitted, params, batch)
        return (q[:, :, None] * h[:, None, :]).reshape(q.shape[0], -1)

    return Context(fit=lambda key, data: () if of is None else of.fit(key, data), apply=apply)


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
