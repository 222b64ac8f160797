"""Jobs: experiments at one setting each, which are run, stored and found again as a whole."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial, wraps
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd

import quell
from quell_paper.config import BATCH_SIZE, CLOSED_FORM, EXTREMES, FULL, Network, Plan, Variate


class Job(NamedTuple):
    """One experiment at one setting.

    Attributes:
      experiment: the name of the experiment.
      setting: all values on which the result depends, as JSON.
      run: `run()` makes the table of results.
      weight: the expected time in microseconds, for the estimate of the remaining time.
      rank: jobs of a smaller rank tell more and run first: 0 for the literal main setting, 1 for
        the main learning rate and basis, 2 for the rest.
      alone: whether no other job may run beside the job, because it measures time.
    """

    experiment: str
    setting: Mapping[str, Any]
    run: Callable[[], pd.DataFrame]
    weight: float
    rank: int = 0
    alone: bool = False

    @property
    def identity(self) -> str:
        """The setting without its seeds: jobs of one identity differ in their seeds alone."""
        return identity(self.experiment, self.setting)

    @property
    def label(self) -> str:
        """The job in a few words."""
        words = ("model", "basis", "criterion", "network", "scale", "order", "learning_rate")
        told = [self.experiment, *(str(self.setting[w]) for w in words if w in self.setting)]
        more = self.setting.get("first_seed", 0)
        return " ".join(told + ([f"from seed {more}"] if more else []))


def identity(experiment: str, setting: Mapping[str, Any]) -> str:
    """An experiment and its setting without the seeds, as one short word."""
    rest = {k: v for k, v in setting.items() if k != "first_seed"}
    text = json.dumps([experiment, rest], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def variate_job(
    experiment: str,
    plan: Plan,
    variate: Variate,
    rate: float,
    run: Callable[[Plan, Variate, float], pd.DataFrame],
    *,
    steps: float,
    step_extra: float = 0.0,
    **setting: Any,
) -> Job:
    """A job that calls `run(plan, variate, rate)`.

    Args:
      rate: the learning rate of the coefficients.
      steps: the expected number of coefficient steps for each seed.
      step_extra: microseconds that a step takes beside the gradient and its correction.
      setting: the part of the setting that only this experiment has.
    """
    common = {
        "model": plan.model,
        "basis": variate.basis,
        "criterion": variate.criterion,
        "network": variate.network,
        "scale": variate.scale,
        "order": variate.order,
        "learning_rate": rate,
        "first_seed": plan.seed_range[0],
        "seeds": plan.seeds,
        "batch_size": BATCH_SIZE,
        "model_learning_rate": plan.learning_rate,
    }
    if variate == CLOSED_FORM:  # not fixed by its name, unlike the paper's variates
        common["source"] = _source_of_estimators()
    weight = plan.seeds * steps * (step_microseconds(plan.model, variate) + step_extra)
    main = variate.basis == "linear" and rate == plan.main_learning_rate
    literal = main and variate.scale == FULL and variate.hidden in EXTREMES
    rank = 0 if variate.other or literal else (1 if main else 2)
    return Job(experiment, common | setting, partial(run, plan, variate, rate), weight, rank)


@lru_cache
def _source_of_estimators() -> str:
    """A digest of the library's estimators: a record is remade if they have changed."""
    files = sorted(Path(quell.estimators.__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def step_microseconds(model: str, variate: Variate) -> float:
    """The approximate time of a step, from the number of entries of the recognition network."""
    plain = 20 if model == "logistic" else 200
    passes = {"gradient_sum": 1.5, "partial_gradients": 2.0}.get(variate.criterion, 1.0)
    passes *= 2 if variate.basis == "quadratic" else 1
    entries = number_of_weights(model, variate.hidden)
    return plain + passes * 2e-3 * entries  # measured, roughly: 2 ns per entry


def number_of_weights(model: str, hidden: Network) -> int:
    """The number of weights and biases of a recognition network for a linear variate."""
    context, P, D = (5, 14, 4) if model == "logistic" else (6, 2100, 5)
    trunk = sum((n + 1) * m for n, m in pairwise((context, *hidden)))
    return trunk + P * D * (1 + (hidden[-1] if hidden else 0))


def tidy(axes: Mapping[str, Sequence], **values: Any) -> pd.DataFrame:
    """A table with one row for each combination of the axes.

    Args:
      axes: the coordinates along each axis of the values, in the order of the axes.
      values: arrays whose shape is the lengths of the axes.

    >>> tidy({"seed": [0, 1], "step": [5, 6]}, ratio=np.array([[1, 2], [3, 4]]))["step"].tolist()
    [5, 6, 5, 6]
    """
    shape = tuple(len(axis) for axis in axes.values())
    grid = pd.MultiIndex.from_product(list(axes.values()), names=list(axes)).to_frame(index=False)
    arrays = {name: np.asarray(value, float) for name, value in values.items()}
    assert all(array.shape == shape for array in arrays.values()), f"some are not {shape}"
    return grid.assign(**{name: array.ravel() for name, array in arrays.items()})


F = TypeVar("F", bound=Callable)


def cached(function: F) -> F:
    """Compute each value of a function once, even if several jobs ask for it at the same time."""
    locks: dict[Any, Lock] = {}  # `lru_cache` alone would let two threads compute the same value
    remembered = lru_cache(maxsize=None)(function)

    @wraps(function)
    def ask(*args):
        with locks.setdefault(args, Lock()):
            return remembered(*args)

    return ask  # pyright: ignore[reportReturnType]
