"""Progress bars, updated between chunks of the compiled loop."""

import importlib.util
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

_PATIENCE = 0.5  # seconds before a bar may appear
_WORTHWHILE = 3.0  # seconds that must remain, so that drawing costs little of the run
_INTERVAL = 0.25  # least number of seconds between two drawings
_SHARE = 0.005  # largest share of the time that drawing may take


class Bar(NamedTuple):
    """A picture of the progress of a run.

    Attributes:
      update: `update(step, objective)`, called between chunks.
      close: `close()`, called once, at the end of the run.
    """

    update: Callable[[int, float], None]
    close: Callable[[], None]


def no_bar(num_steps: int) -> Bar:
    """A bar that shows nothing."""
    del num_steps
    return Bar(lambda step, objective: None, lambda: None)


def rich_bar(num_steps: int) -> Bar:
    """A bar drawn by rich on standard error, when a run turns out to be long enough."""
    began: tuple[float, int] | None = None  # the time of the first update, and its step
    due = 0.0  # the time of the next drawing
    bar: Any = None
    task: Any = None

    def open_bar():
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        columns = (
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("objective {task.fields[objective]:.5g}"),
            TimeRemainingColumn(),
        )
        opened = Progress(*columns, console=Console(stderr=True), auto_refresh=False)
        opened.start()
        return opened, opened.add_task("fit", total=num_steps, objective=float("nan"))

    def worthwhile(elapsed, done, step):
        return elapsed >= _PATIENCE and elapsed * (num_steps - step) >= _WORTHWHILE * done

    def update(step, objective):
        nonlocal began, bar, task, due
        now = time.monotonic()
        if began is None:
            began = (now, step) if step else None  # compilation is over
            return
        if bar is None and worthwhile(now - began[0], step - began[1], step):
            bar, task = open_bar()
        if bar is not None and (now >= due or step == num_steps):
            before = time.monotonic()
            bar.update(task, completed=step, objective=objective, refresh=True)
            after = time.monotonic()
            due = after + max(_INTERVAL, (after - before) / _SHARE)

    def close():
        if bar is not None:
            bar.stop()

    return Bar(update, close)


def default_bar(num_steps: int) -> Bar:
    """`rich_bar` if standard error is a terminal and rich is installed, otherwise `no_bar`."""
    shown = sys.stderr.isatty() and importlib.util.find_spec("rich") is not None
    return rich_bar(num_steps) if shown else no_bar(num_steps)
