"""The transformation that subtracts the correction from the gradient.

G̃ = Ĝ − Θᵀ φ̄,    φ̄ = 1/|B| Σ_b w(ε_b) ⊗ h(y_b)
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from quell import _tree
from quell._arguments import checked, function
from quell._checks import checked_problem
from quell._errors import invalid
from quell._tree import batch_size, row_shapes, shape_leaves
from quell.bases import Basis, linear
from quell.coefficients._types import Coefficients, Sizes
from quell.criteria import Criterion, Evidence, mean_features, squared_difference
from quell.noise import Noise
from quell.objective import Objective

Order = Callable[[PyTree[Array], PyTree[Array]], PyTree[Array]]


def apply_then_learn(before: PyTree[Array], after: PyTree[Array]) -> PyTree[Array]:
    """Correct with the coefficients from before this batch: unbiased."""
    return before


def learn_then_apply(before: PyTree[Array], after: PyTree[Array]) -> PyTree[Array]:
    """Correct with coefficients that have learned from this very batch: the paper's order, biased.

    The coefficients then depend on the draws with which they are multiplied, so the mean of the
    correction is no longer zero. For comparison with the paper only.
    """
    return after


class ControlVariateState(NamedTuple):
    """State of a control variate.

    Attributes:
      coefficients: the learned state of the coefficients.
      skipped: the number of batches that passed uncorrected because they were not finite, `[]`.
    """

    coefficients: PyTree[Array]
    skipped: Int[Array, ""]


class ControlVariate(NamedTuple):
    """A control variate as two pure functions, after its look at the problem.

    Attributes:
      init: `init(key)` gives the state.
      update: `update(gradient, state, params, noise=, batch=, per_example=)` gives the corrected
        gradient and the next state.
    """

    init: Callable[[Key[Array, ""]], ControlVariateState]
    update: Callable[..., tuple[PyTree[Array], ControlVariateState]]


@checked(order=function("order(before, after)"))
def control_variate(
    key: Key[Array, ""],
    objective: Objective,
    params: PyTree[Array],
    data: PyTree[Array],
    coefficients: Coefficients,
    *,
    basis: Basis | None = None,
    criterion: Criterion = squared_difference,
    leaves: _tree.Leaves = None,
    order: Order = apply_then_learn,
) -> optax.GradientTransformationExtraArgs:
    """An optax transformation that subtracts a learned correction of mean zero: G̃ = Ĝ − Θᵀ φ̄.

    Put the transformation first in an `optax.chain`: it must see the gradient that its draws made.
    Clipping, accumulation or momentum change the gradient, and the correction would be learned for
    the wrong target.

    `update(grads, state, params, noise=..., batch=..., per_example=...)` takes

    - noise: the draws that made the gradient, leaves `[S, B, ...]`, `[B, ...]` for one draw each,
      `[S, 1, ...]` or `[...]` if the batch shares its draws;
    - batch: the examples that made the gradient, leaves `[B, ...]`;
    - per_example: the gradient of each example, leaves `[R, ...]` (the first R ≤ B), scaled
      so that their mean over the batch is the noisy part of the gradient, if the criterion needs
      it. `Objective.per_example_gradients` gives them.

    Args:
      key: the key for coefficients that are initialised at random.
      objective: L, whose noise is drawn.
      params: θ, of which only shapes matter here.
      data: leaves `[N, ...]`, to which the coefficients are fitted.
      coefficients: Θ and h, and how they are learned, such as `quell.recognition_network()`.
      basis: w, functions of the noise of mean zero; `bases.linear()` by default.
      criterion: V, by which Θ is learned.
      leaves: the leaves to control: None for all, a predicate on the path such as
        `lambda path: path.endswith("mean")`, or a pytree of bools. The rest pass untouched.
      order: `apply_then_learn`, or `learn_then_apply`, which is biased.

    Returns:
      An `optax.GradientTransformationExtraArgs`. A batch that is not finite passes through
      uncorrected, teaches nothing, and is counted in `state.skipped`.
    """
    params, data = checked_problem(key, objective, params, data, loss=False)
    fit_key = jax.random.fold_in(key, 2)  # apart from the two halves that coefficients split off
    control = started_control(
        fit_key, objective, params, data, coefficients, basis, criterion, leaves, order
    )
    return optax.GradientTransformationExtraArgs(lambda params: control.init(key), control.update)


def started_control(
    key: Key[Array, ""],
    objective: Objective,
    params: PyTree[Array],
    data: PyTree[Array],
    coefficients: Coefficients,
    basis: Basis | None,
    criterion: Criterion,
    leaves: _tree.Leaves,
    order: Order,
) -> ControlVariate:
    """The control variate after its look at the problem; the arguments of `control_variate`."""
    basis = linear() if basis is None else basis
    spec, expected = objective.noise, row_shapes(data)
    sizes = _sizes(basis, spec, params, data, leaves)
    init_coefficients = coefficients.start(key, sizes, params, data)

    def init(key):
        return ControlVariateState(init_coefficients(key), jnp.zeros((), jnp.int32))

    def update(updates, state, params=None, *, noise=None, batch=None, per_example=None, **_):
        _check_batch(expected, batch)
        flat = _tree.flattener(leaves, updates)
        total = flat.flatten(updates)
        B = batch_size(batch)
        w, shared = basis_means(basis, spec, noise, params, batch)
        w = w.astype(total.dtype)  # draws must not change the dtype of gradients
        examples = _flat_examples(criterion, flat, per_example, B)

        def correction(learned):
            h = coefficients.context_features(learned, params, batch, B)
            phi = mean_features(w, h)
            return coefficients.predict(learned, phi)

        before = state.coefficients
        unlearned = correction(before)
        finite = _tree.all_finite(updates, examples, unlearned)  # one NaN would stay in Θ for good
        evidence = Evidence(w, params, batch, total, examples, flat.sizes, shared, finite)
        after = coefficients.learn(before, criterion, evidence)
        # In the unbiased order nothing of this batch is in `used`, so that E[Θᵀφ̄] = 0.
        used = order(before, after)
        subtracted = unlearned if used is before else correction(used)  # not twice
        controlled = total - jnp.where(finite, subtracted, 0)
        state = ControlVariateState(coefficients=after, skipped=state.skipped + ~finite)
        return flat.replace(updates, controlled), state

    return ControlVariate(init, update)


def _sizes(basis: Basis, spec: Noise, params, data, leaves: _tree.Leaves) -> Sizes:
    """The sizes that coefficients must fit, from tracing the basis and the leaves alone."""
    flat = _tree.flattener(leaves, params)
    drawn = jax.eval_shape(lambda: spec.sample(jax.random.key(0), (1,)))  # noise may be integers
    draw = jax.tree.map(lambda e: jax.ShapeDtypeStruct(e.shape[1:], e.dtype), drawn)
    example = jax.tree.map(lambda y: jax.ShapeDtypeStruct(y.shape[1:], y.dtype), data)
    w = jax.eval_shape(lambda *args: basis.apply(spec, *args), draw, params, example)
    return Sizes(w.size, flat.sizes, jax.eval_shape(flat.flatten, params).dtype)


def basis_means(
    basis: Basis, spec: Noise, noise: PyTree[Array], params: PyTree[Array], batch: PyTree[Array]
) -> tuple[Float[Array, "B D"], bool]:
    """The basis for each example, averaged over its draws; and whether the batch shares them."""
    noise = _with_leading_axes(spec, noise)
    drawn, B = jax.tree.leaves(noise)[0].shape[1], batch_size(batch)
    if drawn not in (1, B):
        raise invalid(
            "noise",
            expected=f"draws for the {B} examples of the batch, or one shared by them",
            got=f"draws for {drawn}",
            advice="Pass the draws and the examples of the same batch.",
        )
    shared = drawn != B  # a batch of one shares with nobody
    if shared:
        noise = jax.tree.map(lambda e: jnp.broadcast_to(e, (e.shape[0], B, *e.shape[2:])), noise)
    one_draw = jax.vmap(lambda *args: basis.apply(spec, *args), in_axes=(0, None, 0))
    w = jax.vmap(one_draw, in_axes=(0, None, None))(noise, params, batch)
    return w.mean(0), shared


def _with_leading_axes(spec: Noise, noise: PyTree[Array]) -> PyTree[Array]:
    """Draws with leaves `[S, B or 1, ...]`, from leaves of this shape, `[B, ...]` or `[...]`."""
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
            advice="Pass noise=... to update: the draws that made the gradient.",
        )
    add = 2 - len(leading.pop())  # absent axes get length 1
    return treedef.unflatten([jnp.reshape(e, (1,) * add + jnp.shape(e)) for e in leaves])


def _check_batch(expected: PyTree[Any], batch: PyTree[Array]) -> None:
    """Refuse a batch that is missing, or whose rows are unlike the rows of the data."""
    got = row_shapes(batch)
    if got != expected:
        raise invalid(
            "batch",
            expected=f"rows of shape {expected}, as in the data given to control_variate",
            got="None" if batch is None else f"rows of shape {got}",
            advice="Pass batch=... to update: the examples that made the gradient.",
        )


def _flat_examples(
    criterion: Criterion, flat: _tree.Flattener, per_example: PyTree[Array], B: int
) -> Float[Array, "R P"] | None:
    """The gradients of the first R examples as rows, checked."""
    if per_example is None:
        if criterion.per_example:
            raise invalid(
                "per_example",
                expected="the gradient of each example, which this criterion needs",
                got="None",
                advice="Pass per_example=objective.per_example_gradients(params, noise, batch).",
            )
        return None
    examples = flat.flatten(per_example, lead=1)
    if examples.shape[1] != flat.size or examples.shape[0] > B:
        raise invalid(
            "per_example",
            expected=f"at most {B} rows of {flat.size} entries",
            got=examples.shape,
            advice="Give the leaves of the gradient one leading axis over examples.",
        )
    return examples
