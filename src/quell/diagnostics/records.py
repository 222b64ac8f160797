"""What a measurement found, as a record that prints, plots and saves itself."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from quell._measure._statistics import Estimate, Parts, quotient


class Ratios(NamedTuple):
    """One measurement against another, usually the plain estimator's at the same batch size.

    Attributes:
      total: of the trace of the covariance.
      draws_given_points: of the part that is left once the batch is known.
      points: of the part that is left once the draws are averaged out.
      norm_variance: of Var‖G‖, as the paper reports it.
    """

    total: Estimate
    draws_given_points: Estimate
    points: Estimate
    norm_variance: Estimate


class Measurement(NamedTuple):
    """Where the noise of a gradient estimator comes from, and what it costs; see `quell.measure`.

    Attributes:
      parts: the trace of the covariance, split into points, draws and interaction.
      leaves: the same for each leaf of the parameters, by its path.
      norm_variance: Var‖G‖, the variance of the norm, which the paper reports.
      bias_z: the z-score of the bias against the reference; beyond ±4 the estimator is biased.
      squared_bias: ‖E[G] − ∇L‖², without bias itself, so it may be below zero.
      signal_to_noise: ‖E[G]‖² / tr Cov[G].
      seconds_per_step: the median time of a compiled step.
      peak_memory: bytes that one estimate needs besides its inputs, where the device can tell.
      ceilings: for each basis, the share of the draws' variance of one plain draw that the best
        coefficients leave, or why it is not known.
      batch_size: |B|.
      num_data: N.
      num_params: P.
      evaluations: how many gradients the variance was estimated from.
    """

    parts: Parts
    leaves: dict[str, Parts]
    norm_variance: Estimate
    bias_z: float
    squared_bias: float
    signal_to_noise: float
    seconds_per_step: float
    peak_memory: int | None
    ceilings: dict[str, Estimate | str]
    batch_size: int
    num_data: int
    num_params: int
    evaluations: int

    def __str__(self) -> str:
        return _report(self)

    def ratio_to(self, reference: "Measurement") -> Ratios:
        """This measurement over another's, with intervals for two independent measurements."""
        ours, theirs = self.parts, reference.parts
        return Ratios(
            total=quotient(ours.total, theirs.total),
            draws_given_points=quotient(ours.draws_given_points, theirs.draws_given_points),
            points=quotient(ours.points, theirs.points),
            norm_variance=quotient(self.norm_variance, reference.norm_variance),
        )

    def to_json(self) -> dict[str, Any]:
        """The record as plain dictionaries and numbers; NaN becomes None."""
        return plain(self)

    def save(self, path: str | Path) -> None:
        """Write the record as JSON."""
        Path(path).write_text(json.dumps(self.to_json(), indent=2, allow_nan=False) + "\n")

    def plot(self, path: str | Path | None = None):
        """Draw the parts, in total and per leaf; needs matplotlib.

        Args:
          path: where to save the figure, if anywhere.

        Returns:
          The matplotlib figure.
        """
        from quell.plotting.comparison import parts_figure

        return parts_figure({"total": self.parts, **self.leaves}, path)


def plain(value: Any) -> Any:
    """Records, tuples and numbers as what JSON can hold."""
    if hasattr(value, "_asdict"):
        return {name: plain(part) for name, part in value._asdict().items()}
    if isinstance(value, dict):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value


def table(head: list[str], rows: list[list[str]]) -> str:
    """Columns aligned by spaces, the first to the left and the others to the right."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = []
    for row in [head, ["-" * width for width in widths], *rows]:
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)


def _report(m: Measurement) -> str:
    names = {
        "total": "total",
        "points": "points",
        "draws": "draws",
        "interaction": "interaction",
        "draws_given_points": "draws + interaction",
    }
    rows = []
    for field, name in names.items():
        part = getattr(m.parts, field)
        share = part.value / m.parts.total.value if m.parts.total.value > 0 else 0.0
        rows.append(
            [name, f"{part.value:.4g}", f"[{part.low:.3g}, {part.high:.3g}]", f"{share:.1%}"]
        )
    blocks = [
        f"Gradient noise at batch size {m.batch_size} "
        f"(N = {m.num_data}, P = {m.num_params}; {m.evaluations} gradients)",
        table(["part", "trace of covariance", "95 % interval", "share"], rows),
    ]
    if len(m.leaves) > 1:
        blocks.append(
            table(
                ["leaf", "total", "points", "draws", "interaction"],
                [[name, *(f"{part.value:.3g}" for part in p[:4])] for name, p in m.leaves.items()],
            )
        )
    memory = "unknown" if m.peak_memory is None else f"{m.peak_memory / 2**20:.3g} MiB"
    facts = [
        ["variance of the norm", f"{m.norm_variance}"],
        ["bias, z-score", f"{m.bias_z:+.1f}"],
        ["signal to noise", f"{m.signal_to_noise:.3g}"],
        ["time per step", f"{m.seconds_per_step * 1e6:.1f} µs"],
        ["memory per step", memory],
    ]
    facts += [[f"best of {name}", f"{share}"] for name, share in m.ceilings.items()]
    blocks.append("\n".join(f"{name:<36}{value}" for name, value in facts))
    return "\n\n".join(blocks)
