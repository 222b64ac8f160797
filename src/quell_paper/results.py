"""Results from records: one tidy table per experiment, and selections of its rows."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from quell_paper.config import AMORTISED, LITERAL, Plan, Procedure
from quell_paper.jobs import Job, identity
from quell_paper.store import Record

_MAIN = {"network": AMORTISED, "criterion": "squared_difference", "basis": "linear"}


class NotRunError(LookupError):
    """The error of a selection without rows, because the experiment has not been run."""


class Results(NamedTuple):
    """The results of a run.

    Attributes:
      tables: one tidy table per experiment; the setting of a record is repeated in its rows.
      plans: the plan of each model.
      seconds: the time of all records together.
      versions: the versions of the packages behind the first record.
      left: the number of jobs without a record, by experiment and model.
      used: the identities of the jobs whose rows have been selected.
    """

    tables: dict[str, pd.DataFrame]
    plans: dict[str, Plan]
    seconds: float
    versions: Mapping[str, str]
    left: Mapping[str, int]
    used: set[str]

    @property
    def models(self) -> list[str]:
        """The models that have any rows."""
        tables = [table["model"] for table in self.tables.values() if "model" in table]
        return [model for model in self.plans if any((column == model).any() for column in tables)]

    @property
    def seeds(self) -> dict[str, tuple[int, int]]:
        """The least and the most seeds of a setting, for each model."""
        counts: dict[str, list[int]] = {}
        for name in ("static", "dynamic", "traces"):
            if name in self.tables:
                for (model, _), rows in grouped(self.tables[name], "model", "job"):
                    counts.setdefault(model, []).append(len(set(rows["seed"])))
        return {model: (min(n), max(n)) for model, n in counts.items()}

    def level(self, *models: str) -> float:
        """The level of an interval: 95 % for all looks at the data together, by Bonferroni."""
        return 1 - 0.05 / max(self.plans[model].looks for model in models)

    def rows(self, experiment: str, **where: Any) -> pd.DataFrame:
        """The rows of an experiment whose columns have the given values."""
        table = self.tables.get(experiment, pd.DataFrame())
        found = table if table.empty else select(table, **where)
        if found.empty:
            raise NotRunError(f"{experiment} {where}")
        self.used.update(found["job"].unique())
        return found

    def by_model(self, experiment: str) -> Iterator[tuple[Plan, pd.DataFrame]]:
        """The plan and the rows of each model on which an experiment was run."""
        if experiment in self.tables:
            for (model,), rows in grouped(self.tables[experiment], "model"):
                yield self.plans[model], rows

    def static(
        self, model: str, metric: str, *, procedure: Procedure = LITERAL, early=False, **where: Any
    ) -> pd.Series:
        """The remaining variance at a frozen model by seed, after all steps by default."""
        static = self.plans[model].static
        usual = {"scale": procedure[0], "coefficient_steps": static.measured_after[-1]}
        usual["frozen_after"] = static.frozen_after[0 if early else -1]
        return self._remaining("static", model, metric, usual | where)

    def dynamic(
        self, model: str, metric: str, *, procedure: Procedure = LITERAL, early=False, **where: Any
    ) -> pd.Series:
        """The remaining variance in joint training by seed, at its end by default."""
        usual: dict[str, Any] = dict(zip(("scale", "order"), procedure))
        usual["steps"] = self.plans[model].dynamic.measured_after[0 if early else -1]
        return self._remaining("dynamic", model, metric, usual | where)

    def _remaining(self, experiment: str, model: str, metric: str, where: dict) -> pd.Series:
        usual = _MAIN | {"model": model, "learning_rate": self.plans[model].main_learning_rate}
        return remaining(self.rows(experiment, **usual | where), metric)

    def trace(self, model: str, network: str, **where: Any) -> pd.DataFrame:
        """The bound on the whole data, one row per seed and one column per step."""
        rows = self.rows("traces", model=model, network=network, **where)
        return rows.pivot(index="seed", columns="step", values="nelbo")


def collected(
    jobs: Sequence[Job], found: Sequence[Record | None], plans: dict[str, Plan]
) -> Results:
    """The results of some jobs, each with its record, or None if it has not run."""
    tables: dict[str, list[pd.DataFrame]] = {}
    records = [record for record in found if record is not None]
    for record in records:
        tables.setdefault(record.experiment, []).append(_tidy(record))
    joined = {name: pd.concat(parts, ignore_index=True) for name, parts in tables.items()}
    versions = records[0].versions if records else {}
    left = Counter(
        " ".join(job.label.split()[:2]) for job, record in zip(jobs, found) if record is None
    )
    return Results(joined, plans, sum(r.seconds for r in records), versions, left, set())


def late_static(plan: Plan, rows: pd.DataFrame) -> pd.DataFrame:
    """The static rows at the end of all learning: linear basis, context-free, then amortised."""
    stage, steps = plan.static.frozen_after[-1], plan.static.measured_after[-1]
    late = select(rows, basis="linear", frozen_after=stage, coefficient_steps=steps)
    return pd.concat([select(late, network=network) for network in ("none", AMORTISED)])


def select(rows: Any, **where: Any) -> pd.DataFrame:
    """The rows whose columns have the given values."""
    for name, value in where.items():
        rows = rows[rows[name] == value]
    return rows


def of_variates(rows: Any) -> pd.DataFrame:
    """The rows of the paper's variates, without those of other estimators."""
    return rows[rows["basis"] != "none"]


def grouped(rows: pd.DataFrame, *names: str) -> Iterable[tuple[Any, pd.DataFrame]]:
    """The rows of each combination of values, in the order of their first rows."""
    return rows.groupby(list(names), sort=False)


def _tidy(record: Record) -> pd.DataFrame:
    """The table of a record, with its setting and versions in every row."""
    # A result column with the name of a setting gives the value of the setting for each row.
    setting = {k: v for k, v in record.setting.items() if k not in record.table}
    flat = {k: v if isinstance(v, str | int | float) else json.dumps(v) for k, v in setting.items()}
    versions = " ".join(f"{name}={version}" for name, version in record.versions.items())
    job = identity(record.experiment, record.setting)
    table = record.table.assign(**flat, job=job, versions=versions)
    return table.reindex(columns=[*flat, *record.table, "job", "versions"])


def remaining(rows: pd.DataFrame, *parts: str) -> pd.Series:
    """The controlled variance divided by the plain variance, in each row, by seed.

    Args:
      parts: "norm" (the paper's measure), or "draws" and "points", which add up.
    """
    controlled, plain = (
        rows[[f"{name}_{part}" for part in parts]].sum(axis=1) for name in ("controlled", "plain")
    )
    return (controlled / plain).set_axis(rows["seed"])
