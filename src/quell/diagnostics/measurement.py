"""Measurements: records that print, plot and save themselves."""

from pathlib import Path
from typing import Any, NamedTuple

from quell.diagnostics.records import as_json, microseconds, percent, save_json, table
from quell.diagnostics.statistics import Interval, Parts, quotient


class Ratios(NamedTuple):
    """Ratios of two measurements, usually to the plain estimator at the same batch size.

    Attributes:
      total: the ratio of the traces of the covariance.
      draws_given_points: the ratio of the parts that remain when the batch is known.
      points: the ratio of the parts that remain when the draws are averaged out.
      norm_variance: the ratio of Var‖G‖, which the paper reports.
    """

    total: Interval
    draws_given_points: Interval
    points: Interval
    norm_variance: Interval


class Measurement(NamedTuple):
    """The noise of a gradient estimator by its causes, and its cost; see `quell.measure`.

    Attributes:
      parts: the trace of the covariance, split into points, draws and interaction.
      leaves: the parts of each leaf of the parameters, by its path.
      norm_variance: Var‖G‖, the variance of the norm, which the paper reports.
      bias_z: the z-score of the bias against the reference; above 5 the estimator is biased.
      squared_bias: an unbiased estimate of ‖E[G] − ∇L‖², which may be below zero.
      signal_to_noise: ‖E[G]‖² / tr Cov[G].
      seconds_per_step: the median time of a compiled step.
      peak_memory: bytes that one estimate needs besides its inputs, if the device can tell.
      ceilings: for each basis, the share of the draws' variance of one plain draw that remains
        under the best coefficients, or the reason why the share is not known.
      batch_size: |B|.
      num_data: N.
      num_params: P.
      evaluations: the number of gradients behind the variance.
    """

    parts: Parts
    leaves: dict[str, Parts]
    norm_variance: Interval
    bias_z: float
    squared_bias: float
    signal_to_noise: float
    seconds_per_step: float
    peak_memory: int | None
    ceilings: dict[str, Interval | str]
    batch_size: int
    num_data: int
    num_params: int
    evaluations: int

    def __repr__(self) -> str:
        total, points, _, _, draws = (part.value for part in self.parts)
        shares = f"points={percent(points, total)}, draws={percent(draws, total)}"
        time = f"{microseconds(self.seconds_per_step)} µs per step"
        return f"Measurement(total={total:.3g}, {shares}, {time})"

    def __str__(self) -> str:
        return _report(self)

    def ratio_to(self, reference: "Measurement") -> Ratios:
        """Divide this measurement by another, with intervals for independent measurements."""
        ours, theirs = self.parts, reference.parts
        return Ratios(
            total=quotient(ours.total, theirs.total),
            draws_given_points=quotient(ours.draws_given_points, theirs.draws_given_points),
            points=quotient(ours.points, theirs.points),
            norm_variance=quotient(self.norm_variance, reference.norm_variance),
        )

    def to_json(self) -> dict[str, Any]:
        """The record as plain dictionaries and numbers; NaN becomes None."""
        return as_json(self)

    def save(self, path: str | Path) -> None:
        """Write the record as JSON."""
        save_json(path, self.to_json())

    def plot(self, path: str | Path | None = None):
        """Draw the parts, in total and per leaf, with matplotlib; save the figure at `path`."""
        from quell.plotting.comparison import parts_figure

        return parts_figure({"total": self.parts, **self.leaves}, path)


def _report(m: Measurement) -> str:
    rows = []
    for field, part in m.parts._asdict().items():
        name = "draws + interaction" if field == "draws_given_points" else field
        interval = f"[{part.low:.3g}, {part.high:.3g}]"
        rows.append([name, f"{part.value:.4g}", interval, percent(part.value, m.parts.total.value)])
    blocks = [
        f"Gradient noise at batch size {m.batch_size} "
        f"(N = {m.num_data}, P = {m.num_params}; {m.evaluations} gradients)",
        table(["part", "trace of covariance", "95 % interval", "share"], rows),
    ]
    if len(m.leaves) > 1:
        rows = [[name, *(f"{part.value:.3g}" for part in p[:4])] for name, p in m.leaves.items()]
        blocks.append(table(["leaf", "total", "points", "draws", "interaction"], rows))
    memory = "unknown" if m.peak_memory is None else f"{m.peak_memory / 2**20:.3g} MiB"
    facts = {
        "variance of the norm": m.norm_variance,
        "bias, z-score": f"{m.bias_z:.1f}",
        "signal to noise": f"{m.signal_to_noise:.3g}",
        "time per step": f"{microseconds(m.seconds_per_step)} µs",
        "memory per step": memory,
    }
    facts |= {f"remaining at best, {name}": share for name, share in m.ceilings.items()}
    blocks.append("\n".join(f"{name:<48}{value}" for name, value in facts.items()))
    return "\n\n".join(blocks)
