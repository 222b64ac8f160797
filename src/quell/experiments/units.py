"""Units of work: what is run, written and, after an interruption, found again as a whole."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, wraps
from itertools import pairwise
from threading import Lock
from typing import Any, NamedTuple, TypeVar

import numpy as np

Table = dict[str, list]
"""Columns of equal length."""


class Unit(NamedTuple):
    """One experiment at one setting.

    Attributes:
      experiment: which experiment.
      setting: everything the result depends on; JSON values.
      run: gives the table of results.
      weight: expected time, in any unit, for the time left.
      alone: whether nothing else may run beside it, since it measures time.
    """

    experiment: str
    setting: Mapping[str, Any]
    run: Callable[[], Table]
    weight: float = 1.0
    alone: bool = False

    @property
    def label(self) -> str:
        """The unit in a few words."""
        words = ("model", "basis", "criterion", "network", "order", "learning_rate")
        return " ".join(
            [self.experiment, *(str(self.setting[w]) for w in words if w in self.setting)]
        )


def tidy(axes: Mapping[str, Sequence], **values: np.ndarray) -> Table:
    """One row for each combination of the axes.

    Args:
      axes: what each axis of the values runs over, in their order.
      values: arrays whose shape is the axes' lengths.

    >>> tidy({"seed": [0, 1], "step": [5, 6]}, ratio=np.array([[1.0, 2.0], [3.0, 4.0]]))["step"]
    [5, 6, 5, 6]
    """
    shape = tuple(len(axis) for axis in axes.values())
    grid = np.indices(shape).reshape(len(shape), -1)
    columns: Table = {
        name: [axis[i] for i in index] for (name, axis), index in zip(axes.items(), grid)
    }
    for name, value in values.items():
        assert np.shape(value) == shape, f"{name}: {np.shape(value)} is not {shape}"
        columns[name] = np.asarray(value, float).ravel().tolist()
    return columns


def joined(tables: Sequence[Table]) -> Table:
    """Rows of several tables with the same columns."""
    return {name: [v for table in tables for v in table[name]] for name in tables[0]}


F = TypeVar("F", bound=Callable)


def once(function: F) -> F:
    """Compute each value once, even when several units ask for it at the same time."""
    locks: dict[Any, Lock] = {}
    cached = lru_cache(maxsize=None)(function)

    @wraps(function)
    def ask(*args):
        with locks.setdefault(args, Lock()):
            return cached(*args)

    return ask  # pyright: ignore[reportReturnType]


def cost(model: str, basis: str, criterion: str, hidden: Sequence[int]) -> float:
    """About how many microseconds a step takes: the entries of the network count."""
    P, D, plain = {"logistic": (14, 4, 20), "deep-gp": (2100, 5, 200)}[model]
    D *= 2 if basis == "quadratic" else 1
    trunk = sum(n * m for n, m in pairwise(hidden))
    head = P * D * (1 + (hidden[-1] if hidden else 0))
    passes = {"gradient_sum": 1.5, "partial_gradients": 2.0}.get(criterion, 1.0)
    return plain + passes * 2e-3 * (head + trunk)
