"""The measurement of a gradient estimator at fixed parameters."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Key, PyTree

from quell._arguments import checked
from quell._checks import (
    check_batch_size,
    check_measured,
    check_positive,
    check_whole,
    checked_problem,
)
from quell._errors import invalid
from quell._jit import quick_jit
from quell._tree import number_of_parameters
from quell.bases import Basis
from quell.diagnostics.budget import Budget, status
from quell.diagnostics.ceilings import ceilings
from quell.diagnostics.cells import metric_at
from quell.diagnostics.measurement import Measurement
from quell.diagnostics.metric import signal
from quell.diagnostics.nats import Nats
from quell.diagnostics.reference import full_gradient
from quell.diagnostics.stepper import state_after_steps, stepper
from quell.diagnostics.timing import (
    peak_memory,
    refresh_seconds,
    seconds_per_step,
)
from quell.diagnostics.variance import variance_components
from quell.estimators._types import Estimator, check_estimator
from quell.objective import Objective
from quell.training.batches import Batches, reshuffle
from quell.training.loop import start_key

# Shares of the time that is left; the variance needs most, since its error falls as one over the
# square root. All of them include compilation.
_WARM_UP, _METRIC, _REFERENCE, _VARIANCE, _TIMING = 0.2, 0.1, 0.3, 0.6, 0.6


@checked()
def measure(
    key: Key[Array, ""],
    objective: Objective,
    params: PyTree[Array],
    data: PyTree[Array],
    estimator: Estimator,
    *,
    batch_size: int,
    num_steps: int | None = None,
    state: PyTree[Array] | None = None,
    warm_up: int = 1000,
    optimizer: optax.GradientTransformation | None = None,
    batches: Batches = reshuffle,
    bases: Mapping[str, Basis] | None = None,
    seconds: float = 5.0,
) -> Measurement:
    """Measure the noise of a gradient estimator at given parameters, split by cause, and its cost.

    The gradient G(B, ε) depends on the points of the batch and on the draws. With the state of the
    estimator frozen, the trace of its covariance is the sum of three parts:

        total        T = tr Cov[G]
        points       Q = tr Cov_B[ E_ε[G | B] ]      remains if the draws are averaged out
        draws        D = tr Cov_ε[ E_B[G | ε] ]      remains if the batches are averaged out
        interaction  I = T − Q − D                   draws whose effect depends on the points

    By the law of total variance D + I = E_B[tr Cov_ε[G | B]] is the most that can be gained from
    the draws when the batch is known (`draws_given_points`). A correction that does not look at the
    points can at best remove D; to remove the interaction, it must look at them.

    The same parts are given in nats: ν = ½ tr(H⁻¹Σ) of the covariance Σ, with H the Fisher
    information of q if all params are those of Gaussian families. No optimiser and no change of the
    parameters alters it, and T steps leave at least ν/T nats; the points count in full in the first
    epoch alone if batches are reshuffled. Other params are measured by what the optimiser, frozen
    after a warm-up, multiplies gradients with. A verdict in words ends the table: the steps that
    the noise demands, and whether noise or steps held back the run that ended at `params`, by its
    signal ½ gᵀH⁻¹g. docs/yardstick.md has the theory and its tests.

    The parts come from independent blocks, each with 4 batches (drawn without replacement) crossed
    with 4 keys: in a block the mean squares of the two-way table give unbiased estimates of Q, D
    and I, and their spread over blocks gives the 95 % intervals. An unbiased estimate of a small
    part may be below zero.

    The bias is the distance to the mean of passes over all of the data with a draw for each point.
    `bias_z` is the largest z-score of any entry, turned into one z-score by Bonferroni's
    correction, so it is small and never negative for an unbiased estimator.

    Args:
      key: the key for all randomness.
      objective: L, a user's own or a model's.
      params: θ.
      data: a pytree with leaves `[N, ...]`.
      estimator: the estimator, such as `quell.monte_carlo()`.
      batch_size: |B|.
      num_steps: T, the steps of the run that ended at `params`, for the verdict.
      state: the estimator's state, such as `fit(...).estimator_state`, for estimators that make no
        choices at the start, or the same choices. By default the first state, after learning.
      warm_up: the number of steps for which the default state learns at the fixed parameters.
      optimizer: the optimiser of the run, part of the time of a step; by default Adam, rate 0.01.
      batches: the stream of the run's batches, `reshuffle` or `with_replacement`.
      bases: bases of control variates, by name, whose ceilings are wanted: the least share of the
        draws' variance that any coefficients could leave. They take half of the time.
      seconds: the time to take, with compilation. More time gives narrower intervals; too little
        is said in `notes`.

    Returns:
      A record that prints as a table, plots and saves itself.
    """
    params, data = checked_problem(key, objective, params, data)
    check_estimator("estimator", estimator)
    check_batch_size(batch_size, objective.num_data)
    check_whole("warm_up", warm_up, 0)
    if num_steps is not None:
        check_whole("num_steps", num_steps, 1)
    check_positive("seconds", seconds, 5)
    budget, notes = Budget(seconds), []
    if bases:
        budget, rest = Budget(seconds / 2), seconds / 2
    optimizer = optax.adam(1e-2) if optimizer is None else optimizer
    init_key, learn_key, *keys = quick_jit(lambda key: [*jax.random.split(key, 6)])(key)
    problem = (objective, params, data)
    with status() as say:
        started = estimator.start(start_key(key), *problem)
        loop = stepper(*problem, started, batch_size, optimizer)
        first = quick_jit(started.init)(init_key, params)
        refreshes = 0.0  # per step
        say(f"the first steps of {estimator.name}", batch_size)
        given = state is not None
        if not given:
            allowed = budget.share(_WARM_UP)
            learned = state_after_steps(learn_key, loop, first, steps=warm_up, seconds=allowed)
            state, refreshes = learned.state, learned.refreshes / max(1, warm_up)
            if learned.steps < warm_up:
                notes.append(
                    f"the time ended the warm-up after {learned.steps} of {warm_up} steps; an "
                    "estimator that learns slowly is better than this. Give more seconds"
                )
        _check_state(state, first)
        say("the gradient itself", objective.num_data)
        at = (objective, params, optimizer, loop, state)
        metric = metric_at(learn_key, *at, seconds=budget.share(_METRIC))
        reference = full_gradient(keys[1], *problem, seconds=budget.share(_REFERENCE))
        say("noise", batch_size)
        found = variance_components(
            keys[0],
            *problem,
            started,
            batch_size=batch_size,
            state=state,
            metric=metric,
            reference=reference,
            seconds=budget.share(_VARIANCE),
        )
        check_measured(found.parts.total.value, batch_size)
        say("time per step", batch_size)
        allowed = budget.share(_TIMING)
        (taken,) = seconds_per_step(keys[2], {"": loop}, {"": state}, seconds=allowed).values()
        if given and loop.refresh is not None:
            notes.append(
                "the time of a step is without the estimator's rare work, as state was given"
            )
        if refreshes:
            each = refresh_seconds(keys[2], loop, state, seconds=budget.share(_TIMING))
            taken = taken.plus(refreshes * each)
    if (taken.high - taken.low) > taken.value:
        notes.append("the time of a step is not known within a factor of two. Give more seconds")
    total = found.parts.total.value
    if found.parts.total.standard_error > total / 2 > 0:
        notes.append("the variance is not known within a factor of two. Give more seconds")
    notes += budget.notes()
    shuffled, spare = batches is reshuffle, budget.left() > found.compilation
    return Measurement(
        parts=found.parts,
        leaves=found.leaves,
        nats=Nats(
            noise=found.nats,
            signal=signal(metric, params, reference.groups),
            metric=metric.name,
            exact=metric.nats,
            epoch=objective.num_data / batch_size if shuffled else float("inf"),
        ),
        coordinates=found.coordinates,
        norm_variance=found.norm_variance,
        bias_z=found.bias_z,
        squared_bias=found.squared_bias,
        signal_to_noise=found.squared_mean / total if total > 0 else float("inf"),
        seconds_per_step=taken.value,
        seconds_interval=taken,
        # compiled once more, if there is time for that
        peak_memory=peak_memory(*problem, batch_size, started, state) if spare else None,
        ceilings=ceilings(keys[3], *problem, bases=bases, seconds=rest) if bases else {},
        batch_size=batch_size,
        num_data=objective.num_data,
        num_params=number_of_parameters(params),
        num_steps=num_steps,
        evaluations=found.evaluations,
        notes=tuple(notes),
    )


def _check_state(state: PyTree[Array], expected: PyTree[Array]) -> None:
    """Refuse the state of another estimator, or of the same estimator after other choices."""
    if jax.tree.map(jnp.shape, state) != jax.tree.map(jnp.shape, expected):
        raise invalid(
            "state",
            expected="a state of this estimator, as it is started here",
            got="arrays of other shapes",
            advice="Pass the key of its run, or fix the estimator's choices, such as leaves=.",
        )
