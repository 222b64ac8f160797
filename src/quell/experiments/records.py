"""Records on disk: one file per finished unit, whole or not at all, and tidy tables of them.

A record is a JSON file that carries the SHA-256 of its own content. It appears under its name only
when complete, and is believed only when the checksum agrees.
"""

import contextlib
import csv
import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from quell.experiments.units import Table, Unit


class Record(NamedTuple):
    """A finished unit.

    Attributes:
      experiment: which experiment.
      setting: everything the result depends on.
      versions: of the packages it was made with.
      seconds: how long it took.
      table: the results, columns of equal length.
    """

    experiment: str
    setting: dict[str, Any]
    versions: dict[str, str]
    seconds: float
    table: Table


def versions() -> dict[str, str]:
    """Versions of what results depend on."""
    packages = ("quell", "jax", "jaxlib", "optax", "numpy")
    found = {"python": platform.python_version()}
    for package in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def path_of(out: Path, unit: Unit) -> Path:
    """Where a unit's record lies; the name depends on all of its setting."""
    text = json.dumps([unit.experiment, unit.setting], sort_keys=True)
    return out / "records" / unit.experiment / f"{_digest(text)[:16]}.json"


def write(out: Path, unit: Unit, table: Table, seconds: float) -> Record:
    """Write a finished unit, whole or not at all."""
    record = Record(unit.experiment, dict(unit.setting), versions(), seconds, table)
    content = json.dumps(record._asdict(), separators=(",", ":"))
    body = json.dumps({"sha256": _digest(content)}) + "\n" + content + "\n"
    write_text(path_of(out, unit), body)
    return Record(**json.loads(content))  # as it will be read


def read(out: Path, unit: Unit) -> tuple[Record | None, str | None]:
    """The unit's record if there is a good one; else None, and what is wrong with the bad one."""
    path = path_of(out, unit)
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None, None
    except (OSError, UnicodeDecodeError) as error:
        return None, f"{path}: cannot be read ({error})"
    head, _, content = text.partition("\n")
    try:
        expected = json.loads(head)["sha256"]
    except (ValueError, KeyError, TypeError):
        return None, f"{path}: damaged (no checksum)"
    if not content.endswith("\n") or _digest(content[:-1]) != expected:
        return None, f"{path}: damaged (the checksum does not agree)"
    return Record(**json.loads(content)), None


def write_text(path: Path, text: str) -> None:
    """Write a file under a passing name beside its place, then move it there."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """As `write_text`, for bytes. Errors name the place and what to do."""
    passing = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
            passing = file.name
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(passing, 0o644)
        os.replace(passing, path)
    except OSError as error:
        if passing is not None:
            with contextlib.suppress(OSError):
                os.unlink(passing)
        raise OSError(
            f"--out: cannot write {path}: {error.strerror or error}. "
            "Choose a directory on a disk that is writable and has space left."
        ) from error


def sweep(out: Path) -> None:
    """Remove what interrupted writes left behind."""
    for passing in out.rglob("*.part"):
        with contextlib.suppress(OSError):
            passing.unlink()


def write_tidy(path: Path, records: Iterable[Record]) -> None:
    """One CSV for an experiment: a row per result, with its setting, seed and versions."""
    records = list(records)
    columns = _names(record.table for record in records)
    # A column of results with the name of a setting says which of its values the row belongs to.
    settings = [n for n in _names(record.setting for record in records) if n not in columns]
    lines = _Lines()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow([*settings, *columns, "versions"])
    for record in records:
        made_with = " ".join(f"{k}={v}" for k, v in record.versions.items())
        fixed = [_cell(record.setting.get(name)) for name in settings]
        for values in zip(*(record.table[c] for c in columns)):
            writer.writerow([*fixed, *map(_cell, values), made_with])
    write_text(path, "".join(lines))


class _Lines(list):
    """A list that a CSV writer can write to."""

    def write(self, line: str) -> None:
        self.append(line)


def _names(tables: Iterable[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for table in tables for name in table))


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.9g}"
    return value if isinstance(value, str) else json.dumps(value)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
