"""Pytrees: leaves by name, chosen leaves as one flat vector, the length of a batch."""

from collections.abc import Callable
from itertools import accumulate
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PyTree

from quell._errors import invalid

Leaves = PyTree[bool] | Callable[[str], bool] | None


def path_name(path: tuple[Any, ...]) -> str:
    """The path of a leaf as text: `{"a": {"b": x}}` has the leaf `a/b`."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def paths(tree: PyTree[Any]) -> list[str]:
    """The path of every leaf, in leaf order."""
    return [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def named_leaves(tree: PyTree[Any]) -> list[tuple[str, Any]]:
    """Every leaf with its path in Python's notation, such as `['x']`."""
    with_paths = jax.tree_util.tree_leaves_with_path(tree)
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in with_paths]


def batch_size(batch: PyTree[Array]) -> int:
    """The common length of the leaves: B for a batch, N for the data."""
    lengths = {jnp.shape(leaf)[0] if jnp.ndim(leaf) else -1 for leaf in jax.tree.leaves(batch)}
    if len(lengths) != 1 or -1 in lengths:
        raise invalid(
            "batch",
            expected="leaves with one common leading length",
            got=[jnp.shape(leaf) for leaf in jax.tree.leaves(batch)],
            advice="Give every leaf of the batch one row per example.",
        )
    return lengths.pop()


def take(data: PyTree[Array], indices: Int[Array, "*shape"]) -> PyTree[Array]:
    """The rows of the data at indices that are known to lie within its length."""
    # the promise saves a clamp of every index
    return jax.tree.map(lambda leaf: leaf.at[indices].get(mode="promise_in_bounds"), data)


def row_shapes(tree: PyTree[Any]) -> PyTree[Any]:
    """The shape of one row of each leaf, for leaves that are arrays or shapes alone."""
    return jax.tree.map(
        lambda leaf: tuple(leaf.shape[1:]), tree, is_leaf=lambda node: hasattr(node, "shape")
    )


def is_shape(node: Any) -> bool:
    """Whether a node of a pytree of shapes is one shape."""
    return isinstance(node, int) or (
        isinstance(node, tuple) and all(isinstance(n, int) for n in node)
    )


def shape_leaves(shape: PyTree[Any]) -> list[tuple[int, ...]]:
    """The shapes in a pytree of shapes, in leaf order."""
    return jax.tree.leaves(shape, is_leaf=is_shape)


def number_of_parameters(params: PyTree[Array]) -> int:
    """P, the number of entries of all leaves."""
    return sum(int(jnp.size(leaf)) for leaf in jax.tree.leaves(params))


def strongly_typed(tree: PyTree[Any]) -> PyTree[Array]:
    """The tree with dtypes that arithmetic does not change, so that one compilation is enough."""

    def strong(leaf):
        leaf = jnp.asarray(leaf)
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return leaf  # keys have no weak type, and cannot be converted
        return lax.convert_element_type(leaf, leaf.dtype)  # drops the weak type of Python numbers

    return jax.tree.map(strong, tree)


def typed_like(tree: PyTree[Array], example: PyTree[Array]) -> PyTree[Array]:
    """The tree with the dtypes of another one: wider data or draws widen what is made of them."""

    def cast(leaf, like):
        same = jnp.result_type(leaf) == jnp.result_type(like)
        return leaf if same else jnp.asarray(leaf).astype(jnp.result_type(like))

    return jax.tree.map(cast, tree, example)


def where(condition: Bool[Array, ""], a: PyTree[Array], b: PyTree[Array]) -> PyTree[Array]:
    """The tree `a` if the condition holds, otherwise the tree `b`."""
    # A leaf that both share needs no choice, and no copy.
    return jax.tree.map(lambda x, y: x if x is y else jnp.where(condition, x, y), a, b)


def chosen(leaves: Leaves, params: PyTree[Any]) -> list[bool]:
    """For each leaf of `params`, in leaf order, whether `leaves` chooses it.

    `leaves` is None (all), a predicate on the path, or a pytree of bools that is a prefix of
    `params`.

    >>> chosen(lambda path: path.endswith("mean"), {"mean": 0.0, "scale": 1.0})
    [True, False]
    >>> chosen({"mean": False, "scale": True}, {"mean": 0.0, "scale": 1.0})
    [False, True]
    """
    if leaves is None:
        return [True] * len(jax.tree.leaves(params))
    if callable(leaves):
        try:
            picked = [bool(leaves(path)) for path in paths(params)]
        except TypeError as error:
            raise invalid(
                "leaves",
                expected="a function of a leaf's path, such as 'a/mean'",
                got=f"an error: {error}",
                advice="For example lambda path: path.endswith('mean').",
            ) from error
    else:
        try:
            mask = jax.tree.map(
                lambda keep, part: jax.tree.map(lambda _: bool(keep), part), leaves, params
            )
        except ValueError as error:
            raise invalid(
                "leaves",
                expected=f"a mask over the leaves {paths(params)}",
                got=f"a mask over {paths(leaves)}",
                advice="Name only leaves that the parameters have, and every one of them.",
            ) from error
        picked = jax.tree.leaves(mask)
    if not any(picked):
        raise invalid(
            "leaves",
            expected=f"at least one of {paths(params)}",
            got="no leaf",
            advice="Choose a leaf to control, or leave the control variate out.",
        )
    return picked


class Flattener(NamedTuple):
    """The chosen leaves of a pytree as one vector of length P, and back.

    Attributes:
      flatten: a pytree to `[P]`; with `lead=1`, leaves `[R, ...]` to `[R, P]`.
      replace: `replace(tree, vector)` puts `[P]` back in place of the chosen leaves.
      sizes: the length of each chosen leaf.
      names: the path of each chosen leaf.
    """

    flatten: Callable[..., Float[Array, "... P"]]
    replace: Callable[[PyTree[Array], Float[Array, " P"]], PyTree[Array]]
    sizes: tuple[int, ...]
    names: tuple[str, ...]

    @property
    def size(self) -> int:
        """P."""
        return sum(self.sizes)


def flattener(leaves: Leaves, params: PyTree[Array]) -> Flattener:
    """The functions that flatten the leaves of `params` chosen by `leaves`, and put them back."""
    picks = chosen(leaves, params)
    known = jax.tree_util.tree_leaves_with_path(params)
    names = tuple(path_name(path) for (path, _), pick in zip(known, picks) if pick)
    shapes = [jnp.shape(leaf) for (_, leaf), pick in zip(known, picks) if pick]
    sizes = tuple(int(jnp.size(leaf)) for (_, leaf), pick in zip(known, picks) if pick)

    def flatten(tree, lead=0):
        # by path rather than position: gradients may have None, or nothing, in other leaves
        by_path = {path_name(p): leaf for p, leaf in jax.tree_util.tree_leaves_with_path(tree)}
        missing = [name for name in names if name not in by_path]
        if missing:
            raise invalid(
                "per_example" if lead else "updates",
                expected=f"the leaves {list(names)}",
                got=f"no leaf called {missing}",
                advice="Give a gradient for every controlled leaf.",
            )
        parts = [by_path[name] for name in names]
        return jnp.concatenate([jnp.reshape(p, (*p.shape[:lead], -1)) for p in parts], axis=-1)

    def replace(tree, vector):
        ends = list(accumulate(sizes))[:-1]
        parts = dict(zip(names, zip(jnp.split(vector, ends), shapes)))

        def swap(path, leaf):
            name = path_name(path)
            if name not in parts:
                return leaf
            part, shape = parts[name]
            return part.reshape(shape).astype(leaf.dtype)  # leaves keep their precision

        return jax.tree_util.tree_map_with_path(swap, tree)

    return Flattener(flatten, replace, sizes, names)


def leaf_means(vector: Float[Array, " P"], sizes: tuple[int, ...]) -> Float[Array, " P"]:
    """Every entry replaced by the mean over its leaf."""
    ends = accumulate(sizes)
    parts = [vector[end - size : end] for end, size in zip(ends, sizes)]
    return jnp.concatenate([jnp.broadcast_to(part.mean(), part.shape) for part in parts])


def all_finite(*trees: PyTree[Array]) -> Bool[Array, ""]:
    """Whether the sum of all squares is finite, so that second moments of their entries are too."""
    squares = [jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(trees)]
    return jnp.isfinite(sum(squares, start=jnp.zeros(())))


def finite(tree: PyTree[Array]) -> Bool[Array, ""]:
    """Whether every entry is finite."""
    entries = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)]
    return jnp.stack(entries).all() if entries else jnp.ones((), bool)


def norm(tree: PyTree[Array]) -> Float[Array, ""]:
    """The Euclidean norm of all entries, in 32 bits at least: squares overflow half precision."""

    def square(leaf):
        leaf = jnp.asarray(leaf)
        leaf = leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))
        return (jnp.abs(leaf) ** 2).sum()

    return jnp.sqrt(sum(map(square, jax.tree.leaves(tree)), start=jnp.zeros(())))


def leaf_sums(values: Float[Array, "... P"], sizes: tuple[int, ...]) -> Float[Array, "... leaves"]:
    """The sum over the entries of each leaf."""
    ends = accumulate(sizes)
    parts = [values[..., end - size : end].sum(-1) for end, size in zip(ends, sizes)]
    return jnp.stack(parts, axis=-1)


def spread(values: Float[Array, "... leaves"], sizes: tuple[int, ...]) -> Float[Array, "... P"]:
    """One value per leaf, repeated for every entry of the leaf."""
    return jnp.concatenate(
        [
            jnp.broadcast_to(values[..., i, None], (*values.shape[:-1], size))
            for i, size in enumerate(sizes)
        ],
        axis=-1,
    )
