"""The report: tables, figures, summary.json, report.html and reproduction.md."""

import json
from pathlib import Path

from quell.diagnostics.records import versions
from quell.plotting._style import rendered
from quell_paper import store
from quell_paper.claims import judge
from quell_paper.report import pages
from quell_paper.report.figures import all_figures
from quell_paper.results import Results
from quell_paper.verdicts import Claim, as_json


def publish(results: Results, out: Path, command: str) -> list[Claim]:
    """Write tables, figures, summary and pages into `out`, and return the judged claims."""
    for experiment, table in results.tables.items():
        csv = table.to_csv(index=False, float_format="%.9g")
        store.write_file(out / f"{experiment}.csv", csv)
    claims, pictures = judge(results), []
    for figure in all_figures(results):
        png = rendered(figure.drawing, "png")
        store.write_file(out / "figures" / f"{figure.name}.png", png)
        store.write_file(out / "figures" / f"{figure.name}.pdf", rendered(figure.drawing, "pdf"))
        pictures.append(figure._replace(drawing=png))
    summary = {
        "claims": [as_json(claim) for claim in claims],
        "seeds": {model: plan.seeds for model, plan in results.plans.items()},
        "seconds": results.seconds,
        "versions": versions(),
    }
    store.write_file(out / "summary.json", json.dumps(summary, indent=2) + "\n")
    for page in ("report.html", "reproduction.md"):
        text = pages.render(page, results, claims, pictures, command)
        store.write_file(out / page, text)
    return claims
