"""Compare estimators on one problem, in one run."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Key, PyTree

from quell import _leaves
from quell._compare._record import Comparison, Row
from quell._compare._training import Training, seconds_to_target, trained
from quell._errors import invalid
from quell._measure import (
    Noisiness,
    Reference,
    Stepper,
    ceilings,
    default_bases,
    followed_state,
    full_gradient,
    learned_state,
    noisiness,
    seconds_per_step,
    stepper,
)
from quell._objective import Objective
from quell._objective import batch_size as rows_of
from quell.estimators import MakeEstimator, antithetic, monte_carlo

BASELINES: Mapping[str, MakeEstimator] = {
    "plain": monte_carlo(),
    "plain-4": monte_carlo(4),
    "antithetic": antithetic(),
    "antithetic-8": antithetic(8),
}
"""What an estimator has to beat: more draws, antithetic draws and larger batches."""

_SIGNIFICANT = 5.0  # z-scores of plain gradients with rare large entries come up to 4.4
_FOLLOW = 10.0  # the most seconds that a state may learn along a run
# How the time is shared out.
_REFERENCE, _CEILING, _WARM_UP, _VARIANCE, _TIMING = 0.1, 0.1, 0.1, 0.4, 0.3


class _Problem(NamedTuple):
    """What all estimators share: where they start, and where they are compared."""

    objective: Objective
    start: PyTree[Array]
    params: PyTree[Array]
    path: PyTree[Array] | None
    data: PyTree[Array]
    training: Training
    reference: Reference


class _Candidate(NamedTuple):
    """One estimator at one batch size, ready to be timed."""

    loop: Stepper
    state: PyTree[Array]
    found: Noisiness


def compare(
    key: Key[Array, ""],
    objective: Objective,
    estimators: Mapping[str, MakeEstimator],
    params: PyTree[Array],
    data: PyTree[Array],
    *,
    baselines: Mapping[str, MakeEstimator] = BASELINES,
    batch_sizes: Sequence[int] = (10, 100, 1000),
    num_steps: int = 0,
    optimizer: optax.GradientTransformation | None = None,
    driver: MakeEstimator | None = None,
    seconds: float = 60.0,
    target: float | None = None,
    target_steps: int = 10_000,
    report: Callable[[str, int], None] | None = None,
) -> Comparison:
    """Variance × time of estimators on the same problem, at the same parameters.

    The noise of a run of fixed length in seconds is (variance of a step) × (seconds per step), so
    the efficiency of an estimator is the ratio of these products. It is given against one plain
    draw at the same batch size, and against the best of the baselines, which are plain and
    antithetic draws, one pair and several, at every batch size.

    With `num_steps` the model is first trained on the gradients of a driver, and the state of every
    estimator learns along that run, from batches of its own, as it would in training (along the
    last ten seconds of it, where steps are slow). Without, the parameters stay where they are
    and the states learn there; estimators that remember where the parameters were, such as SVRG,
    then look better than they are in training.

    Args:
      key: for everything that is random.
      objective: L.
      estimators: estimators by name.
      params: θ, where the training starts, or where the comparison is made if there is none.
      data: a pytree with leaves `[N, ...]`.
      baselines: what they have to beat, one of them called "plain"; measured as well.
      batch_sizes: each estimator is measured at each of them; those above N become N.
      num_steps: T, how many steps to train before freezing.
      optimizer: for the training; Adam with rate 0.01 by default. Its update is part of the time of
        a step.
      driver: the estimator to train with; plain by default. Noisy gradients shake the parameters,
        and coefficients then have more to follow than they would on gradients of their own.
      seconds: how long to measure, not counting compilation and training.
      target: an objective; if given, each estimator also trains until it is reached.
      target_steps: the most steps of such a training.
      report: `report(name, batch_size)`, called before each estimator is measured.

    Returns:
      A record that prints as a table, plots and saves itself, the estimator to pick first. An
      estimator that cannot serve the objective is listed with the reason.
    """
    data = jax.tree.map(jnp.asarray, data)
    N = rows_of(data)
    sizes = _checked_sizes(batch_sizes, N)
    if "plain" not in baselines:
        raise invalid(
            "baselines",
            expected='one called "plain"',
            got=list(baselines),
            advice="Add plain=quell.estimators.monte_carlo().",
        )
    train_key, reference_key, each_key, timing_key, ceiling_key = jax.random.split(key, 5)
    training = Training(
        optimizer or optax.adam(1e-2), num_steps, sizes[0], driver or baselines["plain"]
    )
    here, path = params, None
    if num_steps:
        here, path = trained(train_key, objective, params, data, training)
    allowed = _REFERENCE * seconds
    reference = full_gradient(reference_key, objective, here, data, seconds=allowed)
    problem = _Problem(objective, params, here, path, data, training, reference)
    everyone = {**baselines, **estimators}
    share = seconds / (len(everyone) * len(sizes))

    candidates: dict[tuple[str, int], _Candidate] = {}
    unavailable: dict[str, str] = {}
    for name, make in everyone.items():
        try:
            for size in sizes:
                if report:
                    report(name, size)
                candidate = _candidate(each_key, problem, make, size, share)
                candidates[name, size] = candidate
        except ValueError as error:
            unavailable[name] = f"not available: {error}"
    times = seconds_per_step(
        timing_key,
        {at: candidate.loop for at, candidate in candidates.items()},
        {at: candidate.state for at, candidate in candidates.items()},
        seconds=_TIMING * seconds,
    )
    rows, best = _rows(candidates, times, baselines)
    if target is not None:
        rows = [
            _with_target(train_key, problem, everyone[row.name], row, target, target_steps)
            for row in rows
        ]
    bases, allowed = default_bases(objective.noise), _CEILING * seconds
    return Comparison(
        rows=tuple(rows),
        unavailable=unavailable,
        best_baseline=best,
        ceilings=ceilings(ceiling_key, objective, here, data, bases=bases, seconds=allowed),
        num_data=N,
        num_params=_leaves.flattener(None, params).size,
        num_steps=num_steps,
        target=target,
    )


def _candidate(key, problem: _Problem, make: MakeEstimator, size, seconds) -> _Candidate:
    """An estimator with its state, and what was found out about its noise."""
    init_key, learn_key, noise_key = jax.random.split(key, 3)
    objective, params, data = problem.objective, problem.params, problem.data
    made = make(objective)
    loop = stepper(made, params, data, size, problem.training.optimizer)
    if problem.path is None:
        state = made.init(init_key, params, data)
        state = learned_state(learn_key, loop, state, steps=1000, seconds=_WARM_UP * seconds)
    else:
        first = jax.tree.map(lambda p: p[0], problem.path)
        state = made.init(init_key, first, data)
        state = followed_state(learn_key, loop, state, problem.path, seconds=_FOLLOW)
    found = noisiness(
        noise_key,
        made,
        params,
        data,
        batch_size=size,
        state=state,
        reference=problem.reference,
        seconds=_VARIANCE * seconds,
    )
    if not math.isfinite(found.parts.total.value):
        raise invalid(
            "estimator",
            expected="finite gradients",
            got=f"others at batch size {size}",
            advice="Lower the rate at which it learns.",
        )
    return _Candidate(loop, state, found)


def _with_target(key, problem: _Problem, make: MakeEstimator, row: Row, target, num_steps) -> Row:
    reached = seconds_to_target(
        key,
        problem.objective,
        make,
        problem.start,
        problem.data,
        problem.training._replace(batch_size=row.batch_size),
        target=target,
        seconds_per_step=row.seconds_per_step,
        num_steps=num_steps,
    )
    return row._replace(seconds_to_target=reached)


def _rows(
    candidates: Mapping[tuple[str, int], _Candidate],
    times: Mapping[tuple[str, int], float],
    baselines: Collection[str],
) -> tuple[list[Row], tuple[str, int]]:
    """Every estimator's row, the most efficient first, and the best baseline."""
    errors = {at: _error(candidate.found) for at, candidate in candidates.items()}
    # A variance estimated as nothing still costs time: rounding is what it can be told from.
    least = {size: 1e-12 * errors["plain", size] for _, size in errors}
    costs = {at: max(errors[at], least[at[1]]) * times[at] for at in errors}
    best = min((at for at in costs if at[0] in baselines), key=lambda at: costs[at])
    rows = [
        Row(
            name=at[0],
            batch_size=at[1],
            variance_total=candidate.found.parts.total,
            variance_draws=candidate.found.parts.draws_given_points,
            variance_points=candidate.found.parts.points,
            bias_z=candidate.found.bias_z,
            error=errors[at],
            seconds_per_step=times[at],
            efficiency_vs_plain=costs["plain", at[1]] / costs[at],
            efficiency_vs_best=costs[best] / costs[at],
        )
        for at, candidate in candidates.items()
    ]
    return sorted(rows, key=lambda row: -row.efficiency_vs_best), best


def _error(found: Noisiness) -> float:
    """The variance, plus the squared bias where that is significant."""
    bias = found.squared_bias if found.bias_z > _SIGNIFICANT else 0.0
    return max(found.parts.total.value, 0.0) + max(bias, 0.0)


def _checked_sizes(batch_sizes: Sequence[int], N: int) -> list[int]:
    sizes = sorted({min(size, N) for size in batch_sizes})
    if not sizes or sizes[0] < 1:
        raise invalid(
            "batch_sizes",
            expected="at least one, all positive",
            got=tuple(batch_sizes),
            advice="Try (10, 100).",
        )
    return sizes
