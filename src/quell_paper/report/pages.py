"""The pages of the report, from their templates: report.html needs no other file."""

import base64
from collections.abc import Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from quell_paper.report import tables
from quell_paper.report.figures import Figure, criterion_name
from quell_paper.results import Results
from quell_paper.run import readable
from quell_paper.verdicts import DEPENDS, MODELS, PARTS, Claim, verdicts_by_model


def render(
    page: str,
    results: Results,
    claims: Sequence[Claim],
    full: dict[str, dict[str, str]],
    figures: Sequence[Figure],
    command: str,
) -> str:
    """The text of `report.html` or `reproduction.md`; the drawings of the figures are PNG."""
    order_rows = tables.order_rows(results)
    return (
        _environment()
        .get_template(f"{page}.j2")
        .render(
            results=results,
            claims=claims,
            full=full,
            figures=figures,
            command=command,
            counts=_counts(claims),
            headlines=tables.headlines(results),
            seeds={MODELS[model]: counts for model, counts in results.seeds.items()},
            looks={MODELS[model]: results.plans[model].looks for model in results.seeds},
            remaining_rows=tables.remaining_rows(results),
            joint_rows=tables.joint_rows(results),
            capacity_tables=tables.capacity_tables(results),
            order_rows=order_rows,
            order_summary=tables.order_summary(order_rows) if order_rows else {},
            timing_rows=tables.timing_rows(results),
        )
    )


def found(results: Results, claims: Sequence[Claim]) -> str:
    """The verdicts and the library's own estimator in plain words, on one line."""
    words, headlines = template_words(), tables.headlines(results)
    parts = [words.counted(_counts(claims)), *(words.headline(**facts) for facts in headlines[:1])]
    return " ".join(" ".join(str(part).split()) for part in parts)


def template_words() -> Any:
    """The macros and tables of words that both pages share."""
    return _environment().get_template("words.j2").module


def _counts(claims: Sequence[Claim]) -> dict[str, int]:
    """The number of claims by verdict, of those that were tested."""
    order = (PARTS[True], DEPENDS, PARTS[False], PARTS[None])
    counts = {verdict: sum(claim.verdict == verdict for claim in claims) for verdict in order}
    return {verdict: n for verdict, n in counts.items() if n}


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("quell_paper.report"),
        autoescape=lambda name: name is not None and name.endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals |= {"model_names": MODELS, "verdicts": PARTS}
    environment.filters |= {
        "interval": tables.shown,
        "brief": tables.brief,
        "cell": lambda text: str(text).replace("|", "\\|"),  # in a table of Markdown
        "by_model": verdicts_by_model,
        "duration": readable,
        "criterion": criterion_name,
        "base64": lambda png: base64.b64encode(png).decode(),
        # Bytes 16 to 20 of a PNG file hold its width; at two thirds of it, the text is legible.
        "width": lambda png: int.from_bytes(png[16:20], "big") * 2 // 3,
    }
    return environment
