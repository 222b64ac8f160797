"""report.html: everything on one page that needs nothing beside it."""

import base64
import html
from collections.abc import Sequence
from typing import NamedTuple

from quell.experiments import tables
from quell.experiments.results import Results
from quell.experiments.run import readable
from quell.experiments.verdicts import MODELS, Claim, Part, explained, verdict

WORDS = (
    (
        "draws, points",
        "the two sources of a gradient’s noise: the Monte Carlo noise ε, and the "
        "choice of the mini-batch. The variates here can only reduce the first.",
    ),
    (
        "left",
        "the variance with a control variate over that without, on the same samples: 1 is no "
        "reduction. Effects are differences of such shares: 0.10 is a tenth of the plain variance.",
    ),
    (
        "amortised, context-free",
        "coefficients that a recognition network makes from each data "
        "point, and one set of coefficients for all of them.",
    ),
    (
        "squared difference, gradient sum, partial gradients",
        "the paper’s three criteria that "
        "coefficients are learned by; the last needs every example’s own gradient.",
    ),
    (
        "static, dynamic",
        "coefficients learn while the model stands still, frozen after some steps; "
        "or both learn together.",
    ),
    ("coefficient steps", "how many steps of Adam the coefficients have taken."),
    ("NELBO", "the negative evidence lower bound on all the data, which is minimised, in nats."),
)
JUDGED = (
    "Each effect has its 95 % interval over seeds (claim 9: over repetitions). Variances are "
    "judged by the part of the covariance’s trace that is due to the draws; the paper’s own "
    "measure, the variance of the gradient’s norm, stands beside it. A claim holds when every part "
    "lies on its side by the whole interval, and is undecided when an interval allows both "
    "answers. Parts in brackets are shown, not judged."
)


class Picture(NamedTuple):
    """A figure of the page.

    Attributes:
      name: its file name, without ending.
      caption: a sentence or two.
      main: whether it stands in the paper itself, not in its supplement.
      png: the image.
    """

    name: str
    caption: str
    main: bool
    png: bytes


def page(
    results: Results, claims: Sequence[Claim], pictures: Sequence[Picture], command: str
) -> str:
    """The whole page."""
    shown_first = [p for p in pictures if p.main and not p.name.startswith("orders")]
    main = "".join(_figure(picture) for picture in shown_first)
    more = [picture for picture in pictures if not picture.main]
    supplement = "".join(_figure(picture) for picture in more)
    words = "".join(f"<dt>{word}</dt><dd>{meaning}</dd>\n" for word, meaning in WORDS)
    held = sum(claim.holds is True for claim in claims)
    judged = sum(bool(claim.parts) for claim in claims)
    seconds = sum(record.seconds for record in results.records)
    seeds = ", ".join(f"{results.plans[m].seeds} seeds for {MODELS[m]}" for m in results.models)
    made_with = results.records[0].versions if results.records else {}
    packages = ", ".join(f"{name} {number}" for name, number in made_with.items())
    claim_list = "".join(_claim(claim) for claim in claims)
    folded = (
        f"<details><summary>{len(more)} more figures, as in the paper’s supplement</summary>"
        f"{supplement}</details>"
        if more
        else ""
    )
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Amortised variance reduction, reproduced</title>
<style>{_STYLE}</style>
<main>
<h1>Amortised variance reduction for doubly stochastic objectives, reproduced</h1>
<p class="lead">{held} of {judged} claims that were tested hold.
{html.escape(_sentence(seeds))}. The units took {readable(seconds)} of work, two at a
time.</p>
<details class="words"><summary>The words on this page</summary><dl>
{words}</dl></details>
<h2>Claims</h2>
<p>{JUDGED} Beside each claim stands the effect of its weakest part; claims
that differ from the paper are open.</p>
{claim_list}
<h2>Figures</h2>
{main}
{folded}
{_left(results)}
{_orders(results, pictures)}
{_table_one(results)}
<h2>How this was made</h2>
<p><code>{html.escape(command)}</code></p>
<p>{html.escape(packages)}. The numbers behind every figure lie beside this page, one CSV file per
experiment; <code>summary.json</code> holds the claims.</p>
</main>
</html>
"""


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _claim(claim: Claim) -> str:
    kind = {True: "yes", False: "no", None: "unknown"}[claim.holds]
    mark = verdict(claim.holds) if claim.parts else "not run"
    number = tables.shown(claim.weakest.interval) if claim.weakest else ""
    head = (
        f'<summary><span class="text"><b>{claim.id}.</b> {html.escape(claim.text)}</span>'
        f'<span class="number">{number}</span>'
        f'<span class="badge {kind}">{mark}</span></summary>'
    )
    if not claim.parts:
        return f'<details class="claim">{head}</details>\n'
    why = f"<p>{html.escape(explained(claim))}</p>" if explained(claim) else ""
    has_paper = any(part.paper is not None for part in claim.parts)
    rows = "".join(_part(part, has_paper) for part in claim.parts)
    rows += "".join(_part(part, has_paper, judged=False) for part in claim.also)
    paper = "<th>by the paper’s measure</th>" if has_paper else ""
    return f"""<details class="claim"{"" if claim.holds else " open"}>{head}
{why}
<p class="effect">Effect: {html.escape(claim.effect)}.</p>
<div class="scroll"><table class="parts">
<tr class="head"><th>model</th><th>part</th><th>effect, 95 % interval</th>{paper}
<th>verdict</th></tr>
{rows}</table></div>
</details>
"""


def _part(part: Part, has_paper: bool, judged: bool = True) -> str:
    paper = ""
    if has_paper:
        number = tables.shown(part.paper) if part.paper else ""
        paper = f'<td data-label="by the paper’s measure">{number}</td>'
    mark = verdict(part.holds) if judged else f"({verdict(part.holds)})"
    return (
        f'<tr><td class="model">{MODELS[part.model]}</td>'
        f'<td class="name">{html.escape(part.name)}</td>'
        f'<td data-label="effect">{tables.shown(part.interval)}</td>{paper}<td>{mark}</td></tr>\n'
    )


def _figure(picture: Picture) -> str:
    data = base64.b64encode(picture.png).decode()
    caption = html.escape(picture.caption)
    width = int.from_bytes(picture.png[16:20], "big") * 2 // 3  # drawn at 150 dots per inch
    return (
        f'<figure id="{picture.name}"><div class="scroll"><img alt="{caption}" width="{width}" '
        f'src="data:image/png;base64,{data}"></div><figcaption>{caption}</figcaption></figure>\n'
    )


def _left(results: Results) -> str:
    rows = tables.left_rows(results)
    if not rows:
        return ""
    head = "".join(f"<th>{cell}</th>" for cell in tables.LEFT_HEAD)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>\n" for row in rows)
    return f"""<h2 id="left">What is left, in numbers</h2>
<p>{tables.LEFT_NOTE}</p>
<div class="scroll"><table>
<tr>{head}</tr>
{body}</table></div>
"""


def _orders(results: Results, pictures: Sequence[Picture]) -> str:
    rows = tables.order_rows(results)
    if not rows:
        return ""
    body = "".join(
        f"<tr><td>{MODELS[row.model]}</td><td>{row.variate}</td><td>{row.coefficient_steps}</td>"
        + "".join(f"<td>{cell}</td>" for cell in (*row.papers.cells, *row.unbiased.cells))
        + "</tr>\n"
        for row in rows
    )
    shown_here = [p for p in pictures if p.main and p.name.startswith("orders")]
    drawn = "".join(_figure(picture) for picture in shown_here)
    half = "<th>bias ÷ gradient</th><th>z</th><th>left</th>"
    return f"""<h2 id="orders">The order of learning and applying</h2>
<p>{html.escape(tables.order_sentence(rows))}</p>
<div class="scroll"><table>
<tr><th rowspan="2">model</th><th rowspan="2">variate</th><th rowspan="2">coefficient<br>steps</th>
<th colspan="3">learn, then apply: the paper’s</th><th colspan="3">apply, then learn</th></tr>
<tr>{half}{half}</tr>
{body}</table></div>
<p>Bias ÷ gradient: the norm of the bias over that of the gradient, with its 95 % interval; negative
where chance explains more than was seen. Squared difference, the model frozen late.</p>
{drawn}"""


def _table_one(results: Results) -> str:
    timed = ""
    for model in results.models:
        rows = tables.timing_rows(results, model)
        if not rows:
            continue
        body = "".join(
            f"<tr><td>{name}</td>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>\n"
            for name, cells in rows
        )
        timed += f"""<h3>{_sentence(MODELS[model])}</h3>
<div class="scroll"><table>
<tr><th rowspan="2">method</th><th colspan="2">step by step</th>
<th colspan="2">compiled loop</th></tr>
<tr><th>ms (sd)</th><th>of plain</th><th>ms (sd)</th><th>of plain</th></tr>
{body}</table></div>
"""
    if not timed:
        return ""
    return f"""<h2 id="table-1">Table 1: time of a training step</h2>
<p>Milliseconds, mean and standard deviation over repetitions, and the ratio of medians to the plain
step, which the paper did not time. Step by step is one call from Python per step, as in the paper;
the compiled loop is how <code>quell.fit</code> trains.</p>
{timed}"""


_STYLE = """
body { margin: 0; background: #fff; color: #1a1a1a; font: 16px/1.55 system-ui, sans-serif; }
main { max-width: 64rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.6rem; line-height: 1.25; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #ddd; padding-bottom: .2rem; }
h3 { font-size: 1.05rem; margin: 0 0 .3rem; }
.lead { font-size: 1.1rem; }
.claim { border: 1px solid #ddd; border-radius: .4rem; padding: 0 1rem; margin: .5rem 0; }
.claim[open] { padding-bottom: .8rem; }
.claim p { margin: .3rem 0; }
.claim summary { display: flex; flex-wrap: wrap; gap: 0 1rem; align-items: baseline;
  font-weight: 400; }
.claim .text { flex: 1 1 17rem; }
.claim .text::before { content: "▸ "; color: #555; }
.claim[open] .text::before { content: "▾ "; }
.number { color: #444; font-size: .92rem; font-variant-numeric: tabular-nums; }
.badge { padding: 0 .6rem; border-radius: 1rem; font-weight: 600; white-space: nowrap; }
.words dt { font-weight: 600; margin-top: .5rem; }
.words dd { margin: 0; }
.yes { background: #d7efe5; color: #00513a; }
.no { background: #fbe0d0; color: #7a2f00; }
.unknown { background: #e8e8e8; color: #333; }
.effect { color: #444; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .2rem .9rem .2rem 0; white-space: nowrap; }
td.name { white-space: normal; }
th { color: #555; font-weight: 600; border-bottom: 1px solid #ddd; }
figure { margin: 1.5rem 0; }
figure img { max-width: max(100%, 34rem); height: auto; display: block; }
figcaption { color: #444; font-size: .92rem; }
@media (max-width: 42rem) {
  .parts { width: 100%; }
  .parts tr { display: block; padding: .3rem 0; border-top: 1px solid #ddd; }
  .parts tr.head { display: none; }
  .parts td { display: block; white-space: normal; padding: 0; }
  .parts td.model, .parts td.name { display: inline; font-weight: 600; }
  .parts td.model::after { content: ", "; }
  .parts td:empty { display: none; }
  .parts td[data-label]::before { content: attr(data-label) ": "; color: #555; }
}
details summary { cursor: pointer; padding: .5rem 0; font-weight: 600; }
code { background: #f3f3f3; padding: .1rem .3rem; border-radius: .2rem; overflow-wrap: anywhere; }
"""
