"""Progress bars, updated between chunks of the compiled loop."""

import importlib.util
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

_PATIENCE = 0.5  # seconds before a bar appears: short runs need none
_INTERVAL = 0.1  # seconds between redrawings


class Progress(NamedTuple):
    """How far a run has come, shown to somebody.

    Attributes:
      update: `update(step, objective)`, called now and then.
      close: called once, at the end of the run.
    """

    update: Callable[[int, float], None]
    close: Callable[[], None]


def silent(num_steps: int) -> Progress:
    """Shows nothing."""
    del num_steps
    return Progress(lambda step, objective: None, lambda: None)


def rich_bar(num_steps: int) -> Progress:
    """A bar drawn by rich on standard error, from half a second into the run."""
    began = time.monotonic()
    drawn = 0.0
    bar: Any = None
    task: Any = None

    def open_bar():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        columns = (
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("objective {task.fields[objective]:.5g}"),
            TimeRemainingColumn(),
        )
        opened = RichProgress(*columns, console=Console(stderr=True), auto_refresh=False)
        opened.start()
        return opened, opened.add_task("fit", total=num_steps, objective=float("nan"))

    def update(step, objective):
        nonlocal bar, task, drawn
        now = time.monotonic()
        if now - began < _PATIENCE or now - drawn < _INTERVAL:
            return
        if bar is None:
            bar, task = open_bar()
        bar.update(task, completed=step, objective=objective, refresh=True)
        drawn = now

    def close():
        if bar is not None:
            bar.stop()

    return Progress(update, close)


def automatic(num_steps: int) -> Progress:
    """`rich_bar` when standard error is a terminal and rich is installed, else `silent`."""
    shown = sys.stderr.isatty() and importlib.util.find_spec("rich") is not None
    return rich_bar(num_steps) if shown else silent(num_steps)
