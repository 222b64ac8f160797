"""Figures of measurements and comparisons."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quell.plotting._style import COLOURS, GREY, MARKERS, new_figure, saved, styled


@styled
def parts_figure(parts: Mapping[str, Any], path: str | Path | None = None) -> Any:
    """Draw stacked bars of points, draws and interaction, as shares of each total.

    Args:
      parts: records with `total`, `points`, `draws` and `interaction`, by name.
      path: the file of the figure, if it is to be saved.

    Returns:
      The matplotlib figure.
    """
    figure, ((axes,),) = new_figure(1, 1, 6.4, 1.2 + 0.35 * len(parts))
    axes.grid(visible=False, axis="y")
    names = list(parts)[::-1]
    left = [0.0] * len(names)
    for colour, field in zip(COLOURS[1:], ("points", "draws", "interaction")):
        # An unbiased estimate of a small part may lie below zero, which no bar can show.
        widths = [max(getattr(parts[n], field).value, 0.0) for n in names]
        totals = [max(parts[n].total.value, 1e-300) for n in names]
        shares = [width / total for width, total in zip(widths, totals)]
        axes.barh(names, shares, left=left, color=colour, label=field)
        left = [start + share for start, share in zip(left, shares)]
    axes.set_xlabel("share of the trace of the covariance")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
    return saved(figure, path)


@styled
def frontier_figure(
    rows: Sequence[Any], best: tuple[str, int], path: str | Path | None = None
) -> Any:
    """Draw variance against time per step, a line through the batch sizes of each estimator.

    Dashed lines have equal variance × time: that of the best baseline, a tenth and a hundredth.

    Args:
      rows: records with `name`, `batch_size`, `error`, `seconds_per_step`.
      best: name and batch size of the best baseline.
      path: the file of the figure, if it is to be saved.

    Returns:
      The matplotlib figure.
    """
    from matplotlib.ticker import NullFormatter

    figure, ((axes,),) = new_figure(1, 1, 8.0, 5.2)
    names = list(dict.fromkeys(row.name for row in rows))  # the best first
    for i, name in enumerate(names):
        own = sorted((row for row in rows if row.name == name), key=lambda row: row.batch_size)
        axes.plot(
            [row.seconds_per_step * 1e6 for row in own],
            [row.error for row in own],
            marker=MARKERS[i // len(COLOURS) % len(MARKERS)],
            color=COLOURS[i % len(COLOURS)],
            markersize=5,
            linewidth=1,
            label=name,
        )
    axes.set(xscale="log", yscale="log", xlabel="µs per step", ylabel="variance of the gradient")
    cost = next(r.error * r.seconds_per_step for r in rows if (r.name, r.batch_size) == best)
    left, right = axes.get_xlim()
    low, high = axes.get_ylim()
    for share in (1.0, 0.1, 0.01):
        ends = [share * cost * 1e6 / x for x in (left, right)]
        axes.plot((left, right), ends, "--", color=GREY, linewidth=0.8, zorder=0)
    axes.set(xlim=(left, right), ylim=(low, high))  # the dashed lines must not zoom out
    if right / left > 10:
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)
    return saved(figure, path)
