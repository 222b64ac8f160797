"""A budget of time, compilation included, and a line that says what takes it."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LATE = 0.2  # share of the time beyond which taking longer is worth a note


class Budget:
    """So many seconds from now on, to be shared out.

    >>> Budget(10.0).left() <= 10.0
    True
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._until = time.monotonic() + seconds

    def left(self) -> float:
        """The seconds that are left; below zero if they are over."""
        return self._until - time.monotonic()

    def share(self, part: float) -> float:
        """A part of the seconds that are left, or zero."""
        return part * max(0.0, self.left())

    def notes(self) -> list[str]:
        """A note if it took much longer than asked."""
        late = -self.left()
        if late <= _LATE * self.seconds:
            return []
        return [f"it took {late:.1f} s longer than asked: compiling alone takes longer than that"]


Report = Callable[[str, int], None]


@contextmanager
def status(report: Report | None = None) -> Iterator[Report]:
    """`say(what, batch_size)` before each piece of work: to the caller, or on a terminal's line."""
    if report is not None or not sys.stderr.isatty():
        yield report or (lambda what, size: None)
        return
    began = time.monotonic()

    def say(what, size):
        took = f"{time.monotonic() - began:6.1f} s"
        text = f"\r\x1b[K{took}  compiling and measuring {what}, batch size {size}"
        print(text, end="", file=sys.stderr, flush=True)

    try:
        yield say
    finally:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
