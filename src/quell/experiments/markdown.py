"""reproduction.md: the claims, the table and the main figures, for a repository's documentation."""

from collections.abc import Sequence

from quell.experiments import tables
from quell.experiments.report import JUDGED, WORDS, Picture
from quell.experiments.results import Results
from quell.experiments.run import readable
from quell.experiments.verdicts import MODELS, Claim, explained, verdict


def page(
    results: Results, claims: Sequence[Claim], pictures: Sequence[Picture], command: str
) -> str:
    """The whole page; it refers to the figures as `figures/NAME.png`."""
    seconds = sum(record.seconds for record in results.records)
    seeds = ", ".join(f"{results.plans[m].seeds} for {MODELS[m]}" for m in results.models)
    lines = [
        "# The paper, reproduced",
        "",
        f"Made by `{command}`, which writes this page anew. Seeds: {seeds}. The units took "
        f"{readable(seconds)} of work, two at a time. What is run is written down in "
        "`src/quell/experiments/config.py`.",
        "",
        "## Words",
        "",
        *(f"- **{word}**: {meaning}" for word, meaning in WORDS),
        "",
        "## Claims",
        "",
        JUDGED,
        "",
        "| | claim | verdict |",
        "| --- | --- | --- |",
        *(f"| {c.id} | {c.text} | {verdict(c.holds) if c.parts else 'not run'} |" for c in claims),
        "",
    ]
    for claim in claims:
        lines += _claim(claim)
    lines += ["## Figures", ""]
    for picture in pictures:
        if picture.main and not picture.name.startswith("orders"):
            lines += _figure(picture)
    lines += _left(results)
    lines += _orders(results, pictures)
    lines += _table_one(results)
    return "\n".join(lines)


def _figure(picture: Picture) -> list[str]:
    return [f"![{picture.name}](figures/{picture.name}.png)", "", picture.caption, ""]


def _claim(claim: Claim) -> list[str]:
    if not claim.parts:
        return [f"### {claim.id}. {claim.text}", "", "Not run.", ""]
    lines = [
        f"### {claim.id}. {claim.text}",
        "",
        f"**{verdict(claim.holds).capitalize()}.** {explained(claim)}".rstrip(),
        f"Effect: {claim.effect}.",
        "",
        "| model | part | effect | by the paper's measure | verdict |",
        "| --- | --- | --- | --- | --- |",
    ]
    for part, judged in [(p, True) for p in claim.parts] + [(p, False) for p in claim.also]:
        mark = verdict(part.holds) if judged else f"({verdict(part.holds)})"
        paper = tables.shown(part.paper) if part.paper else ""
        effect = tables.shown(part.interval)
        lines.append(f"| {MODELS[part.model]} | {part.name} | {effect} | {paper} | {mark} |")
    return [*lines, ""]


def _left(results: Results) -> list[str]:
    rows = tables.left_rows(results)
    if not rows:
        return []
    lines = ["## What is left, in numbers", "", tables.LEFT_NOTE, ""]
    for row in (tables.LEFT_HEAD, ["---"] * len(tables.LEFT_HEAD), *rows):
        lines.append(f"| {' | '.join(row)} |")
    return [*lines, ""]


def _orders(results: Results, pictures: Sequence[Picture]) -> list[str]:
    rows = tables.order_rows(results)
    if not rows:
        return []
    lines = [
        "## The order of learning and applying",
        "",
        tables.order_sentence(rows),
        "",
        "| model | variate | coefficient steps | paper's: bias ÷ gradient | z | left "
        "| unbiased: bias ÷ gradient | z | left |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        cells = (MODELS[row.model], row.variate, str(row.coefficient_steps))
        cells = (*cells, *row.papers.cells, *row.unbiased.cells)
        lines.append(f"| {' | '.join(cells)} |")
    lines += [""]
    for picture in pictures:
        if picture.main and picture.name.startswith("orders"):
            lines += _figure(picture)
    return lines


def _table_one(results: Results) -> list[str]:
    timed = {model: tables.timing_rows(results, model) for model in results.models}
    if not any(timed.values()):
        return []
    lines = [
        "## Table 1: time of a training step",
        "",
        "Milliseconds, mean and standard deviation over repetitions, and the ratio of medians to "
        "the plain step. Step by step is one call from Python per step, as in the paper.",
        "",
        "| model | method | step by step | of plain | compiled loop | of plain |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for model, rows in timed.items():
        lines += [f"| {MODELS[model]} | {name} | {' | '.join(cells)} |" for name, cells in rows]
    return [*lines, ""]
