"""Helpers of records: values for JSON, text tables, and the versions behind the numbers."""

import json
import math
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any


def as_json(value: Any) -> Any:
    """Records, tuples and numbers as values that JSON can hold; NaN and infinity become None."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {str(name): as_json(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def save_json(path: str | Path, document: dict[str, Any]) -> None:
    """Write a document, in a directory that is made if it is missing."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned by spaces, the first to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows)]
    lines = []
    for row in [head, ["-" * width for width in widths], *rows]:
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)


def by_reason(reasons: Mapping[str, str]) -> list[str]:
    """A line for each reason, with the names that share it.

    >>> by_reason({"svrg": "left out", "joint": "no draws", "taylor": "left out"})
    ['svrg; taylor: left out', 'joint: no draws']
    """
    names: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names.setdefault(reason, []).append(name)
    return [f"{'; '.join(some)}: {reason}" for reason, some in names.items()]


def versions(*packages: str) -> dict[str, str]:
    """The machine and the package versions with which numbers were measured."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for package in ("quell", "jax", "jaxlib", "optax", "numpy", *packages):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def microseconds(seconds: float) -> str:
    """A time per step as text, in µs."""
    return f"{seconds * 1e6:.1f}"


def percent(part: float, total: float) -> str:
    """A share as text."""
    return f"{100 * part / total if total > 0 else 0.0:.0f} %"
