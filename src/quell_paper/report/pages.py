"""The pages of the report, from their templates: report.html needs no other file."""

import base64
from collections.abc import Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined

from quell_paper.report import tables
from quell_paper.report.figures import Figure, criterion_name
from quell_paper.results import Results
from quell_paper.run import readable
from quell_paper.verdicts import MODELS, VERDICTS, Claim


def render(
    page: str, results: Results, claims: Sequence[Claim], figures: Sequence[Figure], command: str
) -> str:
    """The text of `report.html` or `reproduction.md`; the drawings of the figures are PNG."""
    order_rows = tables.order_rows(results)
    return (
        _environment()
        .get_template(f"{page}.j2")
        .render(
            results=results,
            claims=claims,
            figures=figures,
            command=command,
            seeds={MODELS[model]: results.plans[model].seeds for model in results.models},
            remaining_rows=tables.remaining_rows(results),
            order_rows=order_rows,
            order_summary=tables.order_summary(order_rows) if order_rows else {},
            timing_rows=tables.timing_rows(results),
        )
    )


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("quell_paper.report"),
        autoescape=lambda name: name is not None and name.endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals |= {"model_names": MODELS, "verdicts": VERDICTS}
    environment.filters |= {
        "interval": tables.shown,
        "duration": readable,
        "criterion": criterion_name,
        "base64": lambda png: base64.b64encode(png).decode(),
        # Bytes 16 to 20 of a PNG file hold its width; at two thirds of it, the text is legible.
        "width": lambda png: int.from_bytes(png[16:20], "big") * 2 // 3,
    }
    return environment
