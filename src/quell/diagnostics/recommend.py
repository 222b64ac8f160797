"""The recommendation of an estimator and a batch size, from measurements within a budget."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import optax
from jaxtyping import Array, Key, PyTree

from quell._arguments import checked
from quell._checks import check_batch_size, check_positive, check_whole, checked_problem
from quell.diagnostics.budget import status
from quell.diagnostics.metric import family_of, fisher_metric
from quell.diagnostics.nats import steps_to
from quell.diagnostics.ranking import Row, ranked
from quell.diagnostics.records import by_reason, microseconds, table
from quell.diagnostics.statistics import Interval
from quell.estimators._closed_form import closed_form
from quell.estimators._sampling import antithetic, monte_carlo
from quell.estimators._types import Estimator
from quell.natural_gradient import natural_gradient
from quell.objective import Objective
from quell.training.batches import Batches, reshuffle

_PRECISE = 0.03  # relative standard error of noise that is enough for a choice
_LARGER = 16  # a second batch size is measured, so many times larger: steps cost a + b|B|
_BEYOND = 8  # the time of a step is trusted up to so many times the largest size measured
_LATER = 3.0  # so many epochs pass before reshuffling pays for real optimisers, ideal ones: one
_REAL = 2.0  # times the least steps that noise demands, in tuned runs (docs/yardstick.md: 1 to 3)
_NOISIER = 0.05  # the most coordinates that may be noisier than plain's
_ROUNDING = 0.01  # of the seconds of a run: less of them for its noise is no difference
_MARGIN = 1.05, 1.15  # a simpler estimator may take so much longer: without and with doubt


class Choice(NamedTuple):
    """An estimator at a batch size, with the time that it needs.

    Attributes:
      name: the estimator.
      batch_size: |B|.
      nats: ν, or the noise as the optimiser sees it.
      seconds_per_step: the time of a step.
      seconds: the time of a run to within a nat: the steps of a run without noise, and the steps
        that the noise demands.
      doubt: the relative standard error of `seconds`.
      reason: why it was not considered, or an empty text.
    """

    name: str
    batch_size: int
    nats: float
    seconds_per_step: float
    seconds: float
    doubt: float
    reason: str = ""


class Recommendation(NamedTuple):
    """The estimator and the batch size to use, with the measurements; see `quell.recommend`.

    Attributes:
      name: the name of the recommended estimator.
      estimator: the estimator itself, for `fit`.
      batch_size: |B|, for `fit`.
      choices: every estimator at its best batch size, the soonest first.
      candidates: the measurements, the most efficient by variance × time first.
      num_steps: T, the run for which the choice holds.
      exact: whether `nats` are nats, or else noise as the optimiser sees it.
      unavailable: the reason why a candidate was not measured, by its name.
      notes: the doubts that the budget leaves, in words.
    """

    name: str
    estimator: Estimator
    batch_size: int
    choices: tuple[Choice, ...]
    candidates: tuple[Row, ...]
    num_steps: int
    exact: bool
    unavailable: dict[str, str]
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        own = next(c for c in self.choices if c.name == self.name)
        plain = next(c for c in self.choices if c.name == "plain")
        gain = f"{plain.seconds / own.seconds:.2f} × sooner than plain"
        return f"Recommendation({self.name} at batch size {self.batch_size}, {gain})"

    def __str__(self) -> str:
        unit = "nats" if self.exact else "noise seen by optimiser"
        head = ["estimator", "batch size", unit, "µs per step", "seconds to a nat", ""]
        rows = [
            [
                choice.name,
                str(choice.batch_size),
                f"{choice.nats:.3g}",
                microseconds(choice.seconds_per_step),
                f"{choice.seconds:.3g}",
                choice.reason,
            ]
            for choice in self.choices
        ]
        lines = [f"Use {self.name} at batch size {self.batch_size}.", table(head, rows)]
        lines += by_reason(self.unavailable)
        lines += [f"Note: {note}." for note in self.notes]
        return "\n\n".join(lines[:2]) + "".join(f"\n{line}" for line in lines[2:])

    def to_json(self) -> dict[str, Any]:
        """The record as plain dictionaries and numbers."""
        return {
            "name": self.name,
            "batch_size": self.batch_size,
            "choices": [choice._asdict() for choice in self.choices],
            "candidates": [row.to_json() for row in self.candidates],
            "unavailable": self.unavailable,
            "notes": list(self.notes),
        }


@checked()
def recommend(
    key: Key[Array, ""],
    objective: Objective,
    params: PyTree[Array],
    data: PyTree[Array],
    *,
    batch_size: int = 10,
    largest: int | None = None,
    seconds: float = 10.0,
    optimizer: optax.GradientTransformation | None = None,
    num_steps: int = 500,
    batches: Batches = reshuffle,
    report: Callable[[str, int], None] | None = None,
) -> Recommendation:
    """Recommend the estimator and the batch size that are soonest within a nat of the optimum.

    A run of T steps without noise is followed by the steps that the noise demands, twice the least
    number ν/1 nat (see `quell.measure`), each at its measured time, rare work included. The
    candidates learn along a short training, by natural gradients if q is Gaussian, and are measured
    at its end, since noise near the optimum is what counts. Noise at other batch sizes follows from
    that at the smallest; the time of a step is measured at two sizes and taken to be linear. A
    candidate that makes more than 5 % of the coordinates noisier than plain is dropped, and of
    estimators that measurements cannot tell apart the quieter is preferred, then the simpler.

    Args:
      key: the key for all randomness.
      objective: L.
      params: θ, the start of the training.
      data: leaves `[N, ...]`.
      batch_size: |B|, the smallest batch size.
      largest: the largest batch size; N by default. `largest=batch_size` leaves no choice.
      seconds: the time to take, with compilation and the short training. What does not fit is left
        out by name; an interruption (Ctrl-C) ends the measurement and keeps what it has.
      optimizer: the optimiser of the run; Adam with rate 0.01 by default. Its update is part of the
        time of a step.
      num_steps: T, the steps of the short training, and of a run without noise.
      batches: the stream of the run's batches, `reshuffle` or `with_replacement`.
      report: `report(name, batch_size)`, called before each measurement.

    Returns:
      A record that prints as a table: `fit(..., estimator=advice.estimator,
      batch_size=advice.batch_size)`.
    """
    params, data = checked_problem(key, objective, params, data)
    check_batch_size(batch_size, objective.num_data)
    N = objective.num_data
    largest = N if largest is None else largest
    check_whole("largest", largest, batch_size)
    check_whole("num_steps", num_steps, 0)
    check_positive("seconds", seconds, 10)
    estimators = candidates(objective)
    larger = min(_LARGER * batch_size, largest, N)
    with status(report) as say:
        ranking = ranked(
            key,
            objective,
            params,
            data,
            estimators,
            baselines=("plain",),
            batch_sizes=(batch_size,),
            timed=(larger,),
            unbiased=True,
            precise=_PRECISE,
            num_steps=num_steps,
            optimizer=optax.adam(1e-2) if optimizer is None else optimizer,
            driver=estimators.get("antithetic", estimators["plain"]),
            driving=_natural(objective, params, num_steps),
            seconds=seconds,
            report=say,
        )
    run = Run(max(1, num_steps), N, min(largest, N), batches is reshuffle, ranking.exact)
    found = recommendation(estimators, ranking.rows, ranking.times, run)
    return found._replace(unavailable=ranking.unavailable, notes=ranking.notes)


def candidates(objective: Objective) -> dict[str, Estimator]:
    """The candidates of `recommend`, by name, the simplest first."""
    found = {"plain": monte_carlo()}
    if objective.noise.reflect is not None:
        found["antithetic"] = antithetic()
    return found | {"closed-form": closed_form()}


def _natural(
    objective: Objective, params: PyTree[Array], num_steps: int
) -> optax.GradientTransformation | None:
    """Natural gradients for a short training, if they fit: they come close to the optimum soon."""
    if fisher_metric(objective, params) is None or not num_steps:
        return None
    return natural_gradient(num_steps, family=family_of(objective))


class Run(NamedTuple):
    """The run for which a choice is made."""

    num_steps: int
    num_data: int
    largest: int
    reshuffled: bool
    exact: bool


def recommendation(
    estimators: Mapping[str, Estimator],
    rows: Sequence[Row],
    times: Mapping[tuple[str, int], Interval],
    run: Run,
) -> Recommendation:
    """The choice from rows of one batch size and times at more, the simplest estimator first."""
    measured, best = {row.name: row for row in rows}, {}
    known = {name: {} for name in measured}
    for (name, size), time in times.items():
        known[name][size] = time.value
    for name in [name for name in estimators if name in measured]:
        options = _choices(measured[name], _all_sizes(known[name], known["plain"]), run)
        best[name] = min(options, key=lambda choice: choice.seconds)
    open_ones = {name: choice for name, choice in best.items() if not choice.reason}
    soonest = min(open_ones.values(), key=lambda choice: choice.seconds)
    equals = [choice for choice in open_ones.values() if _as_good(choice, soonest)]
    # Of equals the quieter one suffers less from a rate that is not the best.
    demanded = {c.name: c.seconds - run.num_steps * c.seconds_per_step for c in equals}
    most = _MARGIN[0] * min(demanded.values()) + _ROUNDING * soonest.seconds
    chosen = next(choice for choice in equals if demanded[choice.name] <= most)
    return Recommendation(
        chosen.name,
        estimators[chosen.name],
        chosen.batch_size,
        tuple(sorted(best.values(), key=lambda choice: choice.seconds)),
        tuple(rows),
        run.num_steps,
        run.exact,
        {},
    )


def _all_sizes(own: Mapping[int, float], plain: Mapping[int, float]) -> dict[int, float]:
    """The times at all sizes of plain: a time that is missing grows from the least as plain's.

    >>> _all_sizes({10: 2.0}, {10: 1.0, 160: 3.0})
    {10: 2.0, 160: 6.0}
    """
    least = min(own)
    return {size: own.get(size, own[least] * time / plain[least]) for size, time in plain.items()}


def _as_good(choice: Choice, soonest: Choice) -> bool:
    """Whether a choice is as good as the soonest, as far as measurements can tell."""
    doubt = math.hypot(choice.doubt, soonest.doubt)
    return choice.seconds <= soonest.seconds * min(max(_MARGIN[0], 1 + doubt), _MARGIN[1])


def _choices(row: Row, seconds: Mapping[int, float], run: Run) -> list[Choice]:
    """An estimator at every batch size, from its noise at one and its times at one or two."""
    small, largest_timed = row.batch_size, max(seconds)
    sizes = {small}
    if largest_timed > small:
        top = min(run.largest, _BEYOND * largest_timed)
        sizes |= {small * 2**k for k in range(32) if small * 2**k <= top} | {top}
    noisy = row.noisier > _NOISIER
    reason = f"{100 * row.noisier:.0f} % of coordinates noisier" if noisy else ""
    return [_choice(row, seconds, size, run, reason) for size in sorted(sizes)]


def _choice(row: Row, seconds: Mapping[int, float], size: int, run: Run, reason: str) -> Choice:
    """An estimator at one batch size: its noise scales, its time is linear."""
    N, small, large = run.num_data, row.batch_size, max(seconds)
    draws = max(row.nats_draws.value, 0.0) * small / size
    # a batch without replacement has noise in proportion to 1/|B| − 1/N
    share = (1 / size - 1 / N) / (1 / small - 1 / N) if small < N else 0.0
    points = max(row.nats_points.value, 0.0) * share
    per_step = seconds[small]
    if large > small:
        per_step += max(seconds[large] - per_step, 0.0) / (large - small) * (size - small)
    if run.exact:
        pays = _LATER * N / size if run.reshuffled else math.inf
        noisy = _REAL * steps_to(draws, points, 1.0, pays)
    else:  # a run at this rate ends ν/2 above; its rate has to fall by as much
        noisy = run.num_steps * (draws + points) / 2
    nats, time = row.nats, row.seconds_interval
    of_noise = nats.standard_error / nats.value if nats.value > 0 else 0.0
    doubt = math.hypot(time.standard_error / time.value, of_noise * noisy / (run.num_steps + noisy))
    total = per_step * (run.num_steps + noisy)
    return Choice(row.name, size, draws + points, per_step, total, doubt, reason)
