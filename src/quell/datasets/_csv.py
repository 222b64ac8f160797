"""Data sets of your own, read from CSV files with a header."""

import csv
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from quell._arguments import TEXT, checked, one_of_kinds
from quell._errors import invalid
from quell.datasets._dataset import Dataset, from_arrays

_MISSING = frozenset({"", "?", "na", "n/a", "nan", "null", "none"})


class Target(NamedTuple):
    """A target column as numbers `[N]`, and the names of its classes (none for regression)."""

    values: np.ndarray
    classes: tuple[str, ...]


@checked()
def regression(column: str, cells: Sequence[str]) -> Target:
    """Read a target as numbers, which are then standardised."""
    return Target(_numbers(column, cells), ())


@checked()
def classification(column: str, cells: Sequence[str]) -> Target:
    """Read a target as class names, coded 0, 1, … in order (numeric if all are numbers)."""
    _refuse_missing(column, cells)
    labels = set(cells)
    try:
        ordered = sorted(labels, key=float)
    except ValueError:
        ordered = sorted(labels)
    if len(ordered) < 2:
        raise invalid(
            column,
            expected="at least two classes",
            got=f"only {ordered[0]!r}",
            advice="Choose another target, or read the target with task=quell.datasets.regression.",
        )
    code = {label: i for i, label in enumerate(ordered)}
    return Target(np.array([code[c] for c in cells], float), tuple(ordered))


@checked(path=one_of_kinds("a path", "For example 'table.csv'.", str, Path), target=TEXT)
def from_csv(
    path: str | Path,
    *,
    target: str,
    task: Callable[[str, Sequence[str]], Target] = regression,
    delimiter: str = ",",
    test_fraction: float = 0.0,
    seed: int | None = None,
) -> Dataset:
    """Read a data set from a table with a header line: one target column, all others inputs.

    Inputs are standardised. Two classes become y = 0.0 and 1.0, more classes become indices.

    Args:
      path: the file.
      target: the name of the target column.
      task: the function that reads the target: `regression` or `classification`.
      delimiter: the character between cells.
      test_fraction: the share of rows held out.
      seed: the seed of the split, required with a `test_fraction`.

    Raises:
      FileNotFoundError: the file does not exist.
      ValueError: the file is empty, a column is missing, a cell is missing or is not a number, or
        the target has a single class. The message names the column and the row.
    """
    path = Path(path)
    header, rows = _table(path, delimiter)
    if target not in header:
        raise invalid(
            "target",
            expected=f"one of the columns {header}",
            got=repr(target),
            advice="Check the spelling, and the delimiter if the columns ran together.",
        )
    columns = dict(zip(header, zip(*rows)))
    features = tuple(name for name in header if name != target)
    x = np.stack([_numbers(name, columns[name]) for name in features], -1)
    y = task(target, columns[target])
    return from_arrays(
        path.stem, x, y.values, features, y.classes, test_fraction=test_fraction, seed=seed
    )


def _table(path: Path, delimiter: str) -> tuple[list[str], list[list[str]]]:
    """The header and the rows of a CSV file, all of one width; blank lines are skipped."""
    if path.is_dir():
        raise invalid(
            str(path), expected="a CSV file", got="a directory", advice="Name a file in it."
        )
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file. Check the path.")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # without Excel's mark
            lines = [[c.strip() for c in line] for line in csv.reader(file, delimiter=delimiter)]
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise invalid(
            str(path),
            expected="text in UTF-8",
            got=f"the byte {error.object[error.start]:#04x} on line {line}",
            advice="Save the file as UTF-8, or convert it: iconv -f latin1 -t utf-8.",
        ) from error
    except csv.Error as error:
        raise invalid(
            str(path), expected="a CSV file", got=str(error), advice="Is this a text file?"
        ) from error
    if not lines or not lines[0]:
        raise invalid(
            str(path),
            expected="a header line and rows",
            got="an empty file",
            advice="Write the names of the columns on the first line.",
        )
    header, rows = lines[0], [line for line in lines[1:] if line]
    if not rows:
        raise invalid(
            str(path),
            expected="rows after the header",
            got="a header alone",
            advice="Add one line per example.",
        )
    if len(header) == 1:
        other = next((d for d in ";\t|" if d in header[0] and d != delimiter), None)
        raise invalid(
            str(path),
            expected=f"at least one input column beside the target, separated by {delimiter!r}",
            got=header,
            advice=f"The cells look separated by {other!r}: pass delimiter={other!r} to from_csv, "
            "or save the file with commas."
            if other
            else "Check the delimiter.",
        )
    if len(set(header)) != len(header):
        raise invalid(
            str(path), expected="different column names", got=header, advice="Rename columns."
        )
    for number, line in enumerate(lines[1:], start=2):
        if line and len(line) != len(header):
            raise invalid(
                f"{path}, line {number}",
                expected=f"{len(header)} cells",
                got=len(line),
                advice="Check the delimiter and quoting.",
            )
    return header, rows


def _numbers(column: str, cells: Sequence[str]) -> np.ndarray:
    """A column of text as finite numbers."""
    _refuse_missing(column, cells)
    for number, cell in enumerate(cells, start=1):
        try:
            finite = math.isfinite(float(cell))
        except ValueError:
            finite = False
        if not finite:
            raise invalid(
                f"column {column!r}, row {number}",
                expected="a finite number",
                got=repr(cell),
                advice="Code text as numbers, or leave the column out of the file.",
            )
    return np.array([float(c) for c in cells])


def _refuse_missing(column: str, cells: Sequence[str]) -> None:
    """Refuse a column with empty cells, or with one of the usual words for a missing value."""
    missing = [number for number, c in enumerate(cells, start=1) if c.lower() in _MISSING]
    if missing:
        raise invalid(
            f"column {column!r}",
            expected="a value in every row",
            got=f"{len(missing)} missing, the first in row {missing[0]}",
            advice="Drop rows with missing values, or fill the values in.",
        )
