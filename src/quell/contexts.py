"""Context maps h(y): what the coefficients may depend on, as a vector for each example.

The first entry of every h is the constant 1.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Key, PyTree

from quell._errors import invalid
from quell._objective import batch_size

_MOST = 128  # features of one kind


class Context(NamedTuple):
    """h(y), fixed once it is initialised.

    Attributes:
      init: `init(key, context)` fits the map to the contexts of the data, leaves `[N, ...]`.
      apply: `apply(state, context)` gives h `[B, H]`, whose first column is 1.
      moving: whether it looks at the model too, so that it moves with the parameters and has no
        mean over the data that could be known beforehand.
    """

    init: Callable[[Key[Array, ""] | None, PyTree[Array]], PyTree[Array]]
    apply: Callable[[PyTree[Array], PyTree[Array]], Float[Array, "B H"]]
    moving: bool = False


AtZero = Callable[[PyTree[Array], PyTree[Array]], PyTree[Array]]


class WithModel(NamedTuple):
    """What a control variate with `at_zero` knows of its examples.

    Attributes:
      context: y, leaves `[B, ...]`.
      model: q(θ, y), what the model says of them at ε = 0, leaves `[B, ...]`.
    """

    context: PyTree[Array]
    model: PyTree[Array]


def with_model(
    at_zero: AtZero | None, params: PyTree[Array] | None, context: PyTree[Array]
) -> PyTree[Array]:
    """Contexts beside what `at_zero(params, y)` says of each; as they are without it."""
    if at_zero is None:
        return context
    for name, value in (("params", params), ("context", context)):
        if value is None:
            raise invalid(
                name, expected="what at_zero looks at", got="None", advice=f"Pass {name}=... too."
            )
    return WithModel(context, jax.vmap(at_zero, in_axes=(None, 0))(params, context))


def with_model_shapes(
    at_zero: AtZero | None, params: PyTree[Array], context: PyTree[Any]
) -> PyTree[Any]:
    """The contexts of the data beside the shapes of what the model says of them."""
    shapes = jax.eval_shape(lambda params, y: with_model(at_zero, params, y), params, context)
    return context if at_zero is None else WithModel(context, shapes.model)


def fixed_part(context: PyTree[Array]) -> PyTree[Array]:
    """y alone, without what the model says of it."""
    return context.context if isinstance(context, WithModel) else context


def seen_by(map: Context, context: PyTree[Array]) -> PyTree[Array]:
    """The part of a context that a map looks at."""
    return context if map.moving else fixed_part(context)


def as_matrix(context: PyTree[Array]) -> Float[Array, "B C"]:
    """Every example's context as one row: all leaves, raveled and put side by side.

    >>> as_matrix({"x": jnp.ones((5, 2)), "y": jnp.arange(5)}).shape
    (5, 3)
    """
    B = batch_size(context)
    leaves = [jnp.asarray(leaf, float).reshape(B, -1) for leaf in jax.tree.leaves(context)]
    return leaves[0] if len(leaves) == 1 else jnp.concatenate(leaves, axis=1)


def constant() -> Context:
    """h(y) = 1: context-free."""

    def apply(state: Any, context):
        return jnp.ones((batch_size(context), 1))

    return Context(init=lambda key, context: (), apply=apply)


class Standardised(NamedTuple):
    """Mean and inverse scale of the raw contexts, `[C]` each; zero for constant columns."""

    mean: Float[Array | np.ndarray, " C"]
    inverse_scale: Float[Array | np.ndarray, " C"]


def standardised() -> Context:
    """h(y) = [1, (y − mean) / scale]: the raw context, brought to unit scale."""

    def apply(state: Standardised, context):
        return _with_one((as_matrix(context) - state.mean) * state.inverse_scale)

    return Context(
        init=lambda key, context: jax.tree.map(jnp.asarray, _standardise(_rows(context))),
        apply=apply,
    )


class RandomFeatures(NamedTuple):
    """Products and random hinges of the standardised context.

    Attributes:
      scaling: mean and scale of the raw contexts.
      left: directions of the first factors of the products, `[C, K]`.
      right: directions of their second factors, `[C, K]`.
      hinges: directions of the hinges, `[C, M]`.
      offsets: where they bend, `[M]`.
    """

    scaling: Standardised
    left: Float[Array, "C K"]
    right: Float[Array, "C K"]
    hinges: Float[Array, "C M"]
    offsets: Float[Array, " M"]


def random_features(number: int | None = None) -> Context:
    """h(y) = [1, z, zᵢzⱼ, max(Ωᵀz + b, 0)], z the standardised context: curved functions of it.

    Products are taken of all pairs of columns where these are at most 128, otherwise of pairs with
    a column of two values, such as a label: what differs between two classes is a product with
    their indicator. Every hinge bends at one of the contexts of the data.

    Args:
      number: M, how many hinges; by default from the data: four times as many as a squared
        exponential kernel, as wide as the median distance between contexts, has directions in a
        sample of them, at most 128.
    """

    def init(key, context):
        rows = _rows(context)
        scaling = _standardise(rows)
        z = (rows - scaling.mean) * scaling.inverse_scale
        i, j = _pairs(z)
        M = _directions(z) if number is None else number
        direction_key, row_key = jax.random.split(key)
        hinges = jax.random.normal(direction_key, (z.shape[1], M))
        hinges = hinges / jnp.linalg.norm(hinges, axis=0)
        bends = jnp.asarray(z)[jax.random.randint(row_key, (M,), 0, len(z))]
        columns = jnp.eye(z.shape[1])
        return RandomFeatures(
            scaling=jax.tree.map(jnp.asarray, scaling),
            left=columns[:, i],
            right=columns[:, j],
            hinges=hinges,
            offsets=-(bends * hinges.T).sum(1),
        )

    def apply(state: RandomFeatures, context):
        z = (as_matrix(context) - state.scaling.mean) * state.scaling.inverse_scale
        K = state.left.shape[1]
        # One product with all directions: a factor by itself is a column of z.
        along = z @ jnp.concatenate([state.left, state.right, state.hinges], axis=1)
        products = along[:, :K] * along[:, K : 2 * K]
        hinged = jax.nn.relu(along[:, 2 * K :] + state.offsets)
        return _with_one(jnp.concatenate([z, products, hinged], axis=1))

    return Context(init, apply)


class Distinct(NamedTuple):
    """The distinct contexts of the data but one, `[K − 1, C]`."""

    table: Float[Array, "K C"]


def distinct() -> Context:
    """h(y) = [1, which of the data's distinct contexts y is]: exact where they are few.

    For contexts that are all categories. A context that is not in the data counts as the one left
    out.
    """

    def init(key, context):
        return Distinct(jnp.asarray(np.unique(_rows(context), axis=0)[1:]))

    def apply(state: Distinct, context):
        y = as_matrix(context)
        same = (y[:, None, :] == state.table[None]).all(-1)
        return _with_one(same.astype(y.dtype))

    return Context(init, apply)


def adaptive(most: int = 64) -> Context:
    """`distinct` where the data has few distinct contexts, `random_features` otherwise.

    Args:
      most: the most distinct contexts that are told apart one by one.
    """
    few, many = distinct(), random_features()

    def init(key, context):
        kinds = len(np.unique(_rows(context), axis=0))
        return (few if kinds <= most else many).init(key, context)

    def apply(state, context):
        return (few if isinstance(state, Distinct) else many).apply(state, context)

    return Context(init, apply)


def at_zero(of: Context | None = None) -> Context:
    """h = [1, q] ⊗ h₀(y), with q what the model says of an example at ε = 0.

    It follows the parameters at once, where coefficients would have to be learned anew. For the
    draws alone: the points need a mean over the data, which would change with every step. The
    control variate must be told what q is: `control_variate(..., at_zero=objective.at_zero)`.

    Args:
      of: h₀, the standardised context by default; `constant()` for h = [1, q].
    """
    of = standardised() if of is None else of

    def init(key, context):
        if not isinstance(context, WithModel):
            raise invalid(
                "at_zero",
                expected="a function of the parameters and an example, which this map looks at",
                got="None",
                advice="Pass at_zero=objective.at_zero to control_variate.",
            )
        return of.init(key, context.context)

    def apply(state, context: WithModel):
        q, h = _with_one(as_matrix(context.model)), of.apply(state, context.context)
        return (q[:, :, None] * h[:, None, :]).reshape(q.shape[0], -1)

    return Context(init, apply, moving=True)


def mean_over(apply: Callable[[PyTree[Array]], Float[Array, "B H"]], context: PyTree[Array]):
    """h̄, the exact mean over the data, a few thousand rows at a time."""
    N = batch_size(context)
    size = min(N, 4096)
    whole = N - N % size
    chunks = jax.tree.map(lambda y: y[:whole].reshape(whole // size, size, *y.shape[1:]), context)
    total = jax.lax.map(lambda part: apply(part).sum(0), chunks).sum(0)
    if whole < N:
        total = total + apply(jax.tree.map(lambda y: y[whole:], context)).sum(0)
    return total / N


def _with_one(features: Float[Array, "B M"]) -> Float[Array, "B 1+M"]:
    return jnp.concatenate([jnp.ones((features.shape[0], 1), features.dtype), features], axis=1)


def _rows(context: PyTree[Array]) -> np.ndarray:
    """The contexts of the data as rows, on the host: maps are fitted to them before compilation."""
    leaves = jax.tree.leaves(context)
    if any(isinstance(leaf, jax.ShapeDtypeStruct | Tracer) for leaf in leaves):
        raise invalid(
            "context",
            expected="the contexts of the data, to which this context map is fitted",
            got="shapes alone" if isinstance(leaves[0], jax.ShapeDtypeStruct) else "traced arrays",
            advice="Pass the arrays to control_variate, outside of jit.",
        )
    dtype = jnp.result_type(float)
    return np.concatenate([np.asarray(y, dtype).reshape(len(y), -1) for y in leaves], axis=1)


def _standardise(rows: np.ndarray) -> Standardised:
    scale = rows.std(0)
    inverse = np.where(scale > 1e-8, 1 / np.where(scale > 1e-8, scale, 1), 0)
    return Standardised(rows.mean(0), inverse.astype(rows.dtype))


def _pairs(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The pairs of columns i ≤ j to multiply, `[K]` each; the square of two values says nothing."""
    two_valued = np.array([len(np.unique(column)) <= 2 for column in z.T], bool)
    i, j = np.triu_indices(z.shape[1])
    useful = ~((i == j) & two_valued[i])
    if useful.sum() > _MOST:
        useful &= two_valued[i] | two_valued[j]
    if useful.sum() > _MOST:
        useful[:] = False
    return i[useful], j[useful]


def _directions(z: np.ndarray) -> int:
    """Four times the number of directions that a kernel has in the contexts, within bounds."""
    rows = z[:: max(1, len(z) // 512)][:512]
    square = np.maximum((rows**2).sum(1)[:, None] + (rows**2).sum(1)[None] - 2 * rows @ rows.T, 0)
    apart = square[square > 1e-6 * max(square.max(), 1e-12)]
    width = float(np.median(apart)) if apart.size else 1.0
    spectrum = np.linalg.eigvalsh(np.exp(-square / (2 * width)))
    return int(np.clip(4 * (spectrum > 1e-3 * spectrum[-1]).sum(), 8, _MOST))
