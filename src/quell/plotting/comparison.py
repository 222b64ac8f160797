"""Figures of measurements and comparisons."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Colours that stay apart for colour-blind readers (Okabe and Ito).
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")


def parts_figure(parts: Mapping[str, Any], path: str | Path | None = None) -> Any:
    """Stacked bars of points, draws and interaction, as shares of each total.

    Args:
      parts: records with `total`, `points`, `draws` and `interaction`, by name.
      path: where to save the figure, if anywhere.

    Returns:
      The matplotlib figure.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 1.2 + 0.35 * len(parts)), layout="constrained")
    axes = figure.subplots()
    names = list(parts)[::-1]
    left = [0.0] * len(names)
    for colour, field in zip(COLOURS, ("points", "draws", "interaction")):
        # An unbiased estimate of nearly nothing may lie below zero, where there is no bar.
        widths = [max(getattr(parts[n], field).value, 0.0) for n in names]
        totals = [max(parts[n].total.value, 1e-300) for n in names]
        shares = [width / total for width, total in zip(widths, totals)]
        axes.barh(names, shares, left=left, color=colour, label=field)
        left = [start + share for start, share in zip(left, shares)]
    axes.set_xlabel("share of the trace of the covariance")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)
    return saved(figure, path)


def saved(figure: Any, path: str | Path | None) -> Any:
    """The figure, written to `path` if there is one."""
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    return figure
