"""Stochastic variance-reduced gradients: a snapshot removes the noise of sub-sampling.

G̃ = Ĝ(θ) − Ĝ(θ̃) + ∇L(θ̃): the gradient of each example at a past θ̃ is subtracted, and the mean
over the whole data added back.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from quell._arguments import checked
from quell._checks import check_data
from quell._errors import invalid
from quell._tree import batch_size
from quell.estimators._sampling import monte_carlo
from quell.estimators._terms import inner_or_plain, linear, minus
from quell.estimators._types import (
    Batch,
    Estimate,
    Estimator,
    Started,
    check_sampling,
    refresh_inside,
)
from quell.objective import Objective


class Snapshot(NamedTuple):
    """Past parameters and the gradient at them.

    Attributes:
      params: θ̃.
      full: ∇L(θ̃) without the regulariser, a pytree like params.
      held: the draws kept with the snapshot, leaves `[M, ...]`, or nothing.
    """

    params: PyTree[Array]
    full: PyTree[Array]
    held: PyTree[Array]


class Svrg(NamedTuple):
    """State of `svrg`.

    Attributes:
      snapshot: θ̃ and its gradient.
      step: the number of estimates so far, `[]`.
      inner: the state of the inner estimator.
    """

    snapshot: Snapshot
    step: Int[Array, ""]
    inner: PyTree[Array]


@checked()
def svrg(
    inner: Estimator | None = None,
    *,
    every: int | None = None,
    held: Estimator | None = None,
    full_pass: Estimator | None = None,
) -> Estimator:
    """Apply any estimator to the objective minus its linearisation at a parameter snapshot.

    R. Johnson and T. Zhang, "Accelerating stochastic gradient descent using predictive variance
    reduction", 2013. The snapshot is refreshed inside compiled code; `inner` learns from the rest.
    If runs are batched by `jax.vmap`, every step pays for a full pass. An outer estimator that
    changes the objective does not change the linearisation, so put `svrg` outermost.

    By default the draws at the snapshot are the batch's own: at its snapshot the estimate has no
    variance at all. But the mean over the data is itself estimated, from the draws of `full_pass`
    for each of the N points. The estimate is unbiased over batches and their draws up to the error
    of that average, which stays until the next snapshot; it is unbiased if the expectation is taken
    over the snapshot's draws as well.

    With `held`, M draws are kept with the snapshot, the same for all points: the estimate is
    unbiased whatever the snapshot. It then reduces the noise of sub-sampling alone, and costs M
    gradients per example.

    Args:
      inner: the estimator to use, such as `monte_carlo()` (the default) or a controlled one.
      every: steps between snapshots; two passes over the data by default.
      held: the plain estimator whose draws are kept with the snapshot, such as `antithetic(4)`.
      full_pass: without `held`, the plain estimator whose draws the full pass uses;
        `monte_carlo()` by default.
    """
    inner = inner_or_plain(inner)
    if held is not None and full_pass is not None:
        raise invalid(
            "full_pass",
            expected="None, since the full pass uses the draws of held",
            got=full_pass,
            advice="Pass held or full_pass.",
        )
    kept = None if held is None else check_sampling("held", held)
    fresh = check_sampling("full_pass", monte_carlo() if full_pass is None else full_pass)

    def start(key, objective: Objective, params, data) -> Started:
        N, loss, noisy = objective.num_data, objective.loss, objective._replace(regulariser=None)
        check_data(N, data)
        inside = inner.start(key, objective, params, data)

        def snapshot_at(key, params, data) -> Snapshot:
            noise = fresh.draw(key, objective, N) if kept is None else kept.draw(key, objective, 1)
            draws = () if kept is None else jax.tree.map(lambda e: e[:, 0], noise)
            return Snapshot(params, noisy.gradient(params, noise, data), draws)

        def loss_at_snapshot(draws, params, eps, example):
            if kept is None:
                return loss(params, eps, example)
            return jax.vmap(lambda e: loss(params, e, example))(draws).mean()

        def init(key, params):
            snapshot_key, inner_key = jax.random.split(key)
            snapshot = snapshot_at(snapshot_key, params, data)
            return Svrg(snapshot, jnp.zeros((), jnp.int32), inside.init(inner_key, params))

        def estimate(key, objective, params, batch: Batch, state: Svrg) -> Estimate:
            inner_key, snapshot_key = jax.random.split(key)  # the snapshot gets draws of its own
            period = max(1, 2 * N // batch_size(batch.examples)) if every is None else every
            snapshot = jax.lax.cond(  # a branch, so that only a due snapshot pays a full pass
                (state.step > 0) & (state.step % period == 0),  # `init` took the first
                lambda: snapshot_at(snapshot_key, params, batch.data),
                lambda: state.snapshot,
            )
            quieter = without_linearisation(objective, snapshot)
            found = inside.estimate(inner_key, quieter, params, batch, state.inner)
            return found._replace(state=Svrg(snapshot, state.step + 1, found.state))

        def without_linearisation(objective, snapshot: Snapshot) -> Objective:
            theta, full, draws = snapshot

            def linearised(params, eps, example):
                moved = jax.tree.map(jnp.subtract, params, theta)
                at = partial(loss_at_snapshot, draws, eps=eps, example=example)
                return jax.jvp(at, (theta,), (moved,))[1]  # linear in θ, with the gradient at θ̃

            return minus(objective, linearised, partial(linear, full, origin=theta))

        def seen(objective, state: Svrg):
            return without_linearisation(objective, state.snapshot)

        return Started(init, estimate, refresh_inside(inside, seen))

    return Estimator(f"svrg({inner.name})", start)
