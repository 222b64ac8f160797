"""The closed form: paired draws, and a regression on the model's own gradients at a snapshot.

G̃ = Ĝ − γ Θᵀ φ̄,    φ̄ = 1/|B| Σ_b [ h(y_b) − h̄,  w(ε_b) ⊗ [1, z_b] ]

A step is a gather of features and a small product. Everything that is learned comes from rare
refreshes between steps, and so from before the batch: the estimate is unbiased.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from quell import _tree, bases
from quell._tree import batch_size
from quell.contexts import Select, as_matrix
from quell.estimators._sampling import antithetic, monte_carlo
from quell.estimators._snapshot import Snapshot, plan
from quell.estimators._types import (
    Batch,
    Estimate,
    Estimator,
    Refresh,
    Sampling,
    Started,
    check_sampling,
)
from quell.noise import Noise
from quell.objective import Objective

_FUNCTIONS = 16  # with more functions of the noise, a step costs more than the control saves;
_PRODUCTS = 256  # the same holds for their products with the context
_GROWTH = 10**0.5  # a refresh is due when the steps since the start have grown by this factor,
_FIRST = 10  # for the first time after so many steps,
_FREE = 3  # and it is paid for: after the first few, refreshes
_SHARE = 0.5  # may take this share of the steps' own time
_PRIOR = 30  # steps that the evidence of a refresh counts for
_DECAY = 0.98  # of the evidence of a step, which is then remembered for about fifty
_AGED = 0.7  # a multiplier below this calls for a refresh


class Evidence(NamedTuple):
    """How far the correction t still predicts the gradient G, from differences between steps.

    Attributes:
      gt: Σ ΔG Δt, `[leaves]`.
      tt: Σ Δt², `[leaves]`.
      gradient: G of the last step, `[P]`.
      correction: t of the last step, `[P]`.
    """

    gt: Float[Array, " leaves"]
    tt: Float[Array, " leaves"]
    gradient: Float[Array, " P"]
    correction: Float[Array, " P"]


class ClosedForm(NamedTuple):
    """State of `closed_form`.

    Attributes:
      snapshot: the features and the coefficients.
      evidence: how far they still hold.
      step: the number of steps taken, `[]`.
      refreshed: the step of the last refresh, `[]`.
      refreshes: the number of refreshes, `[]`.
    """

    snapshot: Snapshot
    evidence: Evidence
    step: Int[Array, ""]
    refreshed: Int[Array, ""]
    refreshes: Int[Array, ""]


def closed_form(
    *,
    sampling: Estimator | None = None,
    basis: bases.Basis | None = None,
    leaves: _tree.Leaves = None,
    select: Select | None = None,
) -> Estimator:
    """Control the noise of the draws and of the choice of points, without a learning rate.

    The context of an example is the gradient of its own loss at past parameters and without noise,
    beside its standardised raw context; integer and boolean columns count as categories. At growing
    intervals, between steps, the parameters are recorded anew: one pass over the data gives the
    features of all points, one regression the coefficients. A gate for each parameter, from rows
    that the regression did not see, and a multiplier for each leaf, which follows from step to
    step whether the correction still predicts the gradient, keep it from being noisier than its
    own draws.

    Args:
      sampling: how the draws are made; by default `antithetic()` if the noise has mirror images,
        otherwise `monte_carlo()`.
      basis: functions of the noise; by default the functions that the sampling does not cancel, if
        they are few: even products of Gaussian noise under pairs, linear under single draws.
      leaves: the leaves to control; by default the smallest, up to 2¹⁸ coefficients, which is all
        leaves of small models; `lambda path: True` for all leaves.
      select: `select(example)`, the part of an example that is its raw context; all by default.
    """
    if sampling is not None:
        check_sampling("sampling", sampling)

    def start(key, objective: Objective, params, data) -> Started:
        mirrored = objective.noise.reflect is not None
        inner = (antithetic() if mirrored else monte_carlo()) if sampling is None else sampling
        draws = check_sampling("sampling", inner)
        functions = basis
        if functions is None:
            width = jax.eval_shape(lambda d: as_matrix(d, select), data).shape[1]  # a shape alone
            functions = affordable_basis(objective.noise, draws, width)
        laid = plan(objective, params, data, draws, functions, leaves, select)
        flat = laid.flat

        def init(key, params) -> ClosedForm:
            zero, leaf = jnp.zeros((), jnp.int32), jnp.zeros(len(flat.sizes))
            vector = jnp.zeros_like(flat.flatten(params))
            leaf = leaf.astype(vector.dtype)
            evidence = Evidence(leaf, leaf, vector, vector)
            return ClosedForm(laid.empty(params), evidence, zero, zero, zero)

        def estimate(key, objective, params, batch: Batch, state: ClosedForm) -> Estimate:
            noise = draws.draw(key, objective, batch_size(batch.examples))  # the gradient's own
            value, gradient = objective.value_and_gradient(params, noise, batch.examples)
            phi = laid.mean_features(state.snapshot, noise, params, batch.examples, batch.indices)
            correction = phi @ state.snapshot.theta  # Θᵀφ̄
            total = flat.flatten(gradient)
            finite = jnp.isfinite(total @ total + correction @ correction)
            used = jnp.where(finite, multiplier(state.evidence, flat.sizes) * correction, 0)
            # Θ, h̄ and the multiplier are from before this batch, so that E[Θᵀφ̄] = 0.
            quieter = flat.replace(gradient, total - used)
            evidence = _tree.where(
                finite, _followed(state, total, correction, flat.sizes), state.evidence
            )
            state = state._replace(evidence=evidence, step=state.step + 1)
            return Estimate(quieter, value, state, jnp.sqrt(used @ used))

        def due(state: ClosedForm, batch_size: int) -> Bool[Array, ""]:
            cost = laid.evaluations / (batch_size * _draws(draws, objective))  # in steps
            later = jnp.maximum(_GROWTH * state.refreshed, _FIRST)
            grown = (state.step >= later) | (state.refreshes == 0)
            aged = (multiplier(state.evidence, None) < _AGED).any() & (state.step > state.refreshed)
            paid = (state.refreshes + 1 - _FREE) * cost <= _SHARE * state.step
            return (grown | aged) & paid

        def refresh(key, objective, params, data, batch_size, state: ClosedForm) -> ClosedForm:
            snapshot, size = laid.take(key, objective, params, data)
            mass = _PRIOR * 2 * size / batch_size  # as if it had been followed for some steps
            evidence = state.evidence._replace(gt=mass, tt=mass)
            # The last correction was another's: its difference to the next would tell nothing.
            evidence = evidence._replace(gradient=jnp.full_like(evidence.gradient, jnp.nan))
            return state._replace(
                snapshot=snapshot,
                evidence=evidence,
                refreshed=state.step,
                refreshes=state.refreshes + 1,
            )

        return Started(init, estimate, Refresh(due, refresh))

    return Estimator("closed_form()", start)


def multiplier(evidence: Evidence, sizes: tuple[int, ...] | None) -> Float[Array, "..."]:
    """γ = Σ ΔG Δt / Σ Δt² within [0, 1], for each leaf or spread over its entries."""
    known = evidence.tt > 0
    slope = jnp.where(known, evidence.gt / jnp.where(known, evidence.tt, 1), 1)
    gate = jnp.clip(slope, 0, 1)
    return gate if sizes is None else _tree.spread(gate, sizes)


def _followed(state: ClosedForm, total, correction, sizes) -> Evidence:
    """The evidence with one more step; differences between steps take out the drift of the mean."""
    old = state.evidence
    moved, turned = total - old.gradient, correction - old.correction
    known = jnp.isfinite(moved @ moved)  # not so right after a refresh

    def add(sums, new):
        return jnp.where(known, _DECAY * sums + _tree.leaf_sums(new, sizes), sums)

    return Evidence(add(old.gt, moved * turned), add(old.tt, turned * turned), total, correction)


def _draws(sampling: Sampling, objective: Objective) -> int:
    """S, the number of draws of each example."""
    drawn = jax.eval_shape(lambda: sampling.draw(jax.random.key(0), objective, 1))
    return jax.tree.leaves(drawn)[0].shape[0]


def affordable_basis(noise: Noise, sampling: Sampling, width: int) -> bases.Basis:
    """Functions of the noise that the sampling does not cancel, if there are few of them.

    Each function is multiplied with a context of the given width and a one.
    """
    D = noise.size
    functions = D * (D + 1) // 2 if sampling.balanced else D  # pairs cancel the odd functions
    few = 0 < functions <= min(_FUNCTIONS, _PRODUCTS // (width + 1))
    if not few or (sampling.balanced and noise.name != "normal"):
        return bases.no_basis()  # points alone: cheaper, and still unbiased
    return bases.hermite(2, cross=True, odd=False) if sampling.balanced else bases.linear()
