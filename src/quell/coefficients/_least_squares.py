"""Coefficients by least squares on running sums, judged on examples not yet learned from.

Gradients g are regressed on x = [w(ε) ⊗ h(y), h(y)]: the first part quiets the draws, the second is
the intercept, without which the differences between points would be noise in the regression.

A step only puts its examples into a block. When the block is full, Θ is judged on it before
learning from it, then solved anew. Each leaf uses its best multiplier in [0, 1]: zero until there
is evidence.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float, Int, PyTree

from quell._arguments import checked
from quell._checks import check_positive, check_whole
from quell._tree import leaf_sums, spread
from quell.coefficients._types import Coefficients, Sizes
from quell.contexts import Context, standardised
from quell.criteria import Criterion, Evidence, best_multiplier, example_features, mean_features

_SLOWER = 4  # factor by which refreshes become rarer after the first sixteen
_REMEMBERED = 0.75  # share of the scores that a block keeps: they remember about four


class Block(NamedTuple):
    """Examples not yet learned from.

    Attributes:
      x: regressors, `[rows, F]`.
      g: gradients, `[rows, P]`.
      filled: the number of rows so far, `[]`.
    """

    x: Float[Array, "rows F"]
    g: Float[Array, "rows P"]
    filled: Int[Array, ""]


class Scores(NamedTuple):
    """Scores of corrections t on examples not yet learned from, with forgetting.

    Attributes:
      gt: Σ (g − ḡ)(t − t̄), `[leaves]`.
      tt: Σ (t − t̄)², `[leaves]`.
      gg: Σ (g − ḡ)², `[leaves]`.
      n: the number of examples, `[]`.
    """

    gt: Float[Array, " leaves"]
    tt: Float[Array, " leaves"]
    gg: Float[Array, " leaves"]
    n: Float[Array, ""]


class LeastSquares(NamedTuple):
    """State of coefficients by least squares.

    Attributes:
      context: the state of the context map.
      block: the examples since the last solution.
      A: Σ x xᵀ with forgetting, `[F, F]`.
      R: Σ x gᵀ with forgetting, `[F, P]`.
      solution: Θ of the last solution, `[F, P]`.
      scores: the scores of past solutions.
      theta: Θ in use: the solution times the gate of each leaf, `[F, P]`.
      step: steps so far, `[]`.
    """

    context: PyTree[Array]
    block: Block
    A: Float[Array, "F F"]
    R: Float[Array, "F P"]
    solution: Float[Array, "F P"]
    scores: Scores
    theta: Float[Array, "F P"]
    step: Int[Array, ""]


@checked()
def least_squares(
    context: Context | None = None,
    *,
    examples: int = 10,
    every: int = 16,
    memory: float = 8.0,
    ridge: float = 1e-3,
) -> Coefficients:
    """Solve for the coefficients of the draws: no learning rate, safe from the first step.

    With `criteria.partial_gradients` the coefficients learn from the gradients of a few examples of
    each batch, otherwise from the gradient of the batch; they apply to all examples. For control of
    the points too, use `quell.closed_form()`.

    Args:
      context: h(y), the context of an example; `contexts.standardised()` by default, since it is
        multiplied with every function of the basis.
      examples: the largest number of examples of a batch to learn from.
      every: steps between solutions at first; after 16 solutions, four times as many.
      memory: the reach of the sums, in solutions.
      ridge: the ridge, relative to the mean square of the features.
    """
    context = standardised() if context is None else context
    check_whole("examples", examples, 1)
    check_whole("every", every, 1)
    check_positive("memory", memory, 8.0)
    check_positive("ridge", ridge, 1e-3)

    def start(key, sizes: Sizes, params, data):
        fitted = context.fit(key, data)
        H = jax.eval_shape(context.apply, fitted, params, data).shape[1]
        P, F, rows = sizes.outputs, (sizes.basis + 1) * H, _SLOWER * every * examples

        def zeros(*shape):
            return jnp.zeros(shape, sizes.dtype)

        leaf = zeros(len(sizes.leaves))
        return lambda key: LeastSquares(
            context=fitted,
            block=Block(zeros(rows, F), zeros(rows, P), jnp.zeros((), jnp.int32)),
            A=zeros(F, F),
            R=zeros(F, P),
            solution=zeros(F, P),
            scores=Scores(leaf, leaf, leaf, zeros()),
            theta=zeros(F, P),
            step=jnp.zeros((), jnp.int32),
        )

    def context_features(state, params, batch, B):
        return context.apply(state.context, params, batch).astype(state.theta.dtype)

    def predict(state, phi):
        return phi @ state.theta[: phi.shape[-1]]

    def learn(state: LeastSquares, criterion, evidence):
        # Features of the whole batch, as in the correction: the compiler computes them once.
        h = context_features(state, evidence.params, evidence.batch, evidence.w.shape[0])
        x, g = _regressors(criterion, evidence, h, examples)
        block = _add(state.block, x, g, evidence.finite)
        step = state.step + evidence.finite
        period = jnp.where(step <= 16 * every, every, _SLOWER * every)  # quick at first, then cheap
        full = evidence.finite & (step % period == 0)
        state = state._replace(block=block, step=step)
        # A loop of one turn or none works in place, where a branch would copy all of the sums.
        return jax.lax.while_loop(
            lambda carried: carried[0],
            lambda carried: (jnp.zeros_like(full), solved(carried[1], evidence)),
            (full, state),
        )[1]

    def solved(state: LeastSquares, evidence: Evidence):
        draws = evidence.w.shape[1] * state.theta.shape[0] // (evidence.w.shape[1] + 1)
        x, g = _rows(state.block)
        # Judged before learning, or scores would flatter.
        judged = _judge(x[:, :draws] @ state.solution[:draws], g, state.block, evidence.leaves)
        scores = jax.tree.map(lambda a, b: _REMEMBERED * a + b, state.scores, judged)
        gates = best_multiplier(scores.gt, scores.tt, scores.gg, scores.n)
        forget = jnp.exp(-1 / jnp.asarray(memory, x.dtype))
        A, R = forget * state.A + x.T @ x, forget * state.R + x.T @ g
        solution = _solve(A, R, ridge)
        return state._replace(
            block=state.block._replace(filled=jnp.zeros_like(state.block.filled)),
            A=A,
            R=R,
            solution=solution,
            scores=scores,
            theta=solution * spread(gates, evidence.leaves),
        )

    return Coefficients(start, context_features, predict, learn)


def _regressors(
    criterion: Criterion, evidence: Evidence, h: Float[Array, "B H"], examples: int
) -> tuple[Float[Array, "R F"], Float[Array, "R P"]]:
    """Regressors [w ⊗ h, h] and gradients of the first examples, or of the batch as one row."""
    w, g = evidence.w, evidence.per_example
    if criterion.per_example and g is not None:
        R = min(examples, g.shape[0])
        return jnp.concatenate([example_features(w[:R], h[:R]), h[:R]], axis=1), g[:R]
    return jnp.concatenate([mean_features(w, h), h.mean(0)])[None], evidence.total[None]


def _add(block: Block, x, g, finite) -> Block:
    """The block with these rows; rows that are not finite will be overwritten by the next."""
    put = jax.lax.dynamic_update_slice_in_dim
    return Block(
        x=put(block.x, x, block.filled, axis=0),
        g=put(block.g, g, block.filled, axis=0),
        filled=block.filled + finite * x.shape[0],
    )


def _rows(block: Block) -> tuple[Float[Array, "rows F"], Float[Array, "rows P"]]:
    kept = (jnp.arange(block.x.shape[0]) < block.filled)[:, None]  # older rows lie behind
    return jnp.where(kept, block.x, 0), jnp.where(kept, block.g, 0)


def _solve(A: Float[Array, "F F"], R: Float[Array, "F P"], ridge: float) -> Float[Array, "F P"]:
    """The solution Θ of (A + r mean(diag A) I) Θ = R."""
    F, dtype = A.shape[-1], jnp.promote_types(A.dtype, jnp.float32)  # no solvers for less
    size = jnp.trace(A) / F + jnp.finfo(dtype).tiny  # A may be zero
    factor = jnp.linalg.cholesky(A.astype(dtype) + ridge * size * jnp.eye(F, dtype=dtype))
    theta = cho_solve((factor, True), R.astype(dtype))
    return jnp.where(jnp.isfinite(theta).all(), theta, 0).astype(R.dtype)  # else no correction


def _judge(
    t: Float[Array, "rows P"], g: Float[Array, "rows P"], block: Block, leaves: tuple[int, ...]
) -> Scores:
    """Centred sums of products of gradients g and corrections t over the rows of a block."""
    n = jnp.maximum(block.filled, 1).astype(t.dtype)
    sum_t, sum_g = t.sum(0), g.sum(0)
    gt = (t * g).sum(0) - sum_t * sum_g / n
    tt, gg = (t**2).sum(0) - sum_t**2 / n, (g**2).sum(0) - sum_g**2 / n
    return Scores(leaf_sums(gt, leaves), leaf_sums(tt, leaves), leaf_sums(gg, leaves), n)
