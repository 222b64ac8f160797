"""Run units, write each when it is done, and show how long the rest will take."""

import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from quell.experiments import records
from quell.experiments.records import Record
from quell.experiments.units import Unit

Say = Callable[[str], None]
_WORKERS = 2


class Progress(NamedTuple):
    """How far a run has come, shown to somebody.

    Attributes:
      done: `done(unit, seconds)`, called when a unit is finished.
      say: prints a line.
      close: called once, at the end.
    """

    done: Callable[[Unit, float], None]
    say: Say
    close: Callable[[], None]


def run(
    units: Sequence[Unit], out: Path, progress: Callable[[Sequence[Unit]], Progress]
) -> list[Record]:
    """The records of all units, in their order: found on disk, or made now.

    Units are independent and run two at a time, each compiled for all of its seeds. Those that
    measure time run alone, at the end.
    """
    records.sweep(out)
    found: dict[int, Record] = {}
    complaints = []
    for index, unit in enumerate(units):
        record, complaint = records.read(out, unit)
        if record is not None:
            found[index] = record
        if complaint is not None:
            complaints.append(f"{complaint}: doing it again")
    missing = [index for index in range(len(units)) if index not in found]
    shown = progress([units[index] for index in missing])
    try:
        if found:
            shown.say(f"{len(found)} of {len(units)} units were done before")
        for complaint in complaints:
            shown.say(complaint)
        together = [index for index in missing if not units[index].alone]
        alone = [index for index in missing if units[index].alone]
        for batch, workers in ((together, _WORKERS), (alone, 1)):
            for index, record in _finished(units, batch, workers, out):
                found[index] = record
                shown.done(units[index], record.seconds)
    finally:
        shown.close()
    return [found[index] for index in range(len(units))]


def _finished(units: Sequence[Unit], indices: Sequence[int], workers: int, out: Path):
    """Run units on some threads (compiled code lets go of Python's lock); yield them as they end.

    The first error is raised here, and what has not begun by then never does.
    """
    waiting: queue.SimpleQueue = queue.SimpleQueue()
    results: queue.SimpleQueue = queue.SimpleQueue()
    for index in indices:
        waiting.put(index)

    def work():
        while True:
            try:
                index = waiting.get_nowait()
            except queue.Empty:
                return
            begin = time.perf_counter()
            try:
                table = units[index].run()
                seconds = time.perf_counter() - begin
                results.put((index, records.write(out, units[index], table, seconds)))
            except BaseException as error:  # handed to the thread that waits
                while not waiting.empty():
                    waiting.get_nowait()
                results.put((index, error))
                return

    for _ in range(min(workers, len(indices))):
        threading.Thread(target=work, daemon=True).start()
    for _ in indices:
        index, result = results.get()
        if isinstance(result, BaseException):
            raise result
        yield index, result


def plain_progress(units: Sequence[Unit]) -> Progress:
    """A line for every finished unit."""
    clock = _clock(units)
    count = 0

    def say(line):
        print(line, file=sys.stderr, flush=True)

    def done(unit, seconds):
        nonlocal count
        count += 1
        left = clock(unit)
        say(f"[{count}/{len(units)}] {unit.label}: {seconds:.1f} s; about {readable(left)} left")

    return Progress(done, say, lambda: None)


def rich_progress(units: Sequence[Unit]) -> Progress:
    """A bar with the time left, for a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]} left"),
        TextColumn("[dim]{task.description}"),
    )
    bar = Bar(*columns, console=Console(stderr=True))
    bar.start()
    task = bar.add_task("compiling", total=len(units), left="?")
    clock = _clock(units)

    def done(unit, seconds):
        left = readable(clock(unit))
        bar.update(task, advance=1, description=unit.label, left=left)

    return Progress(done, bar.console.print, bar.stop)


def automatic_progress(units: Sequence[Unit]) -> Progress:
    """A bar where standard error is a terminal, else lines."""
    return rich_progress(units) if sys.stderr.isatty() else plain_progress(units)


def _clock(units: Sequence[Unit]) -> Callable[[Unit], float]:
    """Seconds left after each finished unit, from the units' weights and the time so far."""
    begin = time.perf_counter()
    overhead = 3e6  # compilation, in the microseconds that weights are in
    total = sum(unit.weight + overhead for unit in units)
    finished = 0.0

    def after(unit):
        nonlocal finished
        finished += unit.weight + overhead
        return (time.perf_counter() - begin) * (total - finished) / finished

    return after


def readable(seconds: float) -> str:
    """A duration for people.

    >>> readable(42), readable(3 * 60 + 20), readable(5000)
    ('42 s', '3 min 20 s', '1 h 23 min')
    """
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"
