"""Coefficients in closed form: least squares on running sums, judged on rows not yet learned from.

Gradients g are regressed on x = [w(ε) ⊗ h(y), h'(y)]: the first part quiets the draws, the second
is the intercept, which quiets the points when it is used as h'(y) − h̄'.

A step only puts its rows into a block. When the block is full, every candidate (a memory and a
ridge) is judged on it before learning from it; then all candidates are solved anew. Each leaf uses
the candidate that did best, scaled by its best multiplier in [0, 1]: zero until there is evidence.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float, Int, PyTree

from quell._checks import check_whole
from quell._errors import invalid
from quell._tree import leaf_sums, spread
from quell.coefficients._types import Coefficients, Sizes
from quell.contexts import Context, adaptive, mean_over, standardised
from quell.criteria import Criterion, Evidence, best_multiplier, example_features, mean_features

_SLOWER = 4  # factor by which refreshes become rarer after the first sixteen
_SMALL = 32  # size up to which LAPACK solves a system on one thread


class Block(NamedTuple):
    """Rows not yet learned from.

    Attributes:
      x: regressors, `[rows, F]`.
      g: gradients, `[rows, P]`.
      filled: the number of rows so far, `[]`.
    """

    x: Float[Array, "rows F"]
    g: Float[Array, "rows P"]
    filled: Int[Array, ""]


class Sums(NamedTuple):
    """Sums over rows.

    Attributes:
      A: Σ x xᵀ, `[F, F]`.
      R: Σ x gᵀ, `[F, P]`.
      S: Σ g², `[P]`.
    """

    A: Float[Array, "F F"]
    R: Float[Array, "F P"]
    S: Float[Array, " P"]


class Scores(NamedTuple):
    """Scores of the candidates' corrections t on rows not yet learned from, with forgetting.

    Attributes:
      gt: Σ (g − ḡ)(t − t̄), `[C, leaves]`.
      tt: Σ (t − t̄)², `[C, leaves]`.
      gg: Σ (g − ḡ)², `[leaves]`.
      n: the number of rows, `[]`.
    """

    gt: Float[Array, "C leaves"]
    tt: Float[Array, "C leaves"]
    gg: Float[Array, " leaves"]
    n: Float[Array, ""]


class LeastSquares(NamedTuple):
    """State of closed-form coefficients.

    Attributes:
      contexts: states of the context maps, for the draws and for the points.
      mean: h̄', the mean of the points' map over the data, `[H']`.
      block: the rows since the last refresh.
      memory: sums with forgetting, A `[J, F, F]` and R `[J, F, P]`.
      candidates: Θ of every candidate, `[C, F, P]`.
      scores: the scores of the candidates.
      theta: Θ in use: for each leaf its best candidate times its gate, `[F, P]`.
      step: steps so far, `[]`.
    """

    contexts: tuple[PyTree[Array], PyTree[Array]]
    mean: Float[Array, " H2"]
    block: Block
    memory: tuple[Float[Array, "J F F"], Float[Array, "J F P"]]
    candidates: Float[Array, "C F P"]
    scores: Scores
    theta: Float[Array, "F P"]
    step: Int[Array, ""]


def least_squares(
    points: Context | None = None,
    draws: Context | None = None,
    *,
    examples: int = 10,
    every: int = 16,
    memories: Sequence[float] = (4.0, 32.0),
    ridges: Sequence[float] = (1e-4, 1e-2),
) -> Coefficients:
    """Solve for the coefficients of draws and points: no learning rate, safe from the first step.

    With `criteria.partial_gradients` the coefficients learn from the gradients of a few examples of
    each batch, otherwise from the gradient of the batch; they apply to all examples.

    Args:
      points: h'(y), the context for the intercept and the points; `contexts.adaptive()` by default.
        A map that looks at the parameters, such as `contexts.computed(...)`, can be the intercept
        but cannot control the points.
      draws: h(y), the context for the draws; `contexts.standardised()` by default, since it is
        multiplied with every function of the basis.
      examples: the largest number of examples of a batch to learn from.
      every: steps between refreshes at first; after 16 refreshes, four times as many.
      memories: candidates for the reach of the sums, in refreshes; one number fixes it.
      ridges: candidates for the ridge, relative to the mean square of the features; one number
        fixes it.
    """
    points = adaptive() if points is None else points
    draws = standardised() if draws is None else draws
    _check(examples, every, memories, ridges)

    def start(key, sizes: Sizes, params, data):
        draws_key, points_key = jax.random.split(key)
        fitted = draws.fit(draws_key, data), points.fit(points_key, data)
        mean = _mean(points, fitted[1], params, data)
        H = jax.eval_shape(draws.apply, fitted[0], params, data).shape[1]
        P, L = sizes.outputs, len(sizes.leaves)
        F, J, C = sizes.basis * H + mean.shape[0], len(memories), len(memories) * len(ridges)
        length = _SLOWER * every * examples  # rows between two late refreshes

        def zeros(*shape):
            return jnp.zeros(shape, sizes.dtype)

        return lambda key: LeastSquares(
            contexts=fitted,
            mean=mean.astype(sizes.dtype),
            block=Block(zeros(length, F), zeros(length, P), jnp.zeros((), jnp.int32)),
            memory=(zeros(J, F, F), zeros(J, F, P)),
            candidates=zeros(C, F, P),
            scores=Scores(zeros(C, L), zeros(C, L), zeros(L), zeros()),
            theta=zeros(F, P),
            step=jnp.zeros((), jnp.int32),
        )

    def context_features(state, params, batch, B):
        return draws.apply(state.contexts[0], params, batch).astype(state.theta.dtype)

    def intercept(state, params, batch):
        return points.apply(state.contexts[1], params, batch).astype(state.theta.dtype)

    def point_features(state, params, batch):
        return intercept(state, params, batch) - state.mean

    def predict(state, phi):
        return phi @ state.theta[: phi.shape[-1]]

    def learn(state, criterion, evidence):
        # Features of the whole batch, as in the correction: the compiler computes them once.
        h = context_features(state, evidence.params, evidence.batch, evidence.w.shape[0])
        h_points = intercept(state, evidence.params, evidence.batch)
        x, g = _regressors(criterion, evidence, h, h_points, examples)
        block = _add(state.block, x, g, evidence.finite)
        step = state.step + evidence.finite
        period = jnp.where(step <= 16 * every, every, _SLOWER * every)  # quick at first, then cheap
        full = evidence.finite & (step % period == 0)
        state = state._replace(block=block, step=step)
        # A loop of one turn or none works in place, where a branch would copy all of the sums.
        return jax.lax.while_loop(
            lambda carried: carried[0],
            lambda carried: (jnp.zeros_like(full), refresh(carried[1], evidence)),
            (full, state),
        )[1]

    def refresh(state: LeastSquares, evidence: Evidence):
        block = _sums(state.block)
        one = state.theta.shape[0] - state.mean.shape[0]  # where the constant 1 of h' stands
        used = state.candidates if evidence.points else state.candidates.at[:, one:].set(0)
        # Judged before learning, or scores would flatter; 0.75 remembers about four blocks.
        scores = _forget(state.scores, 0.75, _judge(used, block, one, evidence.leaves))
        forget = jnp.exp(-1 / jnp.asarray(memories, state.theta.dtype))[:, None, None]
        A = forget * state.memory[0] + block.A
        R = forget * state.memory[1] + block.R
        candidates = _solve(A, R, ridges)
        best, gates = _choose(scores)
        return state._replace(
            block=state.block._replace(filled=jnp.zeros_like(state.block.filled)),
            memory=(A, R),
            candidates=candidates,
            scores=scores,
            theta=_pick(candidates, best, evidence.leaves) * spread(gates, evidence.leaves),
        )

    return Coefficients(
        start=start,
        context_features=context_features,
        predict=predict,
        learn=learn,
        point_features=None if points.moving else point_features,
    )


def _mean(points: Context, fitted, params, data) -> Float[Array, " H2"]:
    """The mean h̄', or zeros for a moving map, which cannot control the points."""
    if points.moving:
        shape = jax.eval_shape(points.apply, fitted, params, data)
        return jnp.zeros(shape.shape[1], shape.dtype)
    return mean_over(lambda batch: points.apply(fitted, params, batch), data)


def _regressors(
    criterion: Criterion,
    evidence: Evidence,
    h: Float[Array, "B H"],
    intercept: Float[Array, "B H2"],
    examples: int,
) -> tuple[Float[Array, "R F"], Float[Array, "R P"]]:
    """Regressors [w ⊗ h, h'] and gradients of the first examples, or of the batch as one row."""
    w, g = evidence.w, evidence.per_example
    if criterion.per_example and g is not None:
        R = min(examples, g.shape[0])
        x = jnp.concatenate([example_features(w[:R], h[:R]), intercept[:R]], axis=1)
        return x, g[:R]
    return jnp.concatenate([mean_features(w, h), intercept.mean(0)])[None], evidence.total[None]


def _add(block: Block, x, g, finite) -> Block:
    """The block with these rows; rows that are not finite will be overwritten by the next."""
    put = jax.lax.dynamic_update_slice_in_dim
    return Block(
        x=put(block.x, x, block.filled, axis=0),
        g=put(block.g, g, block.filled, axis=0),
        filled=block.filled + finite * x.shape[0],
    )


def _sums(block: Block) -> Sums:
    kept = (jnp.arange(block.x.shape[0]) < block.filled)[:, None]  # older rows lie behind
    x, g = jnp.where(kept, block.x, 0), jnp.where(kept, block.g, 0)
    return Sums(A=x.T @ x, R=x.T @ g, S=(g**2).sum(0))


def _solve(A: Float[Array, "J F F"], R: Float[Array, "J F P"], ridges) -> Float[Array, "C F P"]:
    """The solution Θ of (A + r mean(diag A) I) Θ = R for every memory and ridge."""
    F, dtype = A.shape[-1], A.dtype
    size = jnp.trace(A, axis1=-2, axis2=-1) / F + jnp.finfo(dtype).tiny  # A may be zero
    ridge = jnp.asarray(ridges, dtype)[:, None, None, None] * size[:, None, None]
    systems = (A + ridge * jnp.eye(F, dtype=dtype)).reshape(-1, F, F)
    theta = jax.vmap(_solve_halves)(systems, jnp.tile(R, (len(ridges), 1, 1)))
    solved = jnp.isfinite(theta).all((1, 2), keepdims=True)  # else no correction
    return jnp.where(solved, theta, 0)


def _solve_halves(A: Float[Array, "F F"], R: Float[Array, "F P"]) -> Float[Array, "F P"]:
    """A⁻¹R for a positive definite A, by halves down to blocks that one thread factorises.

    LAPACK shares larger blocks between threads, which wait for each other on a busy machine: one
    factorisation would then take milliseconds.
    """
    F = A.shape[0]
    if F <= _SMALL:
        return cho_solve((jnp.linalg.cholesky(A), True), jnp.eye(F, dtype=A.dtype)) @ R
    half = F // 2
    below = A[half:, :half]
    both = _solve_halves(A[:half, :half], jnp.concatenate([below.T, R[:half]], axis=1))
    across, top = both[:, : F - half], both[:, F - half :]
    bottom = _solve_halves(A[half:, half:] - below @ across, R[half:] - below @ top)
    return jnp.concatenate([top - across @ bottom, bottom])


def _judge(theta: Float[Array, "C F P"], block: Sums, one: int, leaves: tuple[int, ...]) -> Scores:
    """Centred sums of products of gradients g and corrections t = Θᵀx over the rows of a block."""
    n, sum_x, sum_g = block.A[one, one], block.A[one], block.R[one]  # the 1 counts
    sum_t = (theta * sum_x[:, None]).sum(1)
    gt = (theta * block.R).sum(1) - sum_t * sum_g / n  # from sums: the rows are not needed
    tt = jnp.stack([(t * (block.A @ t)).sum(0) for t in theta]) - sum_t**2 / n  # in turn: memory
    gg = block.S - sum_g**2 / n
    return Scores(leaf_sums(gt, leaves), leaf_sums(tt, leaves), leaf_sums(gg, leaves), n)


def _forget(old: Scores, decay: float, new: Scores) -> Scores:
    return jax.tree.map(lambda a, b: decay * a + b, old, new)


def _choose(scores: Scores) -> tuple[Int[Array, " leaves"], Float[Array, " leaves"]]:
    """The best candidate of each leaf, and its gate."""
    gates = best_multiplier(scores.gt, scores.tt, scores.gg, scores.n)
    gain = 2 * gates * scores.gt - gates**2 * scores.tt  # variance removed by the gated correction
    best = jnp.argmax(gain, axis=0)  # one candidate for each leaf
    return best, jnp.take_along_axis(gates, best[None], axis=0)[0]


def _pick(theta: Float[Array, "C F P"], best, leaves: tuple[int, ...]) -> Float[Array, "F P"]:
    """Each leaf's columns from its best candidate."""
    chosen = spread(best, leaves)
    return jnp.take_along_axis(theta, chosen[None, None], axis=0)[0]


def _check(examples, every, memories, ridges) -> None:
    check_whole("examples", examples, 1)
    check_whole("every", every, 1)
    for name, values in (("memories", memories), ("ridges", ridges)):
        if not values or any(value <= 0 for value in values):
            raise invalid(
                name, expected="positive numbers", got=values, advice="Leave out for the default."
            )
