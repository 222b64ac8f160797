"""The store: one file per finished job, written whole or not at all.

A record is a JSON file that carries the SHA-256 of its own content. The file appears under its
name only when it is complete, and is believed only if the checksum agrees.
"""

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from quell.diagnostics.records import versions


class Record(NamedTuple):
    """A finished job.

    Attributes:
      experiment: the name of the experiment.
      setting: all values on which the result depends.
      versions: the versions of the packages behind the result.
      seconds: the time of the job.
      table: the results.
    """

    experiment: str
    setting: Mapping[str, Any]
    versions: Mapping[str, str]
    seconds: float
    table: pd.DataFrame


def path_of(out: Path, experiment: str, setting: Mapping[str, Any]) -> Path:
    """The path of a record; its name depends on the whole setting."""
    text = json.dumps([experiment, setting], sort_keys=True)
    return out / "records" / experiment / f"{_digest(text)[:16]}.json"


def write(
    out: Path, experiment: str, setting: Mapping[str, Any], table: pd.DataFrame, seconds: float
) -> Record:
    """Write the record of a finished job, whole or not at all."""
    record = Record(experiment, setting, versions(), seconds, table)
    plain = record._asdict() | {"table": table.to_dict("list")}
    content = json.dumps(plain, separators=(",", ":"))
    body = json.dumps({"sha256": _digest(content)}) + "\n" + content + "\n"
    write_file(path_of(out, experiment, setting), body)
    return record


def read(
    out: Path, experiment: str, setting: Mapping[str, Any]
) -> tuple[Record | None, str | None]:
    """The record if it is intact; otherwise None, and a complaint about a damaged record."""
    path = path_of(out, experiment, setting)
    try:
        head, _, content = path.read_text().partition("\n")
        expected = json.loads(head)["sha256"]
    except FileNotFoundError:
        return None, None
    except OSError as error:
        return None, f"{path}: cannot be read ({error})"
    except (ValueError, KeyError, TypeError):
        return None, f"{path}: damaged (no checksum)"
    if not content.endswith("\n") or _digest(content[:-1]) != expected:
        return None, f"{path}: damaged (the checksum does not agree)"
    found = json.loads(content)
    return Record(**found | {"table": pd.DataFrame(found["table"])}), None


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file under a temporary name, then move it into place; errors name a remedy."""
    passing = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
            passing = file.name
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())  # or a power cut could leave the name without the content
        os.chmod(passing, 0o644)  # temporary files are private
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
    """Remove the temporary files of interrupted writes."""
    for passing in out.rglob("*.part"):
        with contextlib.suppress(OSError):
            passing.unlink()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
