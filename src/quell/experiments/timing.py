"""Timing side by side: competitors take turns, so that a busy machine slows all of them alike."""

import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax


class Timing(NamedTuple):
    """Seconds per unit of work, over the rounds.

    Attributes:
      median: the middle one.
      least: the smallest: what the work takes when nothing disturbs it.
      rounds: all of them, in order.
    """

    median: float
    least: float
    rounds: list[float]


def side_by_side(
    competitors: Mapping[str, Callable[[], Any]],
    *,
    rounds: int,
    per: Mapping[str, int] | int = 1,
    warm_up: int = 1,
    turn: float = 0.0,
) -> dict[str, Timing]:
    """Time each competitor once per round, in turns, each call until its results are ready.

    Args:
      competitors: what to call; returns the arrays to wait for.
      rounds: how many turns each gets.
      per: units of work in one call, such as steps; of each, or of all.
      warm_up: calls before the first round, for compilation.
      turn: seconds that a turn lasts at least; calls are repeated for as long. Turns of one length
        meet a busy machine alike, where short ones slip through or are hit in full.
    """
    seconds: dict[str, list[float]] = {name: [] for name in competitors}
    for call in competitors.values():
        for _ in range(warm_up):
            jax.block_until_ready(call())
    for _ in range(rounds):
        for name, call in competitors.items():
            units = per if isinstance(per, int) else per[name]
            calls, spent, began = 0, 0.0, time.perf_counter()
            while not calls or spent < turn:
                jax.block_until_ready(call())
                calls, spent = calls + 1, time.perf_counter() - began
            seconds[name].append(spent / (calls * units))
    return {name: Timing(statistics.median(s), min(s), s) for name, s in seconds.items()}


def ratio(timings: Mapping[str, Timing], one: str, other: str) -> float:
    """How many times longer `one` takes than `other`: the median over rounds of their ratio."""
    pairs = zip(timings[one].rounds, timings[other].rounds)
    return statistics.median(a / b for a, b in pairs)


def versions(*packages: str) -> dict[str, str]:
    """What the numbers were measured with."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for package in ("quell", "jax", "jaxlib", "optax", "numpy", *packages):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


class Section(NamedTuple):
    """One benchmark's results.

    Attributes:
      title: what was timed.
      header: the names of the columns.
      rows: the cells.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def to_json(self) -> dict[str, Any]:
        """The rows as dictionaries."""
        return {"title": self.title, "rows": [dict(zip(self.header, row)) for row in self.rows]}


def compared(timings: Mapping[str, Timing], base: str) -> list[tuple[Any, ...]]:
    """A row for each: name, median and least in µs, ratio to `base`."""
    return [
        (name, t.median * 1e6, t.least * 1e6, ratio(timings, name, base))
        for name, t in timings.items()
    ]


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print aligned columns; floats get three significant digits."""
    cells = [[f"{c:.3g}" if isinstance(c, float) else str(c) for c in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *cells)]
    print(f"\n{title}")
    for row in (header, *cells):
        print("  " + "  ".join(c.ljust(w) for c, w in zip(row, widths)).rstrip())


def save(path: Path, results: Mapping[str, Any], *packages: str) -> None:
    """Write the results as JSON, together with the versions."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"versions": versions(*packages), **results}
    path.write_text(json.dumps(document, indent=2) + "\n")
    print(f"\nsaved {path}")
