"""Numbers out of records: what is left of the variance, traces and times, seed by seed."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from quell.experiments.config import DEEPEST, Plan
from quell.experiments.methods import network_name
from quell.experiments.records import Record

AMORTISED = network_name(DEEPEST)
UNBIASED, PAPERS = "apply_then_learn", "learn_then_apply"


class NotRunError(LookupError):
    """What was asked for has not been run."""


class Ordered(NamedTuple):
    """An order of learning and applying, seed by seed.

    Attributes:
      bias: squared norm of the bias over that of the gradient, without bias itself; may be < 0.
      z: the mean squared z score of the bias; about 1 where there is none.
      draws: what is left of the draws' part of the trace.
      norm: what is left by the paper's measure.
    """

    bias: Float[np.ndarray, " seeds"]
    z: Float[np.ndarray, " seeds"]
    draws: Float[np.ndarray, " seeds"]
    norm: Float[np.ndarray, " seeds"]


class Results(NamedTuple):
    """All records of a run, and the plans they were made by."""

    records: Sequence[Record]
    plans: dict[str, Plan]

    @property
    def models(self) -> list[str]:
        """Models with any record."""
        return [
            name for name in self.plans if any(r.setting.get("model") == name for r in self.records)
        ]

    def of(self, experiment: str) -> list[Record]:
        """All records of an experiment."""
        return [record for record in self.records if record.experiment == experiment]

    def find(self, experiment: str, **setting) -> Record:
        """The one record with this setting."""
        for record in self.of(experiment):
            if all(record.setting.get(name) == value for name, value in setting.items()):
                return record
        raise NotRunError(f"{experiment} {setting}")

    def static(
        self,
        model: str,
        metric: str,
        *,
        network: str = AMORTISED,
        criterion: str = "squared_difference",
        basis: str = "linear",
        rate: float | None = None,
        frozen_after: int | None = None,
        coefficient_steps: int | None = None,
    ) -> Float[np.ndarray, " seeds"]:
        """What is left of the variance, by default late in training, after all steps."""
        plan = self.plans[model]
        record = self.find(
            "static",
            model=model,
            network=network,
            criterion=criterion,
            basis=basis,
            learning_rate=plan.main_learning_rate if rate is None else rate,
        )
        stage = plan.static.frozen_after[-1] if frozen_after is None else frozen_after
        steps = plan.static.measured_after[-1] if coefficient_steps is None else coefficient_steps
        return remaining(record, metric, frozen_after=stage, coefficient_steps=steps)

    def dynamic(
        self,
        model: str,
        metric: str,
        *,
        network: str = AMORTISED,
        criterion: str = "squared_difference",
        basis: str = "linear",
        order: str = UNBIASED,
        rate: float | None = None,
        steps: int | None = None,
    ) -> Float[np.ndarray, " seeds"]:
        """What is left of the variance in joint training, by default at its end."""
        plan = self.plans[model]
        record = self.find(
            "dynamic",
            model=model,
            network=network,
            criterion=criterion,
            basis=basis,
            order=order,
            learning_rate=plan.main_learning_rate if rate is None else rate,
        )
        steps = plan.dynamic.measured_after[-1] if steps is None else steps
        return remaining(record, metric, steps=steps)

    def order(
        self,
        model: str,
        order: str,
        *,
        network: str,
        coefficient_steps: int,
        criterion: str = "squared_difference",
        frozen_after: int | None = None,
    ) -> Ordered:
        """What an order of learning and applying does, by default late in training."""
        plan = self.plans[model]
        record = self.find("orders", model=model, network=network, criterion=criterion)
        where = {
            "frozen_after": plan.static.frozen_after[-1] if frozen_after is None else frozen_after,
            "coefficient_steps": coefficient_steps,
            "order": order,
        }
        rows = _rows(record, **where)
        bias, gradient, z = (
            np.asarray(record.table[name])[rows] for name in ("bias", "gradient", "z")
        )
        return Ordered(
            bias=bias / gradient,
            z=z,
            draws=remaining(record, "draws", **where),
            norm=remaining(record, "norm", **where),
        )

    def trace(
        self, model: str, network: str, criterion: str = "none", order: str = "none"
    ) -> Float[np.ndarray, "seeds T"]:
        """The bound on the whole data; `network="plain"` for the uncontrolled run."""
        record = self.find("traces", model=model, network=network, criterion=criterion, order=order)
        seeds = len(set(record.table["seed"]))
        return np.reshape(record.table["nelbo"], (seeds, -1))

    def milliseconds(
        self, model: str, variant: str, criterion: str, way: str
    ) -> Float[np.ndarray, " repetitions"]:
        """The time of a step in every repetition."""
        table = self.find("table-1", model=model).table
        wanted = (variant, criterion, way)
        rows = zip(table["variant"], table["criterion"], table["way"], table["milliseconds"])
        values = [value for *names, value in rows if tuple(names) == wanted]
        if not values:
            raise NotRunError(f"table-1 {wanted}")
        return np.array(values)


def remaining(record: Record, metric: str, **where) -> Float[np.ndarray, " seeds"]:
    """The controlled variance over the plain one, for each seed.

    Args:
      metric: "norm" (the paper's), "draws", "points", or "total" (draws and points together).
      where: values of columns that the rows must have.
    """
    table, chosen = record.table, _rows(record, **where)
    parts = ("draws", "points") if metric == "total" else (metric,)
    controlled = sum(np.asarray(table[f"controlled_{part}"])[chosen] for part in parts)
    plain = sum(np.asarray(table[f"plain_{part}"])[chosen] for part in parts)
    return np.asarray(controlled) / np.asarray(plain)


def _rows(record: Record, **where) -> Bool[np.ndarray, " rows"]:
    """Which rows of a record have these values."""
    chosen = np.ones(len(record.table["seed"]), bool)
    for name, value in where.items():
        chosen &= np.asarray(record.table[name]) == value
    if not chosen.any():
        raise NotRunError(f"{record.experiment} {where}")
    return chosen
