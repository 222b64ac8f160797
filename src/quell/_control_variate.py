"""The transformation: where the correction is subtracted from the gradient.

G̃ = Ĝ − Θᵀ φ̄,    φ̄ = 1/|B| Σ_b w(ε_b) ⊗ h(y_b)
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from quell import _leaves
from quell._automatic import Automatic
from quell._errors import invalid
from quell._features import Evidence, mean_features
from quell._objective import batch_size
from quell.bases import Basis
from quell.coefficients import Coefficients, Sizes
from quell.contexts import AtZero, with_model, with_model_shapes
from quell.criteria import Criterion, squared_difference
from quell.noise import Noise, is_shape, shape_leaves

Order = Callable[[PyTree[Array], PyTree[Array]], PyTree[Array]]


def apply_then_learn(before: PyTree[Array], after: PyTree[Array]) -> PyTree[Array]:
    """Correct with the coefficients from before this batch was seen: unbiased."""
    return before


def learn_then_apply(before: PyTree[Array], after: PyTree[Array]) -> PyTree[Array]:
    """Correct with coefficients that have learned from this very batch: the paper's order.

    Biased: the coefficients then depend on the draws they are multiplied with, so the correction
    is no longer of mean zero. For comparison with the paper only.
    """
    return after


class ControlVariateState(NamedTuple):
    """State of a control variate.

    Attributes:
      coefficients: the learned state of the coefficients.
      skipped: how many batches were passed through because something in them was not finite, `[]`.
    """

    coefficients: PyTree[Array]
    skipped: Int[Array, ""]


class ControlVariate(optax.GradientTransformationExtraArgs):
    """An optax transformation that also says what it needs to be fed.

    Attributes:
      init: `init(params)`; `init(params, key=...)` draws from that key instead of the one given
        to `control_variate`.
      noise: the distribution of the draws.
      criterion: what the coefficients are learned by; it may need per-example gradients.
      leaves: which leaves are controlled.
      context: the shape of one example's context, a pytree; None without one.
    """

    init: Callable[..., Any]
    noise: Noise
    criterion: Criterion
    leaves: _leaves.Leaves
    context: PyTree[Any]


def control_variate(
    basis: Basis,
    coefficients: Coefficients,
    criterion: Criterion = squared_difference,
    *,
    noise: Noise,
    context: PyTree[Any] = None,
    key: Key[Array, ""] | None = None,
    leaves: _leaves.Leaves = None,
    order: Order = apply_then_learn,
    points: bool = False,
    at_zero: AtZero | None = None,
) -> ControlVariate:
    """Subtract a learned correction of mean zero from the gradient: G̃ = Ĝ − Θᵀ φ̄.

    Put it first in an `optax.chain`: it must see the gradient of the batch whose draws it is
    given. After clipping, accumulation or momentum the gradient is no longer that, and the
    correction would be learned for the wrong target.

    `update(grads, state, params, noise=..., context=..., per_example=...)` takes

    - noise: the draws that made the gradient, leaves `[S, B, ...]`, `[B, ...]` for one draw each,
      `[S, 1, ...]` or `[...]` where the batch shares its draws;
    - context: the contexts of the batch, leaves `[B, ...]`, where the coefficients look at them;
    - per_example: the gradient of each example, leaves `[R, ...]` (R ≤ B: the first ones), scaled
      so that their mean over the batch is the noisy part of the gradient, where the criterion
      needs it. `Objective.per_example_gradients` gives them.

    Args:
      basis: w, functions of the noise of mean zero.
      coefficients: Θ and h, and how they are learned.
      criterion: what they are learned by.
      noise: the distribution of the draws, such as `objective.noise`.
      context: the contexts of the data, leaves `[N, ...]`; shapes alone
        (`jax.ShapeDtypeStruct`) are enough unless a context map is fitted to them.
      key: for coefficients that are initialised at random.
      leaves: which leaves are controlled: None for all, a predicate on the path such as
        `lambda path: path.endswith("mean")`, or a pytree of bools, such as
        `estimators.noisy_leaves` measures. The rest pass untouched.
      order: `apply_then_learn`, or `learn_then_apply`, which is biased.
      points: whether to control the sub-sampling noise too, by h(y_b) − h̄ with h̄ the mean over
        the contexts given here, which must then be those of all the data.
      at_zero: `at_zero(params, context)`, what the model says of one example without noise, such
        as `objective.at_zero` where the contexts are the batch itself. The coefficients may then
        depend on it: `contexts.at_zero` and recognition networks do. For the draws alone.

    Returns:
      An `optax.GradientTransformationExtraArgs`. A batch that is not finite passes through
      uncorrected, teaches nothing, and is counted in `state.skipped`. Under
      `optax.inject_hyperparams`, name `key`, `context`, `leaves` and `order` in `static_args`.
    """
    if coefficients.random and key is None:
        raise invalid(
            "key",
            expected="a key, since these coefficients are initialised at random",
            got="None",
            advice="Pass key=jax.random.key(seed).",
        )

    if isinstance(leaves, Automatic):
        raise invalid(
            "leaves",
            expected="a choice of leaves, since a transformation has no objective to measure",
            got="automatic",
            advice="Pass leaves=quell.estimators.noisy_leaves(key, objective, params, data), or "
            "use quell.estimators.closed_form, which measures by itself.",
        )

    point_features = coefficients.point_features if points else None
    if points and point_features is None:
        raise invalid(
            "points",
            expected="False with these coefficients, whose features have no known mean",
            got=True,
            advice="Use coefficients.least_squares to control the points, with a context map that "
            "does not look at the model.",
        )
    if points and not _is_data(context):
        raise invalid(
            "context",
            expected="the contexts of all the data, whose mean the points are controlled by",
            got="None" if context is None else "shapes alone",
            advice="Pass the arrays; for a stream, whose mean is not known, use points=False.",
        )

    def init(params, *, key=key):
        flat = _leaves.flattener(leaves, params)
        one = None if context is None else jax.tree.map(_one_context, context)
        seen = with_model_shapes(at_zero, params, context)
        draw = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s, float), noise.shape, is_leaf=is_shape)
        w = jax.eval_shape(lambda *args: basis.apply(noise, *args), draw, params, one)
        dtype = jax.eval_shape(flat.flatten, params).dtype
        sizes = Sizes(w.size, flat.sizes, seen, dtype, criterion.per_example)
        return ControlVariateState(
            coefficients=coefficients.init(key, sizes),
            skipped=jnp.zeros((), jnp.int32),
        )

    def update(updates, state, params=None, *, noise=None, context=None, per_example=None, **_):
        _check_context(expected_context, context)
        flat = _leaves.flattener(leaves, updates)
        total = flat.flatten(updates)
        w, shared = _basis_means(basis, spec, noise, params, context, per_example)
        w = w.astype(total.dtype)
        rows = _rows(criterion, flat, per_example, w.shape[0])
        seen = with_model(at_zero, params, context)

        def correction(learned):
            h = coefficients.context_features(learned, seen, w.shape[0])
            phi = mean_features(w, h)
            if point_features is not None:
                phi = jnp.concatenate([phi, point_features(learned, seen).mean(0)])
            return coefficients.predict(learned, phi)

        before = state.coefficients
        unlearned = correction(before)
        finite = _leaves.all_finite(updates, rows, unlearned)
        evidence = Evidence(w, seen, total, rows, flat.sizes, points, shared, finite)
        after = coefficients.learn(before, criterion, evidence)
        used = order(before, after)
        subtracted = unlearned if used is before else correction(used)
        controlled = total - jnp.where(finite, subtracted, 0)
        return flat.replace(updates, controlled), ControlVariateState(
            coefficients=after, skipped=state.skipped + ~finite
        )

    spec, expected_context = noise, context
    transformation = ControlVariate(init, update)  # pyright: ignore[reportArgumentType]
    transformation.noise = noise
    transformation.criterion = criterion
    transformation.leaves = leaves
    transformation.context = row_shapes(expected_context)
    return transformation


def _basis_means(
    basis: Basis,
    spec: Noise,
    noise: PyTree[Array],
    params: PyTree[Array],
    context: PyTree[Array],
    per_example: PyTree[Array],
) -> tuple[Float[Array, "B D"], bool]:
    """The basis for each example, averaged over its draws; and whether the batch shares them."""
    noise = _with_leading_axes(spec, noise)
    drawn = jax.tree.leaves(noise)[0].shape[1]
    B = drawn
    if context is not None:
        B = batch_size(context)
    elif drawn == 1 and per_example is not None:  # a shared draw: only the rows tell the examples
        B = batch_size(per_example)
    if drawn not in (1, B):
        raise invalid(
            "noise",
            expected=f"draws for the {B} examples of the context, or one shared by them",
            got=f"draws for {drawn}",
            advice="Pass the draws and the contexts of the same batch.",
        )
    shared = drawn != B
    if shared:
        noise = jax.tree.map(lambda e: jnp.broadcast_to(e, (e.shape[0], B, *e.shape[2:])), noise)
    in_axes = (0, None, None if context is None else 0)
    one_draw = jax.vmap(lambda *args: basis.apply(spec, *args), in_axes=in_axes)
    w = jax.vmap(one_draw, in_axes=(0, None, None))(noise, params, context)
    return w.mean(0), shared


def _with_leading_axes(spec: Noise, noise: PyTree[Array]) -> PyTree[Array]:
    """Draws with leaves `[S, B or 1, ...]`, from that, `[B, ...]` or `[...]`."""
    shapes = shape_leaves(spec.shape)
    leaves, treedef = jax.tree.flatten(noise)
    leading = {jnp.shape(e)[: jnp.ndim(e) - len(s)] for e, s in zip(leaves, shapes)}
    good = (
        len(leaves) == len(shapes)
        and len(leading) == 1
        and all(jnp.shape(e)[jnp.ndim(e) - len(s) :] == s for e, s in zip(leaves, shapes))
        and len(next(iter(leading))) <= 2
    )
    if not good:
        raise invalid(
            "noise",
            expected=f"draws of shape {shapes} with leading axes [S, B], [B] or none",
            got=[jnp.shape(e) for e in leaves],
            advice="Pass the draws that made the gradient, of the noise given to control_variate.",
        )
    add = 2 - len(leading.pop())
    return treedef.unflatten([jnp.reshape(e, (1,) * add + jnp.shape(e)) for e in leaves])


def _check_context(expected: PyTree[Any], context: PyTree[Array]) -> None:
    """Refuse contexts that are missing or not of the shape announced."""
    if expected is None:
        return
    announced, came = row_shapes(expected), row_shapes(context)
    if announced != came:
        raise invalid(
            "context",
            expected=f"rows of shape {announced}, as given to control_variate",
            got="None" if context is None else f"rows of shape {came}",
            advice="Pass context=... of the batch to update, with the same leaves and widths.",
        )


def _is_data(context: PyTree[Any]) -> bool:
    """Whether there are contexts, and not of their shapes alone."""
    leaves = jax.tree.leaves(context)
    return bool(leaves) and not any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)


def row_shapes(context: PyTree[Any]) -> PyTree[Any]:
    """The shape of one row of each leaf; arrays, or shapes alone."""
    return jax.tree.map(lambda leaf: tuple(leaf.shape[1:]), context, is_leaf=_has_shape)


def _has_shape(node: Any) -> bool:
    return hasattr(node, "shape")


def _rows(
    criterion: Criterion, flat: _leaves.Flattener, per_example: PyTree[Array], B: int
) -> Float[Array, "R P"] | None:
    """The gradients of the first R examples, checked."""
    if per_example is None:
        if criterion.per_example:
            raise invalid(
                "per_example",
                expected="the gradient of each example, which this criterion needs",
                got="None",
                advice="Pass per_example=objective.per_example_gradients(params, noise, batch).",
            )
        return None
    rows = flat.flatten(per_example, lead=1)
    if rows.shape[1] != flat.size or rows.shape[0] > B:
        raise invalid(
            "per_example",
            expected=f"at most {B} rows of {flat.size} entries",
            got=rows.shape,
            advice="Its leaves are those of the gradient with one leading axis over examples.",
        )
    return rows


def _one_context(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape[1:], jax.dtypes.canonicalize_dtype(leaf.dtype))
