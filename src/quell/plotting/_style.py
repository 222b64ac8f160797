"""How figures look, and how they become bytes."""

import io
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

# Colours that stay apart for colour-blind readers (Okabe and Ito), the pale yellow left out.
COLOURS = ("#000000", "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GREY = "#767676"

_RC: Any = {
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "pdf.fonttype": 42,
}


F = TypeVar("F", bound=Callable)


def styled(draw: F) -> F:
    """A function that draws, with all of its sizes and lines in one style."""

    @wraps(draw)
    def drawn(*args, **options):
        from matplotlib import rc_context

        with rc_context(_RC):
            return draw(*args, **options)

    return drawn  # pyright: ignore[reportReturnType]


def new_figure(rows: int, columns: int, width: float, height: float, **options: Any) -> Any:
    """A figure and its axes `[rows, columns]`; `options` are those of `Figure.subplots`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def legend_below(figure: Any, axes: Any, columns: int) -> None:
    """One legend for all panels, under them."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


@styled
def rendered(figure: Any, kind: str) -> bytes:
    """The figure as the bytes of a "png", "pdf" or "svg" file, the same every time."""
    stamp = {"png": {"Software": None}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=150, metadata=stamp[kind])
    return buffer.getvalue()
