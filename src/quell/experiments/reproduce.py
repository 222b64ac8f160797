"""The whole job: plan, run what is missing, and leave tables, figures, summary and report."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from quell.experiments import (
    dynamic,
    figure_one,
    markdown,
    orders,
    records,
    report,
    static,
    table_one,
    traces,
)
from quell.experiments.claims import judge
from quell.experiments.config import EXPERIMENTS, PAPER, QUICK, FigureOne, Plan
from quell.experiments.figures import all_figures
from quell.experiments.records import Record
from quell.experiments.report import Picture
from quell.experiments.results import Results
from quell.experiments.run import Progress, automatic_progress, run
from quell.experiments.units import Unit
from quell.experiments.verdicts import Claim, as_json
from quell.plotting._style import rendered

_UNITS: dict[str, Callable[[Plan], list[Unit]]] = {
    "static": static.units,
    "dynamic": dynamic.units,
    "orders": orders.units,
    "traces": traces.units,
    "table-1": table_one.units,
}


def plans(models: Sequence[str], *, quick: bool, seeds: int | None) -> dict[str, Plan]:
    """The plan of each model, with another number of seeds if one is given."""
    base = QUICK if quick else PAPER
    chosen = {model: base[model] for model in models}
    if seeds is None:
        return chosen
    return {model: replace(plan, seeds=seeds) for model, plan in chosen.items()}


def reproduce(
    plans: dict[str, Plan],
    out: Path,
    *,
    experiments: Sequence[str] = EXPERIMENTS,
    progress: Callable[[Sequence[Unit]], Progress] = automatic_progress,
    command: str = "quell reproduce",
) -> list[Claim]:
    """Run the experiments, or what is missing of them, and write everything into `out`.

    Args:
      plans: what to run, by model.
      out: a directory; made if need be. Finished units found in it are not run again.
      experiments: which of them.
      progress: shows how far it has come.
      command: what to write on the report as its origin.

    Returns:
      The claims with their verdicts.
    """
    units = [
        unit
        for experiment in experiments
        if experiment != "figure-1"
        for plan in plans.values()
        for unit in _UNITS[experiment](plan)
    ]
    # What stands in the paper itself first, then its supplement: an early look shows most.
    units.sort(key=lambda unit: _in_supplement(unit, plans))
    if "figure-1" in experiments:
        units = figure_one.units(FigureOne()) + units
    records.write_text(out / ".writable", "")
    (out / ".writable").unlink()
    made = run(units, out, progress)
    return publish(made, plans, out, command)


def _in_supplement(unit: Unit, plans: dict[str, Plan]) -> bool:
    setting = unit.setting
    main = plans[setting["model"]].main_learning_rate
    return setting.get("basis", "linear") != "linear" or setting["learning_rate"] != main


def publish(made: Sequence[Record], plans: dict[str, Plan], out: Path, command: str) -> list[Claim]:
    """Tables, figures, summary and report of finished records."""
    for experiment in dict.fromkeys(record.experiment for record in made):
        own = [record for record in made if record.experiment == experiment]
        records.write_tidy(out / f"{experiment}.csv", own)
    results = Results(made, plans)
    claims = judge(results)
    pictures = []
    for name, caption, main, figure in all_figures(results):
        png = rendered(figure, "png")
        records.write_bytes(out / "figures" / f"{name}.png", png)
        records.write_bytes(out / "figures" / f"{name}.pdf", rendered(figure, "pdf"))
        pictures.append(Picture(name, caption, main, png))
    summary = {
        "claims": [as_json(claim) for claim in claims],
        "seeds": {model: plan.seeds for model, plan in plans.items()},
        "seconds": sum(record.seconds for record in made),
        "versions": records.versions(),
    }
    records.write_text(out / "summary.json", json.dumps(summary, indent=2) + "\n")
    for name, make in (("report.html", report.page), ("reproduction.md", markdown.page)):
        records.write_text(out / name, make(results, claims, pictures, command))
    return claims
