"""Numbers from records: one tidy table per experiment, and selections of its rows."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float

from quell_paper.config import AMORTISED, APPLY_FIRST, Plan
from quell_paper.store import Record

_MAIN = {"network": AMORTISED, "criterion": "squared_difference", "basis": "linear"}


class NotRunError(LookupError):
    """A selection that has no rows, because the experiment has not been run."""


class Results(NamedTuple):
    """The results of a run.

    Attributes:
      tables: one tidy table per experiment; the setting of a record is repeated in its rows.
      plans: the plan of each model.
      seconds: the time that all records took together.
      versions: of the packages that made the first record.
    """

    tables: dict[str, pd.DataFrame]
    plans: dict[str, Plan]
    seconds: float
    versions: Mapping[str, str]

    @property
    def models(self) -> list[str]:
        """The models that have any rows."""
        run = {model for table in self.tables.values() for model in table.get("model", ())}
        return [model for model in self.plans if model in run]

    def rows(self, experiment: str, **where: Any) -> pd.DataFrame:
        """The rows of an experiment whose columns have the given values."""
        table = self.tables.get(experiment)
        if table is not None:
            for name, value in where.items():
                table = table[table[name] == value]
        if table is None or table.empty:
            raise NotRunError(f"{experiment} {where}")
        return table

    def static(
        self, model: str, metric: str, *, early: bool = False, **where: Any
    ) -> Float[np.ndarray, " seeds"]:
        """The remaining variance at a frozen model, after all coefficient steps by default."""
        plan = self.plans[model]
        usual = {
            "learning_rate": plan.main_learning_rate,
            "frozen_after": plan.static.frozen_after[0 if early else -1],
            "coefficient_steps": plan.static.measured_after[-1],
        }
        return remaining(self.rows("static", model=model, **_MAIN | usual | where), metric)

    def dynamic(
        self, model: str, metric: str, *, early: bool = False, **where: Any
    ) -> Float[np.ndarray, " seeds"]:
        """The remaining variance in joint training, at its end by default."""
        plan = self.plans[model]
        usual = {
            "learning_rate": plan.main_learning_rate,
            "steps": plan.dynamic.measured_after[0 if early else -1],
            "order": APPLY_FIRST,
        }
        return remaining(self.rows("dynamic", model=model, **_MAIN | usual | where), metric)

    def late_static(self, model: str) -> pd.DataFrame:
        """The last rows at the last frozen model: linear basis, context-free and amortised."""
        static = self.plans[model].static
        rows = self.rows(
            "static",
            model=model,
            basis="linear",
            frozen_after=static.frozen_after[-1],
            coefficient_steps=static.measured_after[-1],
        )
        rows = rows[rows["network"].isin(("none", AMORTISED))]
        return context_free_first(rows)

    def trace(
        self, model: str, network: str, criterion: str = "none", order: str = "none"
    ) -> Float[np.ndarray, "seeds T"]:
        """The bound on the whole data; `network="plain"` for the uncontrolled run."""
        rows = self.rows("traces", model=model, network=network, criterion=criterion, order=order)
        return rows["nelbo"].to_numpy().reshape(rows["seed"].nunique(), -1)

    def milliseconds(
        self, model: str, variant: str, criterion: str, way: str
    ) -> Float[np.ndarray, " repetitions"]:
        """The time of a step in every repetition."""
        rows = self.rows("table-1", model=model, variant=variant, criterion=criterion, way=way)
        return rows["milliseconds"].to_numpy()


def context_free_first(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows sorted by network, `none` before the digits, and otherwise in their order."""
    return rows.sort_values("network", ascending=False, kind="stable")


def collected(records: Sequence[Record], plans: dict[str, Plan]) -> Results:
    """The results of some records."""
    tables: dict[str, list[pd.DataFrame]] = {}
    for record in records:
        tables.setdefault(record.experiment, []).append(_tidy(record))
    joined = {name: pd.concat(parts, ignore_index=True) for name, parts in tables.items()}
    return Results(joined, plans, sum(r.seconds for r in records), records[0].versions)


def _tidy(record: Record) -> pd.DataFrame:
    """The table of a record, with its setting and versions in every row."""
    # A result column with the name of a setting says to which of its values the row belongs.
    setting = {k: v for k, v in record.setting.items() if k not in record.table}
    flat = {k: v if isinstance(v, str | int | float) else json.dumps(v) for k, v in setting.items()}
    versions = " ".join(f"{name}={version}" for name, version in record.versions.items())
    table = record.table.assign(**flat, versions=versions)
    return table[[*flat, *record.table, "versions"]]


def remaining(rows: pd.DataFrame, *parts: str) -> Float[np.ndarray, " rows"]:
    """The controlled variance divided by the plain variance, in each row.

    Args:
      parts: "norm" (the paper's measure), or "draws" and "points", which add up.
    """
    controlled, plain = (
        rows[[f"{name}_{part}" for part in parts]].sum(axis=1) for name in ("controlled", "plain")
    )
    return (controlled / plain).to_numpy()
