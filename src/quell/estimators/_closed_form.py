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
from quell._arguments import checked
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
_FIRST = 10  # steps before the second refresh
_SOON = 3  # a refresh is due when the steps since the start have grown by this factor; from step
_EARLY = 100  # on
_LATE = 1.7  # by this one. But all refreshes must be paid for: their cost is at most that of
_EPOCH = 5 / 6  # so many epochs, plus
_SHARE = 1 / 6  # this share of the steps: half of a run of one epoch, a fifth of a run of ten;
_DEBT = 10  # and at most that of so many times the steps, since snapshots of the first steps age
_STEP = 64  # the cost of a step beside its gradients, in gradients
_FADED = 0.5  # or as soon as the correction predicts less than this share of its own size
_PRIOR = 2  # steps that the evidence of a refresh counts for
_DECAY = 0.96  # of the evidence of a step, which is then remembered for about 25
_NOTHING = (
    "closed_form() finds nothing to learn from here (its leaves are too large, its context too "
    "wide): the gradients are those of its draws alone"
)
_RAW = (
    "closed_form() takes no snapshots here (a pass over so many rows costs more than it saves, or "
    "no leaf is small enough): its context is the raw examples alone"
)


class Evidence(NamedTuple):
    """How far the correction t still predicts the gradient G, each before it is learned from.

    Attributes:
      gt: Σ t (G − G̃'), with G̃' the estimate of the step before, `[P]`.
      tt: Σ t², `[P]`.
      estimate: G̃ of the last step, `[P]`.
    """

    gt: Float[Array, " P"]
    tt: Float[Array, " P"]
    estimate: Float[Array, " P"]


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


@checked()
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
        if laid is None:  # wide inputs and large leaves alone
            return inner.start(key, objective, params, data)._replace(note=_NOTHING)
        flat = laid.flat

        def init(key, params) -> ClosedForm:
            zero, vector = jnp.zeros((), jnp.int32), jnp.zeros_like(flat.flatten(params))
            evidence = Evidence(vector, vector, vector)
            return ClosedForm(laid.empty(params), evidence, zero, zero, zero)

        def estimate(key, objective, params, batch: Batch, state: ClosedForm) -> Estimate:
            noise = draws.draw(key, objective, batch_size(batch.examples))  # the gradient's own
            value, gradient = objective.value_and_gradient(params, noise, batch.examples)
            phi = laid.mean_features(state.snapshot, noise, params, batch.examples, batch.indices)
            t = phi @ state.snapshot.theta  # Θᵀφ̄
            total = flat.flatten(gradient)
            sound = jnp.isfinite(total @ total + t @ t)
            correction = jnp.where(sound, multiplier(state.evidence) * t, 0)
            # Θ, h̄ and the multiplier are from before this batch, so that E[Θᵀφ̄] = 0.
            quieter = total - correction
            followed = _followed(state, total, t, quieter)
            state = state._replace(
                evidence=_tree.where(sound, followed, state.evidence), step=state.step + 1
            )
            norm = jnp.sqrt(correction @ correction)
            return Estimate(flat.replace(gradient, quieter), value, state, norm)

        def due(state: ClosedForm, batch_size: int) -> Bool[Array, ""]:
            cost = laid.evaluations / (batch_size * _draws(draws, objective) + _STEP)  # in steps
            later = jnp.where(state.refreshed < _EARLY, _SOON, _LATE) * state.refreshed
            grown = (state.step >= jnp.maximum(later, _FIRST)) | (state.refreshes == 0)
            faded = state.evidence.gt.sum() < _FADED * state.evidence.tt.sum()
            epoch = objective.num_data / batch_size
            means = jnp.minimum(_EPOCH * epoch + _SHARE * state.step, _DEBT * state.step)
            return (grown | faded) & ((state.refreshes + 1) * cost <= means)

        def refresh(key, objective, params, data, batch_size, state: ClosedForm) -> ClosedForm:
            old = state.snapshot
            snapshot, square = laid.retake(key, objective, params, data, old)
            mass = _PRIOR * square / batch_size  # as if it had been followed for some steps
            return state._replace(
                snapshot=snapshot,
                evidence=state.evidence._replace(gt=mass, tt=mass),
                refreshed=state.step,
                refreshes=state.refreshes + 1,
            )

        note = "" if laid.passes else _RAW
        return Started(init, estimate, Refresh(due, refresh), guarded=True, note=note)

    return Estimator("closed_form()", start)


def multiplier(evidence: Evidence) -> Float[Array, " P"]:
    """γ = Σ t (G − G̃') / Σ t² within [0, 1], for each parameter."""
    known = evidence.tt > 0
    return jnp.where(known, jnp.clip(evidence.gt / jnp.where(known, evidence.tt, 1), 0, 1), 0)


def _followed(state: ClosedForm, total, t, quieter) -> Evidence:
    """The evidence with one more step: E[t] = 0, so that E[t (G − c)] is a covariance for any c."""
    old = state.evidence
    decay = jnp.where(state.step > 0, _DECAY, 1)  # before the first step there is no G̃'
    new = jnp.where(state.step > 0, 1, 0).astype(t.dtype)
    gt = decay * old.gt + new * t * (total - old.estimate)
    return Evidence(gt, decay * old.tt + new * t**2, quieter)


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
