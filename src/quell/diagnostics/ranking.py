"""Rankings of estimators by variance × time: the measurements behind `compare`."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import optax
from jaxtyping import Array, Key, PyTree

from quell._errors import invalid
from quell._tree import number_of_parameters
from quell.diagnostics.records import as_json
from quell.diagnostics.reference import Reference, full_gradient
from quell.diagnostics.statistics import Interval
from quell.diagnostics.timing import (
    Stepper,
    largest_prime,
    seconds_per_step,
    state_after_path,
    state_after_steps,
    stepper,
)
from quell.diagnostics.variance import VarianceComponents, variance_components
from quell.estimators._types import Estimator, Started, check_estimator
from quell.objective import Objective
from quell.training.short import short_training

_SIGNIFICANT = 5.0  # plain gradients with rare large entries reach z-scores of 4.4
_FOLLOW = 10.0  # the most seconds for which a state learns along a run
_PATH_NUMBERS = 2**25  # the most numbers in the path of a run
_REFERENCE, _WARM_UP, _VARIANCE, _TIMING = 0.1, 0.1, 0.45, 0.35  # shares of the time


class Row(NamedTuple):
    """One estimator at one batch size.

    Attributes:
      name: the estimator.
      batch_size: |B|.
      variance_total: the trace of the covariance of the gradient, with its interval.
      variance_draws: the part that remains when the batch is known.
      variance_points: the part that remains when the draws are averaged out.
      bias_z: the z-score of the bias.
      error: the variance, plus the squared bias if the bias is significant.
      seconds_per_step: the median time of a compiled step.
      efficiency_vs_plain: error × time of one plain draw at this batch size, over error × time of
        the estimator.
      efficiency_vs_best: the same ratio against the best baseline at any batch size.
      seconds_to_target: steps until the target was reached × seconds per step; None without a
        target, or if it was not reached.
    """

    name: str
    batch_size: int
    variance_total: Interval
    variance_draws: Interval
    variance_points: Interval
    bias_z: float
    error: float
    seconds_per_step: float
    efficiency_vs_plain: float
    efficiency_vs_best: float
    seconds_to_target: float | None = None

    @property
    def biased(self) -> bool:
        """Whether the bias is significant."""
        return self.error > max(self.variance_total.value, 0.0)

    def to_json(self) -> dict[str, Any]:
        """The record as numbers, the ends of each interval beside its value."""
        flat = {}
        for name, value in self._asdict().items():
            if isinstance(value, Interval):
                flat |= {name: value.value, f"{name}_interval": [value.low, value.high]}
            else:
                flat[name] = value
        return as_json(flat)


class Ranking(NamedTuple):
    """Measured estimators.

    Attributes:
      rows: the measurements, the most efficient estimator first.
      best_baseline: name and batch size of the best baseline.
      unavailable: the reason why an estimator has no row, by its name.
      params: the parameters at which all estimators were measured.
    """

    rows: list[Row]
    best_baseline: tuple[str, int]
    unavailable: dict[str, str]
    params: PyTree[Array]


def ranked(
    key: Key[Array, ""],
    objective: Objective,
    params: PyTree[Array],
    data: PyTree[Array],
    estimators: Mapping[str, Estimator],
    *,
    baselines: Collection[str],
    batch_sizes: Sequence[int],
    num_steps: int,
    optimizer: optax.GradientTransformation,
    driver: Estimator | None,
    seconds: float,
    report: Callable[[str, int], None] | None = None,
) -> Ranking:
    """Measure and rank estimators, among them the baselines, which are given by name."""
    _check_estimators(estimators, baselines)
    sizes = _checked_sizes(batch_sizes, objective.num_data)
    train_key, reference_key, start_key, each_key, timing_key = jax.random.split(key, 5)
    here, path = params, None
    if num_steps:
        W = largest_prime(min(num_steps, _PATH_NUMBERS // number_of_parameters(params)))
        here, path = short_training(
            train_key,
            objective,
            params,
            data,
            driver or estimators["plain"],
            optimizer,
            num_steps=num_steps,
            batch_size=sizes[0],
            path=W,
        )
    allowed = _REFERENCE * seconds
    reference = full_gradient(reference_key, objective, here, data, seconds=allowed)
    spot = _Spot(objective, here, path, data, optimizer, reference)
    share = seconds / (len(estimators) * len(sizes))
    loops, states, found, unavailable = {}, {}, {}, {}
    for name, estimator in estimators.items():
        try:
            started = estimator.start(start_key, objective, params, data)  # one key for all: fair
            for size in sizes:
                if report:
                    report(name, size)
                measured = _measured(each_key, spot, started, size, share)
                loops[name, size], states[name, size], found[name, size] = measured
        except ValueError as error:
            if name == "plain":  # without it there is nothing to compare with
                raise
            unavailable[name] = f"not available: {error}"
    times = seconds_per_step(timing_key, loops, states, seconds=_TIMING * seconds)
    return Ranking(*_rows(found, times, baselines), unavailable, here)


class _Spot(NamedTuple):
    """The problem at the parameters at which all estimators are measured."""

    objective: Objective
    params: PyTree[Array]
    path: PyTree[Array] | None
    data: PyTree[Array]
    optimizer: optax.GradientTransformation
    reference: Reference


def _measured(
    key: Key[Array, ""], spot: _Spot, started: Started, size: int, seconds: float
) -> tuple[Stepper, PyTree[Array], VarianceComponents]:
    """The loop of an estimator, its state after learning, and its noise."""
    init_key, learn_key, noise_key = jax.random.split(key, 3)
    problem = (spot.objective, spot.params, spot.data)
    loop = stepper(*problem, started, size, spot.optimizer)
    if spot.path is None:
        state = started.init(init_key, spot.params)
        allowed = _WARM_UP * seconds
        state = state_after_steps(learn_key, loop, state, steps=1000, seconds=allowed)
    else:
        state = started.init(init_key, jax.tree.map(lambda p: p[0], spot.path))
        state = state_after_path(learn_key, loop, state, spot.path, seconds=_FOLLOW)
    found = variance_components(
        noise_key,
        *problem,
        started,
        batch_size=size,
        state=state,
        reference=spot.reference,
        seconds=_VARIANCE * seconds,
    )
    if not math.isfinite(found.parts.total.value):
        raise ValueError(
            f"estimator: gradients are not finite at batch size {size}. Lower its learning rate."
        )
    return loop, state, found


def _rows(
    found: Mapping[tuple[str, int], VarianceComponents],
    times: Mapping[tuple[str, int], float],
    baselines: Collection[str],
) -> tuple[list[Row], tuple[str, int]]:
    """Every estimator's row, the most efficient first."""
    errors = {at: _error(components) for at, components in found.items()}
    # A variance estimated as zero still costs time: it cannot be told from rounding.
    least = {size: 1e-12 * errors["plain", size] for _, size in errors}
    costs = {at: max(errors[at], least[at[1]]) * times[at] for at in errors}
    best = min((at for at in costs if at[0] in baselines), key=lambda at: costs[at])
    rows = [
        Row(
            name=at[0],
            batch_size=at[1],
            variance_total=components.parts.total,
            variance_draws=components.parts.draws_given_points,
            variance_points=components.parts.points,
            bias_z=components.bias_z,
            error=errors[at],
            seconds_per_step=times[at],
            efficiency_vs_plain=_ratio(costs["plain", at[1]], costs[at]),
            efficiency_vs_best=_ratio(costs[best], costs[at]),
        )
        for at, components in found.items()
    ]
    return sorted(rows, key=lambda row: -row.efficiency_vs_best), best


def _ratio(a: float, b: float) -> float:
    """The ratio a / b; both are zero if there is no noise at all."""
    return a / b if b else 1.0


def _error(found: VarianceComponents) -> float:
    """The variance, plus the squared bias if the bias is significant."""
    bias = found.squared_bias if found.bias_z > _SIGNIFICANT else 0.0  # else it is noise
    return max(found.parts.total.value, 0.0) + max(bias, 0.0)


def _check_estimators(estimators: Mapping[str, Estimator], baselines: Collection[str]) -> None:
    for name, estimator in estimators.items():
        check_estimator(f"estimators[{name!r}]", estimator)
    if "plain" not in baselines:
        raise invalid(
            "baselines",
            expected='a baseline called "plain"',
            got=list(baselines),
            advice="Add plain=quell.monte_carlo().",
        )


def _checked_sizes(batch_sizes: Sequence[int], N: int) -> list[int]:
    sizes = sorted({min(size, N) for size in batch_sizes})
    if not sizes or sizes[0] < 1:
        raise invalid(
            "batch_sizes",
            expected="at least one batch size, all positive",
            got=tuple(batch_sizes),
            advice="Try (10, 100).",
        )
    return sizes
