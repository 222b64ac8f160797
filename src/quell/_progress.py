"""Progress bars, updated between chunks of the compiled loop."""

import importlib.util
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

_PATIENCE = 0.5  # seconds before a bar may appear
_WORTHWHILE = 3.0  # seconds that must remain, so that drawing it costs little of the run
_INTERVAL = 0.25  # seconds between drawings, at the least
_SHARE = 0.005  # of the time that drawing may take


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
    """A bar drawn by rich on standard error, once a run proves long enough to want one."""
    began: tuple[float, int] | None = None  # when the first steps were done, and how many
    due = 0.0  # when to draw next
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

    def worthwhile(elapsed, done, step):
        return elapsed >= _PATIENCE and elapsed * (num_steps - step) >= _WORTHWHILE * done

    def update(step, objective):
        nonlocal began, bar, task, due
        now = time.monotonic()
        if began is None:
            began = (now, step) if step else None  # not before compilation is over
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

    return Progress(update, close)


def automatic(num_steps: int) -> Progress:
    """`rich_bar` when standard error is a terminal and rich is installed, else `silent`."""
    shown = sys.stderr.isatty() and importlib.util.find_spec("rich") is not None
    return rich_bar(num_steps) if shown else silent(num_steps)
