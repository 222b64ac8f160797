"""Measurements of several estimators at the same parameters, for `compare` and `recommend`."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import optax
from jaxtyping import Array, Key, PyTree

from quell._errors import invalid
from quell._jit import quick_jit
from quell._tree import number_of_parameters
from quell.diagnostics.budget import Budget, Report
from quell.diagnostics.cells import Cell, Spot, loop_of, measured_cell, metric_at, step_times
from quell.diagnostics.records import as_json
from quell.diagnostics.reference import full_gradient, no_reference
from quell.diagnostics.statistics import Interval
from quell.diagnostics.stepper import largest_prime
from quell.diagnostics.variance import VarianceComponents
from quell.estimators._types import Estimator, check_estimator
from quell.objective import Objective
from quell.training.short import short_training

_SIGNIFICANT = 5.0  # plain gradients with rare large entries reach z-scores of 4.4
_PATH_NUMBERS = 2**25  # the most numbers in the path of a run
_TRAINING, _REFERENCE, _METRIC, _TIMING = 0.3, 0.1, 0.1, 0.25  # shares of the time that is left
_SLACK = 0.35  # share of the time by which the compilation of another estimator may be late
_LONGER = 3.0  # an estimator that learns compiles so many times longer than plain, about
_NOTHING = 1e-12  # of plain's noise, or of the squared gradient: a variance below is rounding


class Row(NamedTuple):
    """One estimator at one batch size.

    Attributes:
      name: the estimator.
      batch_size: |B|.
      variance_total: the trace of the covariance of the gradient, with its interval.
      variance_draws: the part that remains when the batch is known.
      variance_points: the part that remains when the draws are averaged out.
      nats: ν, the noise in nats, or as the optimiser sees it.
      nats_draws, nats_points: the same two parts of it.
      noisier: the share of coordinates that are noisier than plain's at this batch size.
      bias_z: the z-score of the bias.
      error: the variance, plus the squared bias if the bias is significant.
      seconds_per_step: the median time of a compiled step, the estimator's rare work included.
      seconds_interval: the same with its interval.
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
    nats: Interval
    nats_draws: Interval
    nats_points: Interval
    noisier: float
    bias_z: float
    error: float
    seconds_per_step: float
    seconds_interval: Interval
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
        flat["seconds_per_step_interval"] = flat.pop("seconds_interval_interval")
        del flat["seconds_interval"]
        return as_json(flat)


class Ranking(NamedTuple):
    """Measured estimators.

    Attributes:
      rows: the measurements, the most efficient estimator first.
      best_baseline: name and batch size of the best baseline.
      unavailable: the reason why an estimator has no row, by its name.
      params: the parameters at which all estimators were measured.
      num_steps: the steps of the training that led there.
      exact: whether the unit of `nats` is the nat; otherwise it is as the optimiser sees it.
      times: seconds per step, by name and batch size.
      notes: the doubts that the budget leaves, in words.
    """

    rows: list[Row]
    best_baseline: tuple[str, int]
    unavailable: dict[str, str]
    params: PyTree[Array]
    num_steps: int
    exact: bool
    times: dict[tuple[str, int], Interval]
    notes: tuple[str, ...]


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
    driving: optax.GradientTransformation | None = None,
    precise: float = 0.0,
    unbiased: bool = False,
    timed: Collection[int] = (),
    seconds: float,
    report: Report | None = None,
) -> Ranking:
    """Measure and rank estimators, among them the baselines, which are given by name.

    The time is that of the clock on the wall. What does not fit is left out by name, larger batches
    first; an interruption ends the measurement, and what was measured by then is ranked.

    Args (beside those of `compare`):
      optimizer: the optimiser of the run to come, part of the time of a step.
      driving: the optimiser of the training that leads to the parameters; the same by default.
      precise: the relative standard error of the noise in nats that is enough.
      unbiased: whether all estimators are known to be, so that no pass over the data is needed.
      timed: batch sizes that are timed and no more.
    """
    _check_estimators(estimators, baselines)
    sizes = _checked_sizes(batch_sizes, objective.num_data)
    budget, say = Budget(seconds), report or (lambda name, size: None)
    train_key, reference_key, start_key, each_key, timing_key = jax.random.split(key, 5)
    here, path, trained = params, None, 0
    if num_steps:
        say("training", sizes[0])
        W = largest_prime(min(num_steps, _PATH_NUMBERS // number_of_parameters(params)))
        here, path, trained = short_training(
            train_key,
            objective,
            params,
            data,
            driver or estimators["plain"],
            driving or optimizer,
            num_steps=num_steps,
            batch_size=sizes[0],
            path=W,
            jit=quick_jit if unbiased else jax.jit,
            seconds=budget.share(_TRAINING),
        )
    if unbiased:
        reference = no_reference(number_of_parameters(params))
    else:
        say("the gradient itself", objective.num_data)
        allowed = budget.share(_REFERENCE)
        reference = full_gradient(reference_key, objective, here, data, seconds=allowed)
    started = {"plain": estimators["plain"].start(start_key, objective, params, data)}
    spot = Spot(objective, here, path, data, optimizer, reference)
    loop = loop_of(spot, started["plain"], sizes[0])
    at = (objective, here, optimizer, loop, started["plain"].init(each_key, here))
    metric = metric_at(each_key, *at, seconds=budget.share(_METRIC))
    cells: dict[tuple[str, int], Cell] = {}
    unavailable: dict[str, str] = {}
    names = ["plain", *(name for name in estimators if name != "plain")]
    order = [(name, size) for size in sizes for name in names]
    reserve, compilation = budget.share(_TIMING), {}

    def expected(name):
        """The seconds that compiling takes: as at the last batch size, or from those of plain."""
        usual = compilation["plain"]
        return compilation.get(name, usual if estimators[name].sampling else _LONGER * usual)

    try:
        for number, (name, size) in enumerate(order):
            left = budget.left() - reserve
            if name in unavailable:
                continue
            slack = _SLACK * seconds if size == sizes[0] else 0.0
            if len(cells) > 1 and (
                left < min(expected(name) / 2, expected(name) - slack)
                or (name != "plain" and ("plain", size) not in cells)
            ):
                left_out = name if size == sizes[0] else f"{name}, batch size {size}"
                unavailable[left_out] = f"left out: {seconds:g} s do not suffice to compile it too"
                continue
            say(name, size)
            try:
                if name not in started:  # one key for all: fair
                    started[name] = estimators[name].start(start_key, objective, params, data)
                if cells:
                    loop = loop_of(spot, started[name], size)
                share = max(budget.left() - reserve, 0.0) / (len(order) - number)
                cells[name, size] = measured_cell(
                    each_key, spot, metric, started[name], loop, size, precise, share
                )
                compilation[name] = cells[name, size].compilation
            except ValueError as error:
                if name == "plain":  # without it there is nothing to compare with
                    raise
                unavailable[name] = f"not available: {error}"
    except KeyboardInterrupt:
        if not cells:
            raise
        missing = [at for at in order if at not in cells and at[0] not in unavailable]
        unavailable |= {f"{name}, batch size {size}": "interrupted" for name, size in missing}
    for size in set(timed) - set(sizes):
        for name in [name for name, at in cells if at == sizes[0]]:
            if budget.left() < expected(name) / 2:  # a loop is about half of what is compiled
                instead = "the batch size is left as it is"
                if ("plain", size) in cells:
                    instead = "it is taken to cost in proportion to plain"
                unavailable[f"{name}, batch size {size}"] = (
                    f"not timed: {seconds:g} s were over; {instead}"
                )
                continue
            say(f"time per step of {name}", size)
            loop, cell = loop_of(spot, started[name], size), cells[name, sizes[0]]
            loop.advance(loop.prepare(timing_key), cell.learned.state, 0)  # compiles
            cells[name, size] = cell._replace(loop=loop, found=None)
    say("time per step", max(size for _, size in cells))
    times = step_times(timing_key, cells, budget.left())
    found = {at: cell.found for at, cell in cells.items() if cell.found is not None}
    rows, best = _rows(found, times, baselines)
    notes = tuple(budget.notes())
    return Ranking(rows, best, unavailable, here, trained, metric.nats, times, notes)


def _rows(
    found: Mapping[tuple[str, int], VarianceComponents],
    times: Mapping[tuple[str, int], Interval],
    baselines: Collection[str],
) -> tuple[list[Row], tuple[str, int]]:
    """Every estimator's row, the most efficient first."""
    errors = {at: _error(components) for at, components in found.items()}
    # A variance estimated as zero still costs time: it cannot be told from rounding.
    least = {
        size: _NOTHING * (errors["plain", size] + found["plain", size].squared_mean)
        for _, size in errors
    }
    costs = {at: max(errors[at], least[at[1]]) * times[at].value for at in errors}
    best = min((at for at in costs if at[0] in baselines), key=lambda at: costs[at])
    rows = [
        Row(
            name=at[0],
            batch_size=at[1],
            variance_total=components.parts.total,
            variance_draws=components.parts.draws_given_points,
            variance_points=components.parts.points,
            nats=components.nats.total,
            nats_draws=components.nats.draws_given_points,
            nats_points=components.nats.points,
            noisier=components.coordinates.noisier(found["plain", at[1]].coordinates),
            bias_z=components.bias_z,
            error=errors[at],
            seconds_per_step=times[at].value,
            seconds_interval=times[at],
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
