"""Measurements: records that print, plot and save themselves."""

from pathlib import Path
from typing import Any, NamedTuple

from quell.diagnostics.nats import Nats, verdict
from quell.diagnostics.records import as_json, microseconds, percent, save_json, table
from quell.diagnostics.statistics import Interval, Parts, quotient
from quell.diagnostics.variance import Coordinates


class Ratios(NamedTuple):
    """Ratios of two measurements, usually to the plain estimator at the same batch size.

    Attributes:
      total: the ratio of the traces of the covariance.
      draws_given_points: the ratio of the parts that remain when the batch is known.
      points: the ratio of the parts that remain when the draws are averaged out.
      norm_variance: the ratio of Var‖G‖, which the paper reports.
      nats: the ratio of the noise in nats, or as the optimiser sees it.
      noisier: the share of coordinates that are noisier than those of the other.
    """

    total: Interval
    draws_given_points: Interval
    points: Interval
    norm_variance: Interval
    nats: Interval
    noisier: float


class Measurement(NamedTuple):
    """The noise of a gradient estimator by its causes, and its cost; see `quell.measure`.

    Attributes:
      parts: the trace of the covariance, split into points, draws and interaction.
      leaves: the parts of each leaf of the parameters, by its path.
      nats: the noise in nats, or as the optimiser sees it, the signal, and what follows from them.
      coordinates: the variance of each coordinate.
      norm_variance: Var‖G‖, the variance of the norm, which the paper reports.
      bias_z: the z-score of the bias against the reference; above 5 the estimator is biased.
      squared_bias: an unbiased estimate of ‖E[G] − ∇L‖², which may be below zero.
      signal_to_noise: ‖E[G]‖² / tr Cov[G].
      seconds_per_step: the median time of a compiled step, the estimator's rare work included.
      seconds_interval: the same with its interval.
      peak_memory: bytes that one estimate needs besides its inputs, if the device can tell.
      ceilings: for each basis, the share of the draws' variance of one plain draw that remains
        under the best coefficients, or the reason why the share is not known.
      batch_size: |B|.
      num_data: N.
      num_params: P.
      num_steps: T, the steps of the run that ended here, if known.
      evaluations: the number of gradients behind the variance.
      notes: the reasons why to trust less of this, such as a budget that was too short.
    """

    parts: Parts
    leaves: dict[str, Parts]
    nats: Nats
    coordinates: Coordinates
    norm_variance: Interval
    bias_z: float
    squared_bias: float
    signal_to_noise: float
    seconds_per_step: float
    seconds_interval: Interval
    peak_memory: int | None
    ceilings: dict[str, Interval | str]
    batch_size: int
    num_data: int
    num_params: int
    num_steps: int | None
    evaluations: int
    notes: tuple[str, ...]

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
            nats=quotient(self.nats.noise.total, reference.nats.noise.total),
            noisier=self.coordinates.noisier(reference.coordinates),
        )

    @property
    def verdict(self) -> str:
        """What the noise demands, and whether noise or steps held back the run, in words."""
        return verdict(self.nats, self.seconds_per_step, self.num_steps)

    def to_json(self) -> dict[str, Any]:
        """The record as plain dictionaries and numbers; NaN becomes None."""
        rest = {name: part for name, part in self._asdict().items() if name != "coordinates"}
        return as_json({**rest, "summed_sd": self.coordinates.summed_sd, "verdict": self.verdict})

    def save(self, path: str | Path) -> None:
        """Write the record as JSON."""
        save_json(path, self.to_json())

    def plot(self, path: str | Path | None = None):
        """Draw the parts, in total and per leaf, with matplotlib; save the figure at `path`."""
        from quell.plotting.comparison import parts_figure

        return parts_figure({"total": self.parts, **self.leaves}, path)


def _report(m: Measurement) -> str:
    rows, interval = [], "95 % interval"
    unit = "nats" if m.nats.exact else "as the optimiser sees it"
    for field, part in m.parts._asdict().items():
        name = "draws + interaction" if field == "draws_given_points" else field
        nu = getattr(m.nats.noise, field)
        share = percent(part.value, m.parts.total.value)
        rows.append(
            [name, f"{part.value:.4g}", _between(part), share, f"{nu.value:.4g}", _between(nu)]
        )
    blocks = [
        f"Gradient noise at batch size {m.batch_size} "
        f"(N = {m.num_data}, P = {m.num_params}; {m.evaluations} gradients)",
        table(["part", "trace of covariance", interval, "share", unit, interval], rows),
    ]
    if len(m.leaves) > 1:
        rows = [[name, *(f"{part.value:.3g}" for part in p[:4])] for name, p in m.leaves.items()]
        blocks.append(table(["leaf", "total", "points", "draws", "interaction"], rows))
    memory = "unknown" if m.peak_memory is None else f"{m.peak_memory / 2**20:.3g} MiB"
    facts = {
        f"signal, {unit}": m.nats.signal,
        "metric": m.nats.metric,
        "(sum of standard deviations)²": f"{m.coordinates.summed_sd:.4g}",
        "variance of the norm": m.norm_variance,
        "bias, z-score": f"{m.bias_z:.1f}",
        "signal to noise": f"{m.signal_to_noise:.3g}",
        "time per step": f"{microseconds(m.seconds_per_step)} µs, {_times(m.seconds_interval)}",
        "memory per step": memory,
    }
    facts |= {f"remaining at best, {name}": share for name, share in m.ceilings.items()}
    blocks.append("\n".join(f"{name:<48}{value}" for name, value in facts.items()))
    blocks.append(m.verdict)
    if m.notes:
        blocks.append("\n".join(f"Note: {note}." for note in m.notes))
    return "\n\n".join(blocks)


def _between(interval: Interval) -> str:
    return f"[{interval.low:.3g}, {interval.high:.3g}]"


def _times(interval: Interval) -> str:
    return f"[{microseconds(interval.low)}, {microseconds(interval.high)}]"
