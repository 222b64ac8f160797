"""Data sets that ship with the package: the paper's two, and the files of `tables`."""

import gzip
import hashlib
from importlib import resources

import numpy as np

from quell._arguments import checked
from quell.datasets._dataset import Dataset, from_arrays

# Rows: 1st, 2nd, 3rd class, crew. Columns: male child, female child, male adult, female adult.
_DIED = ((0, 0, 118, 4), (0, 0, 154, 13), (35, 17, 387, 89), (0, 0, 670, 3))
_SURVIVED = ((5, 1, 57, 140), (11, 13, 14, 80), (13, 14, 75, 76), (0, 0, 192, 20))

_SHA256 = {
    "airfoil_self_noise.dat": "10ee06e6cfb27dae6b44213d421d217012fb1f9b697592e73a4e4016b52d425f",
    "magic.csv.gz": "3cfa121556434f2359d69cf5e0518a73bf82f732cf14fb1d42af2f78fefab95d",
    "spambase.csv.gz": "be1033479cd0ee51f89e52e0d5e941111b97b3b8dba8a1a2f3b714fed49c4404",
    "sonar.csv.gz": "0c2a8c73c7d98d003a8931a47f4a6b539789d19fea9e0c40e499e3fb6921fbb0",
}
_AIRFOIL_COLUMNS = ("frequency", "angle", "chord", "velocity", "thickness")


@checked()
def titanic(*, test_fraction: float = 0.0, seed: int | None = None) -> Dataset:
    """The survival of 2201 people on the Titanic by class, age and sex, with a bias column.

    The raw codes are class 1 to 4 (1st, 2nd, 3rd, crew), age 0 for adults and 1 for children, sex 0
    for women and 1 for men; the three inputs are standardised.

    Args:
      test_fraction: the share of people held out.
      seed: the seed of the split, required with a `test_fraction`.

    Returns:
      A `Dataset` with inputs `[N, 4]` and y = 1.0 for the 711 survivors.

    >>> people = titanic()
    >>> people.x.shape, int(people.y.sum())
    ((2201, 4), 711)
    """
    rows = [
        ((cls, age, sex), survived)
        for survived, counts in enumerate((_DIED, _SURVIVED))
        for cls, by_group in enumerate(counts, start=1)
        for (age, sex), count in zip(((1, 1), (1, 0), (0, 1), (0, 0)), by_group)
        for _ in range(count)
    ]
    x, y = (np.asarray(column, np.float64) for column in zip(*rows))
    return from_arrays(
        "titanic",
        x,
        y,
        ("class", "age", "sex"),
        ("died", "survived"),
        test_fraction=test_fraction,
        seed=seed,
    ).with_bias()


@checked()
def airfoil(*, test_fraction: float = 0.0, seed: int | None = None) -> Dataset:
    """The self-noise of airfoils in a wind tunnel: 1503 sound levels in dB, with 5 inputs.

    NASA RP-1218, UCI data set 291, CC BY 4.0 (see README.md beside the file). The file's SHA-256
    is verified at every load. Inputs and target are standardised.

    Args:
      test_fraction: the share of rows held out.
      seed: the seed of the split, required with a `test_fraction`.

    >>> airfoil().x.shape
    (1503, 5)
    """
    table = np.loadtxt(table_lines("airfoil_self_noise.dat"))
    return from_arrays(
        "airfoil",
        table[:, :-1],
        table[:, -1],
        _AIRFOIL_COLUMNS,
        test_fraction=test_fraction,
        seed=seed,
    )


def table_lines(file: str) -> list[str]:
    """The lines of a shipped table."""
    raw = _verified(file, resources.files("quell.datasets").joinpath("tables", file).read_bytes())
    return (gzip.decompress(raw) if file.endswith(".gz") else raw).decode("ascii").splitlines()


def _verified(file: str, raw: bytes) -> bytes:
    """The bytes of a file, refused if their digest is not the known digest."""
    digest = hashlib.sha256(raw).hexdigest()
    if digest != _SHA256[file]:
        raise ValueError(
            f"{file}: expected SHA-256 {_SHA256[file]}, got {digest}. "
            "The file was changed or damaged (line ends count); reinstall quell."
        )
    return raw
