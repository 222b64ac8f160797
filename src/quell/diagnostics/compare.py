"""A comparison of estimators on one problem, in one run."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import optax
from jaxtyping import Array, Key, PyTree

from quell._arguments import checked
from quell._checks import check_positive, check_whole, checked_problem
from quell._tree import number_of_parameters
from quell.bases import Basis
from quell.diagnostics.budget import status
from quell.diagnostics.ceilings import ceilings
from quell.diagnostics.ranking import Row, ranked
from quell.diagnostics.records import as_json, by_reason, microseconds, save_json, table
from quell.diagnostics.statistics import Interval
from quell.diagnostics.target import seconds_to_target
from quell.estimators._sampling import antithetic, monte_carlo
from quell.estimators._types import Estimator
from quell.objective import Objective

BASELINES: Mapping[str, Estimator] = {
    "plain": monte_carlo(),
    "plain-4": monte_carlo(4),
    "antithetic": antithetic(),
    "antithetic-8": antithetic(8),
}
"""The estimators to beat: more draws, antithetic draws and larger batches."""

_ADAM = optax.adam(1e-2)
_CEILING = 0.3  # share of the time for the ceilings, if they are wanted


class Comparison(NamedTuple):
    """Estimators side by side, the most efficient first; see `quell.compare`.

    Attributes:
      rows: the measurements, the most efficient estimator first.
      unavailable: the reason why an estimator has no row, by its name.
      best_baseline: name and batch size of the best baseline.
      ceilings: for each basis, the share of the draws' variance that remains under the best
        coefficients.
      num_data: N.
      num_params: P.
      num_steps: steps of training before the parameters were frozen.
      exact: whether `nats` of the rows are nats, or else noise as the optimiser sees it.
      target: the value of the objective to which the time was measured, if any.
      notes: the doubts that the budget leaves, in words.
    """

    rows: tuple[Row, ...]
    unavailable: dict[str, str]
    best_baseline: tuple[str, int]
    ceilings: dict[str, Interval | str]
    num_data: int
    num_params: int
    num_steps: int
    exact: bool
    target: float | None
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        best = self.rows[0]
        leader = f"{best.name} at batch size {best.batch_size}"
        gain = f"{best.efficiency_vs_best:.2f} × the best baseline"
        return f"Comparison({len(self.rows)} rows, best: {leader}, {gain})"

    def __str__(self) -> str:
        return _report(self)

    def to_json(self) -> dict[str, Any]:
        """The record as plain dictionaries and numbers: `estimators` is a list, best first."""
        rest = {name: value for name, value in self._asdict().items() if name != "rows"}
        return {"estimators": [row.to_json() for row in self.rows], **as_json(rest)}

    def save(self, path: str | Path) -> None:
        """Write the record as JSON."""
        save_json(path, self.to_json())

    def plot(self, path: str | Path | None = None):
        """Draw variance against time per step, with matplotlib; save the figure at `path`."""
        from quell.plotting.comparison import frontier_figure

        return frontier_figure(self.rows, self.best_baseline, path)


@checked()
def compare(
    key: Key[Array, ""],
    objective: Objective,
    params: PyTree[Array],
    data: PyTree[Array],
    estimators: Mapping[str, Estimator],
    *,
    batch_sizes: Sequence[int] = (10, 100, 1000),
    baselines: Mapping[str, Estimator] = BASELINES,
    num_steps: int = 0,
    optimizer: optax.GradientTransformation | None = None,
    driver: Estimator | None = None,
    seconds: float = 60.0,
    target: float | None = None,
    target_steps: int = 10_000,
    bases: Mapping[str, Basis] | None = None,
    report: Callable[[str, int], None] | None = None,
) -> Comparison:
    """Compare estimators by variance × time on the same problem, at the same parameters.

    The noise of a run of fixed length in seconds is (variance of a step) × (seconds per step), so
    the efficiency of an estimator is the ratio of these products. The efficiency is given against
    one plain draw at the same batch size, and against the best baseline at any batch size; the
    baselines are plain and antithetic draws, few and many.

    With `num_steps` the model is first trained on the gradients of a driver, and the state of every
    estimator learns along that run, from batches of its own, as it would in training (along its
    last ten seconds, if steps are slow). Otherwise the parameters stay fixed while the states
    learn; estimators that remember earlier parameters, such as SVRG, then look better than they
    are in training.

    Args:
      key: the key for all randomness.
      objective: L.
      params: θ, the start of the training, or the place of the comparison without training.
      data: a pytree with leaves `[N, ...]`.
      estimators: estimators by name.
      batch_sizes: each estimator is measured at each of them; sizes above N become N.
      baselines: the estimators to beat, one of them called "plain"; measured as well.
      num_steps: T, the number of steps of training before the parameters are frozen.
      optimizer: the optimiser of the training; Adam with rate 0.01 by default. Its update is part
        of the time of a step.
      driver: the estimator of the training; plain by default. Noisy gradients shake the parameters,
        and coefficients then have more to follow than they would on gradients of their own.
      seconds: the time to take, with compilation and training. What does not fit is left out by
        name; an interruption (Ctrl-C) ends the measurement and keeps what it has.
      target: a value of the objective; if given, each estimator also trains until it reaches it.
      target_steps: the most steps of such a training, which takes its own time.
      bases: bases of control variates, by name, whose ceilings are wanted.
      report: `report(name, batch_size)`, called before each estimator is measured.

    Returns:
      A record that prints as a table, plots and saves itself, the most efficient estimator first.
      An estimator that cannot serve the objective is listed with the reason.
    """
    params, data = checked_problem(key, objective, params, data)
    check_whole("num_steps", num_steps, 0)
    check_whole("target_steps", target_steps, 1)
    check_positive("seconds", seconds, 60)
    ceiling_seconds = _CEILING * seconds if bases else 0.0
    rank_key, target_key, ceiling_key = jax.random.split(key, 3)
    optimizer = _ADAM if optimizer is None else optimizer
    everyone = {**baselines, **estimators}
    with status(report) as say:
        ranking = ranked(
            rank_key,
            objective,
            params,
            data,
            everyone,
            baselines=tuple(baselines),
            batch_sizes=batch_sizes,
            num_steps=num_steps,
            optimizer=optimizer,
            driver=driver,
            seconds=seconds - ceiling_seconds,
            report=say,
        )
    rows = ranking.rows
    if target is not None:
        rows = [
            row._replace(
                seconds_to_target=seconds_to_target(
                    target_key,
                    objective,
                    params,
                    data,
                    everyone[row.name],
                    optimizer,
                    batch_size=row.batch_size,
                    target=target,
                    seconds_per_step=row.seconds_per_step,
                    num_steps=target_steps,
                )
            )
            for row in rows
        ]
    limits = {}
    if bases:
        at = (objective, ranking.params, data)
        limits = ceilings(ceiling_key, *at, bases=bases, seconds=ceiling_seconds)
    return Comparison(
        rows=tuple(rows),
        unavailable=ranking.unavailable,
        best_baseline=ranking.best_baseline,
        ceilings=limits,
        num_data=objective.num_data,
        num_params=number_of_parameters(params),
        num_steps=ranking.num_steps,
        exact=ranking.exact,
        target=target,
        notes=ranking.notes,
    )


def _report(comparison: Comparison) -> str:
    unit = "nats" if comparison.exact else "seen by optimiser"
    columns: dict[str, Callable[[Row], str]] = {
        "estimator": lambda row: row.name + (" (biased)" if row.biased else ""),
        "batch size": lambda row: str(row.batch_size),
        "variance": lambda row: f"{row.variance_total.value:.3g}",
        "from draws": lambda row: f"{row.variance_draws.value:.3g}",
        "from points": lambda row: f"{row.variance_points.value:.3g}",
        unit: lambda row: f"{row.nats.value:.3g}",
        "noisier": lambda row: f"{100 * row.noisier:.0f} %",
        "µs per step": lambda row: microseconds(row.seconds_per_step),
        "efficiency (plain = 1)": lambda row: f"{row.efficiency_vs_plain:.2f}",
        "(best baseline = 1)": lambda row: f"{row.efficiency_vs_best:.2f}",
    }
    if comparison.target is not None:
        columns["seconds to target"] = lambda row: (
            "–" if row.seconds_to_target is None else f"{row.seconds_to_target:.3g}"
        )
    name, size = comparison.best_baseline
    blocks = [
        f"N = {comparison.num_data}, P = {comparison.num_params}, "
        f"after {comparison.num_steps} steps; best baseline: {name} at batch size {size}",
        table(list(columns), [[cell(row) for cell in columns.values()] for row in comparison.rows]),
    ]
    if comparison.unavailable:
        blocks.append("Not available\n" + "\n".join(by_reason(comparison.unavailable)))
    blocks += [f"Note: {note}." for note in comparison.notes]
    return "\n\n".join(blocks)
