"""Stochastic variance-reduced gradients: the noise of sub-sampling, from a snapshot.

G̃ = Ĝ(θ) − Ĝ(θ̃) + ∇L(θ̃): the gradient of each example at a past θ̃ is taken off, and the mean over
the whole data added back.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key, PyTree

from quell._errors import invalid
from quell._objective import Objective, batch_size
from quell.estimators._sampling import Sampling, antithetic, monte_carlo
from quell.estimators._terms import Term, linear, minus
from quell.estimators._types import Estimator, MakeEstimator


class Svrg(NamedTuple):
    """State of `svrg`.

    Attributes:
      snapshot: θ̃, a pytree like params.
      full: ∇L(θ̃) without the regulariser, a pytree like params.
      held: the draws kept with the snapshot, leaves `[M, ...]`, or nothing.
      step: how many estimates were made, `[]`.
      inner: the state of the inner estimator.
    """

    snapshot: PyTree[Array]
    full: PyTree[Array]
    held: PyTree[Array]
    step: Int[Array, ""]
    inner: PyTree[Array]


class SnapshotDraws(NamedTuple):
    """Which draws the gradient at the snapshot is taken with.

    Attributes:
      draw: `draw(key, objective, N)`, the draws of the full pass, leaves `[M, N or 1, ...]`.
      hold: what of them is kept in the state.
      loss: `loss(objective, held)`, the loss whose gradient at the snapshot is taken off.
    """

    draw: Callable[[Key[Array, ""], Objective, int], PyTree[Array]]
    hold: Callable[[PyTree[Array]], PyTree[Array]]
    loss: Callable[[Objective, PyTree[Array]], Term]


def paired_draws(sampling: Sampling | None = None) -> SnapshotDraws:
    """The batch's own draws: at its snapshot the estimate has no variance at all.

    In what sense it is biased: the mean over the data is itself estimated, from the draws of
    `sampling` for each of the N points. The estimate is unbiased over batches and their draws up
    to the error of that average, which stays until the next snapshot; it is unbiased once that
    average is taken over the snapshot's draws as well.

    Args:
      sampling: how the draws of the full pass are made; `monte_carlo()` by default.
    """
    sampling = monte_carlo() if sampling is None else sampling
    return SnapshotDraws(sampling.draw, lambda noise: (), lambda objective, held: objective.loss)


def held_draws(sampling: Sampling | None = None) -> SnapshotDraws:
    """M draws kept with the snapshot, the same for all points: unbiased whatever the snapshot.

    Touches the noise of sub-sampling alone, and costs M gradients per example; at its snapshot
    it leaves what M draws miss of each example's mean.

    Args:
      sampling: how they are made; `antithetic(4)` by default.
    """
    sampling = antithetic(4) if sampling is None else sampling

    def loss(objective, held):
        def averaged(params, eps, example):
            return jax.vmap(lambda e: objective.loss(params, e, example))(held).mean()

        return averaged

    return SnapshotDraws(
        draw=lambda key, objective, N: sampling.draw(key, objective, 1),
        hold=lambda noise: jax.tree.map(lambda e: e[:, 0], noise),
        loss=loss,
    )


def svrg(
    inner: MakeEstimator,
    data: PyTree[Array],
    *,
    every: int | None = None,
    draws: SnapshotDraws | None = None,
) -> MakeEstimator:
    """Any estimator, of the objective less its linearisation at a snapshot of the parameters.

    R. Johnson and T. Zhang, "Accelerating stochastic gradient descent using predictive variance
    reduction", 2013. The snapshot is refreshed inside compiled code; what `inner` learns, it
    learns from what is left. When runs are batched by `jax.vmap` every step pays for a full pass.

    Args:
      inner: the estimator to use, such as `monte_carlo()` or a controlled one.
      data: the whole data set, leaves `[N, ...]`.
      every: steps between snapshots; two passes over the data by default.
      draws: `paired_draws()` (the default), whose docstring says in what sense the estimate is
        unbiased, or `held_draws()`, which is unbiased.
    """
    how = paired_draws() if draws is None else draws
    if every is not None and every < 1:
        raise invalid("every", expected="a positive int", got=every, advice="Try 2 N / B.")

    def make(objective: Objective) -> Estimator:
        N = objective.num_data
        if batch_size(data) != N:
            raise invalid(
                "data",
                expected=f"the {N} points the objective sums over",
                got=batch_size(data),
                advice="Give svrg the data that fit is given.",
            )
        inside = inner(objective)
        noisy = Objective(objective.loss, objective.noise, N)

        def snapshot_at(key, params) -> tuple[Any, Any, Any]:
            noise = how.draw(key, objective, N)
            return params, noisy.gradient(params, noise, data), how.hold(noise)

        def init(key, params, batch):
            snapshot_key, inner_key = jax.random.split(key)
            snapshot, full, held = snapshot_at(snapshot_key, params)
            inner_state = inside.init(inner_key, params, batch)
            return Svrg(snapshot, full, held, jnp.zeros((), jnp.int32), inner_state)

        def estimate(key, params, batch, state):
            inner_key, snapshot_key = jax.random.split(key)
            period = max(1, 2 * N // batch_size(batch)) if every is None else every
            theta, full, held = jax.lax.cond(
                (state.step > 0) & (state.step % period == 0),
                lambda: snapshot_at(snapshot_key, params),
                lambda: (state.snapshot, state.full, state.held),
            )
            at_snapshot = how.loss(objective, held)

            def linearised(params, eps, example):
                moved = jax.tree.map(jnp.subtract, params, theta)
                return jax.jvp(lambda p: at_snapshot(p, eps, example), (theta,), (moved,))[1]

            mean = partial(linear, full, origin=theta)
            quieter = inner(minus(objective, linearised, mean))
            gradient, value, inner_state = quieter.estimate(inner_key, params, batch, state.inner)
            return gradient, value, Svrg(theta, full, held, state.step + 1, inner_state)

        return Estimator(init, estimate)

    return make
