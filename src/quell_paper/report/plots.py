"""The drawings of the paper's figures, from plain arrays."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib import ticker

from quell.plotting._style import COLOURS, GREY, MARKERS, legend_below, new_figure, styled


class Series(NamedTuple):
    """One line or one row of dots, with its interval over seeds.

    Attributes:
      label: its name in the legend.
      colour: its index in the palette.
      dashed: whether the line is dashed and the dot hollow.
      x, mean, low, high: `[T]`.
    """

    label: str
    colour: int
    dashed: bool
    x: Float[np.ndarray, " T"]
    mean: Float[np.ndarray, " T"]
    low: Float[np.ndarray, " T"]
    high: Float[np.ndarray, " T"]


class Panel(NamedTuple):
    """A pair of axes with several series."""

    title: str
    ylabel: str
    series: Sequence[Series]


@styled
def step_lines(
    panels: Sequence[Sequence[Panel]],
    levels: Sequence[float],
    log: bool,
    xlabel: str = "coefficient steps",
) -> Any:
    """Draw rows of panels against steps.

    Args:
      levels: the value that means no effect, in each row.
      log: whether the values are drawn on a logarithmic axis.
    """
    rows, columns = len(panels), len(panels[0])
    figure, axes = new_figure(
        rows, columns, 2.6 * columns + 0.6, 2.1 * rows + 0.8, sharex=True, sharey="row"
    )
    for row, line, level in zip(axes, panels, levels):
        for axis, panel in zip(row, line):
            axis.axhline(level, color=GREY, linewidth=1, zorder=1)
            for series in panel.series:
                _draw(axis, series, marker=True)
            axis.set(xscale="log", yscale="log" if log else "linear")
        if log:
            _plain_ticks(
                row[0], [v for panel in line for s in panel.series for v in (*s.low, *s.high)]
            )
        row[0].set_ylabel(line[0].ylabel)
    _name_columns(axes, panels)
    for axis in axes[-1]:
        axis.set_xlabel(xlabel)
    legend_below(figure, _fullest(axes[0]), columns=min(5, 2 * columns - 1) if log else 2)
    return figure


@styled
def difference_lines(panels: Sequence[Panel], shared: bool = True) -> Any:
    """Draw differences between traces against the iteration, with a band over seeds.

    Args:
      shared: whether all panels have one scale; otherwise each panel has its own.
    """
    width = 4.2 * len(panels) + (0.4 if len(panels) > 1 else 2.2)
    figure, axes = new_figure(1, len(panels), width, 3.4, sharey=shared)
    for axis, panel in zip(axes[0], panels):
        axis.axhline(0, color=GREY, linewidth=1, linestyle="--", zorder=1)
        for series in panel.series:
            _draw(axis, series, marker=False)
        axis.set(title=panel.title, xlabel="iteration")
    for axis, group in [(axes[0, 0], panels)] if shared else zip(axes[0], [[p] for p in panels]):
        _early_differences_compressed(axis, [s.mean for panel in group for s in panel.series])
    axes[0, 0].set_ylabel(panels[0].ylabel)
    legend_below(figure, _fullest(axes[0]), columns=2)
    return figure


def _early_differences_compressed(axis: Any, traces: Sequence[Float[np.ndarray, " T"]]) -> None:
    """Make a scale linear for later differences, and logarithmic for the larger first ones."""
    linear = _rounded(max(float(np.abs(trace[len(trace) // 4 :]).max()) for trace in traces))
    axis.set_yscale("symlog", linthresh=linear, linscale=2)
    ticks = [linear * t for t in (0.5, 1, 10, 100)]
    axis.yaxis.set_major_locator(ticker.FixedLocator([*(-t for t in ticks[::-1]), 0, *ticks]))
    axis.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
    axis.yaxis.set_minor_locator(ticker.NullLocator())


@styled
def ratio_dots(panels: Sequence[Sequence[Panel]]) -> Any:
    """Draw the remaining variance as a row of dots per variate; the vertical line is no reduction.

    Every series has one value; its label names the row.
    """
    rows, columns = len(panels), len(panels[0])
    names = [series.label for series in panels[0][0].series]
    height = rows * (0.5 + 0.26 * len(names)) + 0.4
    figure, axes = new_figure(rows, columns, 2.3 * columns + 1.9, height, sharex="row", sharey=True)
    for row, line in zip(axes, panels):
        for axis, panel in zip(row, line):
            axis.axvline(1, color=GREY, linewidth=1, zorder=1)
            for i, s in enumerate(panel.series):
                colour = COLOURS[s.colour]
                axis.plot([s.low[0], s.high[0]], [i, i], color=colour, linewidth=1.5)
                face = "white" if s.dashed else colour
                axis.plot(s.mean[0], i, MARKERS[s.colour], color=colour, mfc=face, markersize=5)
            axis.set(yticks=range(len(names)), yticklabels=names, xlabel=panel.ylabel)
            axis.set_ylim(len(names) - 0.5, -0.5)
    _name_columns(axes, panels)
    return figure


@styled
def stacked_parts(
    names: Sequence[str], draws: Sequence[float], points: Sequence[float], norm: Sequence[float]
) -> Any:
    """Draw a bar per variate: draws and points over the plain trace, and the paper's measure."""
    figure, axes = new_figure(1, 1, 6.6, 1.0 + 0.32 * len(names))
    axis, y = axes[0, 0], range(len(names))
    axis.barh(y, points, color=COLOURS[6], label="trace: points")
    axis.barh(y, draws, left=points, color=COLOURS[1], label="trace: draws")
    axis.plot(norm, y, "D", color=COLOURS[0], mfc="white", label="paper’s measure: Var‖G̃‖")
    axis.set(yticks=y, yticklabels=names, xlabel="variance (plain = 1)")
    axis.set_ylim(len(names) - 0.5, -0.5)
    legend_below(figure, axis, columns=3)
    return figure


class Illustrated(NamedTuple):
    """One point of figure 1.

    Attributes:
      name: its input and target, in words.
      epsilon: draws in ascending order, `[S]`.
      gradient: the gradient at each draw.
      dependent, independent: the variates with the point's own and with the common coefficient.
      mean: the mean of the gradient.
      own, common: the shares of the variance that remain under the two variates.
    """

    name: str
    epsilon: Float[np.ndarray, " S"]
    gradient: Float[np.ndarray, " S"]
    dependent: Float[np.ndarray, " S"]
    independent: Float[np.ndarray, " S"]
    mean: float
    own: float
    common: float


@styled
def illustration(points: Sequence[Illustrated]) -> Any:
    """Draw gradients and variates against the noise, with the estimators' distributions."""
    figure, axes = new_figure(1, 2, 7.6, 3.7, sharey=True, gridspec_kw={"width_ratios": (1.7, 1)})
    curves, densities = axes[0]
    middle, tallest = np.mean([point.mean for point in points]), 0.0
    for colour, point in zip((COLOURS[2], COLOURS[1]), points):
        inside = np.abs(point.epsilon) < 3
        eps = point.epsilon[inside]
        curves.plot(eps, point.gradient[inside], color=colour, label=f"gradient, {point.name}")
        curves.plot(
            eps, point.mean + point.dependent[inside], "--", color=colour, label="its own variate"
        )
        for value, style in (
            (point.gradient, {"histtype": "step", "linewidth": 1.2}),
            (point.gradient - point.independent, {"histtype": "stepfilled", "alpha": 0.25}),
            (point.gradient - point.dependent, {"histtype": "stepfilled", "alpha": 0.85}),
        ):
            height, *_ = densities.hist(
                value, bins=60, density=True, orientation="horizontal", color=colour, **style
            )
            if value is point.gradient:
                tallest = max(tallest, height.max())
    shared = points[0]
    inside = np.abs(shared.epsilon) < 3
    curves.plot(
        shared.epsilon[inside],
        middle + shared.independent[inside],
        ":",
        color=GREY,
        linewidth=2,
        label="the common variate",
    )
    curves.set(xlabel="ε", ylabel="gradient of the mean")
    low = min(p.gradient.min() for p in points)
    high = max(p.gradient.max() for p in points)
    curves.set_ylim(low - 0.1 * (high - low), high + 0.1 * (high - low))
    densities.set(xlabel="density", xlim=(0, 4 * tallest))  # the narrowest densities are cut off
    densities.set_title("outline: plain; pale: common; full: own", fontsize=8)
    legend_below(figure, curves, columns=3)
    return figure


def _name_columns(axes: Any, panels: Sequence[Sequence[Panel]]) -> None:
    """Write the titles of all rows over the first row."""
    for axis, panel in zip(axes[0], panels[0]):
        axis.set_title(panel.title)


def _fullest(axes: Sequence[Any]) -> Any:
    """The axes with the most lines, whose legend names every line."""
    return max(axes, key=lambda axis: len(axis.lines))


def _draw(axis: Any, series: Series, marker: bool) -> None:
    colour = COLOURS[series.colour]
    axis.fill_between(series.x, series.low, series.high, color=colour, alpha=0.15, linewidth=0)
    axis.plot(
        series.x,
        series.mean,
        color=colour,
        linestyle="--" if series.dashed else "-",
        marker=MARKERS[series.colour] if marker else None,
        markersize=4,
        linewidth=1.4,
        label=series.label,
    )


def _rounded(value: float) -> float:
    """The next 1, 2 or 5 times a power of ten that is not smaller."""
    power = 10.0 ** np.floor(np.log10(max(value, 1e-3)))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= value)


def _plain_ticks(axis: Any, values: Sequence[float]) -> None:
    """Label a logarithmic axis with plain numbers, not powers of ten."""
    least = min((value for value in values if value > 0), default=1.0)
    if max(values) > 30 * least:
        locator = ticker.LogLocator()
    elif max(values) > 3 * least:
        locator = ticker.LogLocator(subs=(1, 1.5, 2, 3, 5, 7))
    else:
        locator = ticker.MaxNLocator(5, steps=[1, 2, 5, 10])
    axis.yaxis.set_major_locator(locator)
    axis.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:.3g}"))
    axis.yaxis.set_minor_locator(ticker.NullLocator())
