"""The report: tables, figures, summary.json, report.html and reproduction.md."""

import json
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from quell.diagnostics.records import versions
from quell.plotting._style import rendered
from quell_paper import store
from quell_paper.claims import judge
from quell_paper.report import pages
from quell_paper.report.figures import all_figures
from quell_paper.results import Results
from quell_paper.verdicts import Claim, as_json, verdicts_by_model


class Outcome(NamedTuple):
    """What a run has found.

    Attributes:
      claims: the judged claims.
      full: the verdict of the committed full run on each claim, by its number.
      found: the verdicts and the library's own estimator in one sentence of plain text.
    """

    claims: list[Claim]
    full: dict[str, dict[str, str]]
    found: str


def publish(results: Results, out: Path, command: str) -> Outcome:
    """Write tables, figures, summary and pages into `out`, and return the outcome."""
    for experiment, table in results.tables.items():
        csv = table.to_csv(index=False, float_format="%.9g")
        store.write_file(out / f"{experiment}.csv", csv)
    claims, pictures, full = judge(results), [], committed()
    for figure in all_figures(results):
        png = rendered(figure.drawing, "png")
        figure.drawing.set_layout_engine("none")  # it is laid out: the second file keeps the layout
        store.write_file(out / "figures" / f"{figure.name}.png", png)
        store.write_file(out / "figures" / f"{figure.name}.pdf", rendered(figure.drawing, "pdf"))
        pictures.append(figure._replace(drawing=png))
    summary = {
        "claims": [as_json(claim) for claim in claims],
        "found": pages.found(results, claims),
        "seeds": results.seeds,
        "seconds": results.seconds,
        "versions": versions(),
    }
    store.write_file(out / "summary.json", json.dumps(summary, indent=2) + "\n")
    by_model = {str(claim.id): verdicts_by_model(claim) for claim in claims}
    store.write_file(out / "verdicts.json", json.dumps(by_model, indent=2) + "\n")
    for page in ("report.html", "reproduction.md"):
        text = pages.render(page, results, claims, full, pictures, command)
        store.write_file(out / page, text)
    return Outcome(claims, full, summary["found"])


def committed() -> dict[str, dict[str, str]]:
    """The verdicts of the full run that docs/reproduction.md shows."""
    return json.loads((files("quell_paper") / "full_run.json").read_text(encoding="utf-8"))
