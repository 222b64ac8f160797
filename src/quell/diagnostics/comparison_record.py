"""What a comparison found, as a record that prints, plots and saves itself."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from quell._measure import Estimate
from quell._measure._record import plain, table


class Row(NamedTuple):
    """One estimator at one batch size.

    Attributes:
      name: the estimator.
      batch_size: |B|.
      variance_total: the trace of the covariance of the gradient, with its interval.
      variance_draws: the part of it that is left once the batch is known.
      variance_points: the part of it that is left once the draws are averaged out.
      bias_z: the z-score of the bias.
      error: the variance, plus the squared bias where that is significant.
      seconds_per_step: the median time of a compiled step.
      efficiency_vs_plain: error × time of one plain draw at this batch size, over this one's.
      efficiency_vs_best: the same against the best baseline at any batch size.
      seconds_to_target: steps until the target was reached × seconds per step; None if it was not
        asked for or not reached.
    """

    name: str
    batch_size: int
    variance_total: Estimate
    variance_draws: Estimate
    variance_points: Estimate
    bias_z: float
    error: float
    seconds_per_step: float
    efficiency_vs_plain: float
    efficiency_vs_best: float
    seconds_to_target: float | None = None


class Comparison(NamedTuple):
    """Estimators side by side, the one to pick first; see `quell.compare`.

    Attributes:
      rows: by efficiency, the best first.
      unavailable: why an estimator has no row, by its name.
      best_baseline: name and batch size of the best plain or antithetic estimator.
      ceilings: for each basis, the share of the draws' variance that the best coefficients leave.
      num_data: N.
      num_params: P.
      num_steps: steps of training before the parameters were frozen.
      target: the objective whose time was measured, if any.
    """

    rows: tuple[Row, ...]
    unavailable: dict[str, str]
    best_baseline: tuple[str, int]
    ceilings: dict[str, Estimate | str]
    num_data: int
    num_params: int
    num_steps: int
    target: float | None

    def __str__(self) -> str:
        return _report(self)

    def to_json(self) -> dict[str, Any]:
        """The record as plain dictionaries and numbers: `estimators` is a list, best first."""
        rest = {name: value for name, value in self._asdict().items() if name != "rows"}
        return {"estimators": [_row_json(row) for row in self.rows], **plain(rest)}

    def save(self, path: str | Path) -> None:
        """Write the record as JSON."""
        Path(path).write_text(json.dumps(self.to_json(), indent=2, allow_nan=False) + "\n")

    def plot(self, path: str | Path | None = None):
        """Draw variance against seconds per step; needs matplotlib.

        Args:
          path: where to save the figure, if anywhere.

        Returns:
          The matplotlib figure.
        """
        from quell.plotting.comparison import frontier_figure

        return frontier_figure(self.rows, self.best_baseline, path)


def _row_json(row: Row) -> dict[str, Any]:
    """Estimates as numbers, their intervals beside them."""
    flat = {}
    for name, value in row._asdict().items():
        if isinstance(value, Estimate):
            flat |= {name: value.value, f"{name}_interval": [value.low, value.high]}
        else:
            flat[name] = value
    return plain(flat)


def _report(comparison: Comparison) -> str:
    head = ["estimator", "batch", "variance", "draws", "points", "µs/step", "×plain", "×best"]
    timed = comparison.target is not None
    rows = []
    for row in comparison.rows:
        biased = " (biased)" if row.error > row.variance_total.value else ""
        cells = [row.name + biased, str(row.batch_size)]
        parts = (row.variance_total, row.variance_draws, row.variance_points)
        cells += [f"{part.value:.3g}" for part in parts]
        cells += [f"{row.seconds_per_step * 1e6:.1f}"]
        cells += [f"{row.efficiency_vs_plain:.2f}", f"{row.efficiency_vs_best:.2f}"]
        if timed:
            reached = row.seconds_to_target
            cells.append("–" if reached is None else f"{reached:.3g} s")
        rows.append(cells)
    name, size = comparison.best_baseline
    blocks = [
        f"N = {comparison.num_data}, P = {comparison.num_params}, "
        f"after {comparison.num_steps} steps; best baseline: {name} at batch size {size}",
        table([*head, "to target"] if timed else head, rows),
    ]
    if comparison.unavailable:
        lines = [f"{name}: {reason}" for name, reason in comparison.unavailable.items()]
        blocks.append("Not available\n" + "\n".join(lines))
    return "\n\n".join(blocks)
