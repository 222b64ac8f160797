"""The style and the palette of all figures, and their files."""

import io
from collections.abc import Callable
from functools import wraps
from pathlib import Path
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
    "pdf.fonttype": 42,  # TrueType: text stays selectable
}

# No dates in the files, so that the same figure gives the same bytes.
_STAMPS: dict[str, Any] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None},
    "svg": {"Date": None},
}

F = TypeVar("F", bound=Callable)


def styled(draw: F) -> F:
    """The function `draw`, run with the sizes and lines of this style."""

    @wraps(draw)
    def drawn(*args, **options):
        from matplotlib import rc_context

        with rc_context(_RC):
            return draw(*args, **options)

    return drawn  # pyright: ignore[reportReturnType]


def new_figure(rows: int, columns: int, width: float, height: float, **options: Any) -> Any:
    """A figure and its axes `[rows, columns]`; `options` go to `Figure.subplots`."""
    from matplotlib.figure import Figure

    # Figure rather than pyplot: no global state, no window, no figure left open
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def legend_below(figure: Any, axes: Any, columns: int) -> None:
    """Draw one legend for all panels, below the panels."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


@styled
def rendered(figure: Any, kind: str) -> bytes:
    """The figure as the bytes of a file of the given kind: "png", "pdf", "svg" and others."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=150, metadata=_STAMPS.get(kind))
    return buffer.getvalue()


def saved(figure: Any, path: str | Path | None) -> Any:
    """Write the figure to `path`, if given, and return it; the suffix gives the kind of file."""
    if path is not None:
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(rendered(figure, path.suffix[1:] or "png"))
    return figure
