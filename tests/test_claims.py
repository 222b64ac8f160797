"""Verdicts on made-up records whose answers are known."""

import json
import re
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from quell.diagnostics.statistics import median_interval
from quell.types import Interval
from quell_cli import reproduce as command
from quell_paper.claims import judge
from quell_paper.config import AMORTISED, CRITERIA, FULL, LITERAL, OWN, PAPER
from quell_paper.report import committed, publish
from quell_paper.report.pages import template_words
from quell_paper.results import collected, remaining
from quell_paper.store import Record
from quell_paper.verdicts import (
    MODELS,
    as_json,
    difference_interval,
    mean_interval,
    positive,
    verdicts_by_model,
    within,
)

SEEDS = 10
NETWORKS = {"none": 1.0, "16": 0.8, "128": 0.6, "512": 0.55}
NETWORKS |= {"16-16-16": 0.5, "64-64-64": 0.45, "128-128-128": 0.3}


def wobble(size, scale=0.01):
    """Seeds that differ a little, the same way every time."""
    return scale * np.random.default_rng(0).standard_normal(size)


def ratio_table(axes, ratio):
    """Rows for every combination of axes and seed; `ratio(**where)` is the remaining variance."""
    rows = [dict(zip(axes, values)) for values in product(*axes.values())]
    table = {name: [row[name] for row in rows for _ in range(SEEDS)] for name in axes}
    table["seed"] = list(range(SEEDS)) * len(rows)
    left = np.concatenate([ratio(**row) + wobble(SEEDS) for row in rows])
    for part, plain in (("norm", 5.0), ("draws", 2.0), ("points", 3.0)):
        table[f"plain_{part}"] = [plain] * len(left)
        table[f"controlled_{part}"] = (plain * left).tolist()
    return table


def record(experiment, table, **setting):
    return Record(experiment, setting, {"quell": "0"}, 1.0, pd.DataFrame(table))


def static_records(model, left):
    """`left(network, criterion, stage, steps)` for every setting of the main learning rate."""
    plan = PAPER[model]
    axes = {
        "frozen_after": plan.static.frozen_after,
        "coefficient_steps": plan.static.measured_after,
    }
    for network, criterion in product(NETWORKS, CRITERIA):
        table = ratio_table(
            axes,
            lambda frozen_after, coefficient_steps, n=network, c=criterion: left(
                n, c, frozen_after, coefficient_steps
            ),
        )
        yield record(
            "static",
            table,
            model=model,
            network=network,
            criterion=criterion,
            basis="linear",
            scale=FULL,
            learning_rate=plan.main_learning_rate,
        )


def dynamic_records(model, left):
    plan = PAPER[model]
    for network, criterion in product(("none", "128-128-128"), CRITERIA):
        table = ratio_table(
            {"steps": plan.dynamic.measured_after},
            lambda steps, n=network, c=criterion: left(n, c, steps),
        )
        yield record(
            "dynamic",
            table,
            model=model,
            network=network,
            criterion=criterion,
            basis="linear",
            scale=FULL,
            order="learn_then_apply",
            learning_rate=plan.main_learning_rate,
        )


def trace_records(model, offset, procedure=LITERAL):
    """NELBO is 100 plus `offset(network, criterion)(t)`, t from 0 to 1; seeds differ by a noise."""
    t = np.linspace(0, 1, 200)
    seeds = wobble((SEEDS, 1), scale=5.0)
    noise = np.random.default_rng(1).standard_normal((SEEDS, t.size)) * 0.01
    settings = [("plain", "none", ("none", "none"))]
    settings += [
        (network, criterion, procedure)
        for network in ("none", AMORTISED)
        for criterion in PAPER[model].traces.criteria
    ]
    for network, criterion, (scale, order) in settings:
        nelbo = 100 + seeds + offset(network, criterion)(t) + (noise if network != "plain" else 0)
        table = {
            "seed": [s for s in range(SEEDS) for _ in t],
            "step": list(range(t.size)) * SEEDS,
            "nelbo": nelbo.ravel().tolist(),
        }
        setting = {"network": network, "criterion": criterion, "scale": scale, "order": order}
        yield record("traces", table, model=model, **setting)


def timing_record(model, overhead):
    rows = [
        (variant, criterion, way, cost * (1 + 0.02 * (i % 3)))
        for (variant, cost), way in product(
            (("plain", 1.0), ("context-free", 2.0), ("amortised", 2.0 * (1 + overhead))),
            ("dispatched", "loop"),
        )
        for criterion in (("none",) if variant == "plain" else CRITERIA[:2])
        for i in range(30)
    ]
    table = dict(zip(("variant", "criterion", "way", "milliseconds"), map(list, zip(*rows))))
    return record("table-1", table, model=model)


def as_the_paper_says(model, base):
    """Records in which everything is as the paper says; `base` is the least remaining variance."""

    def static(network, criterion, stage, steps):
        late = base + (1 - base) * NETWORKS[network] if network != "none" else 1.0
        slow = {1: 0.99, 10: 0.96, 30: 0.9, 100: 0.7, 300: 0.4, 1000: 0.0}[steps]
        if criterion == "partial_gradients":
            slow = 0.4 * slow
        early = {10: 0.3, 200: 0.1, 1000: 0.0}[stage]
        return late + (1 - late) * max(slow, early)

    def dynamic(network, criterion, steps):
        return 1.0 if network == "none" else {10: 0.9, 200: 0.7, 1000: 0.4}[steps]

    def offset(network, criterion):
        if network == "plain":
            return lambda t: 0 * t
        gain = 2.0 if network == "none" else 5.0
        return lambda t: np.where(t < 0.1, 3.0, -gain * t)

    yield from static_records(model, static)
    yield from dynamic_records(model, dynamic)
    yield from trace_records(model, offset)
    yield timing_record(model, overhead=0.25)


def results(*records):
    return collected([], records, dict(PAPER))


def test_when_everything_is_as_the_paper_says_every_claim_holds():
    claims = judge(results(*as_the_paper_says("logistic", 0.0), *as_the_paper_says("deep-gp", 0.3)))
    assert [claim.id for claim in claims] == list(range(1, 12))
    assert {claim.id: claim.verdict for claim in claims} == dict.fromkeys(range(1, 12), "holds")
    for claim in claims:
        models = {part.model for part in claim.parts}
        assert models == ({"deep-gp"} if claim.id == 11 else {"logistic", "deep-gp"})
        assert all(part.seeds >= SEEDS and part.jobs for part in claim.parts)


def test_when_everything_is_the_other_way_round_every_claim_fails():
    worse = {"none": 0.1, "16": 0.2, "16-16-16": 0.4, "128": 0.3, "64-64-64": 0.6, "512": 0.5}

    def static(network, criterion, stage, steps):
        slower = criterion == "partial_gradients"
        return worse.get(network, 0.7) + slower - 0.1 * (stage == 10)

    def dynamic(network, criterion, steps):
        return {"none": 0.5}.get(network, 1.5) + 0.1 * (steps == 1000)

    def offset(network, criterion):
        size = {"plain": 0.0, "none": 10.0}.get(network, 20.0)
        return lambda t: size * (2 * t - 0.2) + 50 * (criterion == "gradient_sum") * t * (t > 0.1)

    records = []
    for model, extra in (("logistic", 0.1), ("deep-gp", 0.0)):
        records += static_records(model, lambda *a, e=extra: static(*a) + e)
        records += dynamic_records(model, lambda *a, e=extra: dynamic(*a) + e)
        records += trace_records(model, offset)
        records.append(timing_record(model, overhead=3.0))
    verdicts = {claim.id: claim.verdict for claim in judge(results(*records))}
    assert verdicts == dict.fromkeys(range(1, 12), "does not hold here")


def test_an_effect_is_the_mean_difference_over_seeds():
    claim = judge(results(*as_the_paper_says("logistic", 0.0)))[0]
    static = next(part for part in claim.parts if part.name.startswith("frozen"))
    assert static.interval.value == pytest.approx(1.0 - 0.3, abs=1e-9)
    assert static.interval.low <= static.interval.value <= static.interval.high
    assert static.paper is not None


def seeds_that_disagree():
    for r in static_records("logistic", lambda *a: 1.0):
        sign = 1 if r.setting["network"] == "none" else -1
        left = [2.0 + sign * (-1) ** seed for seed in r.table["seed"]]
        yield r._replace(table=r.table.assign(controlled_draws=left))


def test_seeds_that_disagree_leave_a_claim_undecided_and_name_their_jobs():
    found = results(*seeds_that_disagree())
    claim = judge(found)[0]
    assert claim.verdict == "undecided"
    rows = found.rows("static", criterion="squared_difference")
    wanted = rows[rows["network"].isin(["none", AMORTISED])]
    assert claim.undecided_jobs == frozenset(wanted["job"])
    assert not judge(results(*as_the_paper_says("logistic", 0.0)))[0].undecided_jobs


def test_parts_that_hold_and_parts_that_fail_make_a_claim_depend_on_its_setting():
    good = static_records("logistic", lambda network, *a: NETWORKS[network])
    bad = static_records("deep-gp", lambda network, *a: 1.1 - NETWORKS[network])
    claim = judge(results(*good, *bad))[2]
    assert claim.verdict == "depends"
    assert claim.decided
    assert verdicts_by_model(claim) == {
        "all": "depends",
        "logistic": "holds",
        "deep-gp": "does not hold here",
    }


def test_a_comparison_takes_the_seeds_that_both_sides_have():
    records = list(static_records("logistic", lambda network, *a: NETWORKS[network]))
    more = [r for r in records if r.setting["network"] == "none"]
    shifted = [r._replace(table=r.table.assign(seed=r.table["seed"] + SEEDS)) for r in more]
    claim = judge(results(*records, *shifted))[0]
    assert claim.parts[0].seeds == SEEDS
    assert claim.parts[0].interval.value == pytest.approx(0.7)


def test_what_was_not_run_is_not_judged():
    claims = judge(results(*static_records("logistic", lambda *a: 0.5)))
    by_id = {claim.id: claim for claim in claims}
    assert by_id[1].parts
    assert not by_id[6].parts
    assert not by_id[11].parts
    assert as_json(by_id[6])["verdict"] == "not run"
    assert not by_id[6].decided


def test_the_librarys_own_procedure_is_shown_but_not_judged():
    def better(network, criterion):
        return lambda t: 0 * t if network == "plain" else -t - (network != "none")

    def worse(network, criterion):
        return lambda t: 0 * t if network == "plain" else t + 1

    records = [*trace_records("logistic", better)]
    own = trace_records("logistic", worse, procedure=OWN)
    records += [r for r in own if r.setting["network"] != "plain"]
    claim = judge(results(*records))[5]
    assert claim.verdict == "holds"
    assert [part.holds for part in claim.also if "uncontrolled" in part.name] == [False]


def test_a_claim_in_json_has_its_numbers_and_no_infinities():
    claims = judge(results(*as_the_paper_says("logistic", 0.0)))
    for claim in claims:
        found = json.loads(json.dumps(as_json(claim), allow_nan=False))
        assert {"id", "verdict", "effect", "low", "high"} <= found.keys()


def test_total_remaining_variance_is_weighted_by_the_parts():
    plain = {"seed": [0], "plain_draws": [1.0], "plain_points": [3.0]}
    rows = pd.DataFrame(plain | {"controlled_draws": [0.0], "controlled_points": [3.0]})
    assert remaining(rows, "draws", "points").to_numpy() == pytest.approx([0.75])
    assert remaining(rows, "draws").to_numpy() == pytest.approx([0.0])


@pytest.mark.slow
def test_intervals_of_several_looks_cover_together():
    looks, level = (5, 10, 15), 1 - 0.05 / 3
    seeds = np.random.default_rng(0).standard_normal((4000, looks[-1]))
    intervals = [[mean_interval(row[:n], level) for n in looks] for row in seeds]
    missed = np.mean([any(i.low > 0 or i.high < 0 for i in row) for row in intervals])
    assert missed < 0.05


@pytest.mark.slow
def test_intervals_cover_at_their_level():
    rng = np.random.default_rng(0)
    draws = rng.standard_normal((4000, 6))
    for make in (mean_interval, lambda v: difference_interval(v[:3], v[3:])):
        covered = np.mean([low <= 0 <= high for _, low, high in map(make, draws)])
        assert covered == pytest.approx(0.95, abs=0.02)  # Welch's is approximate
    medians = [median_interval(row) for row in rng.standard_normal((2000, 25))]
    assert np.mean([low <= 0 <= high for _, low, high in medians]) > 0.94


def test_decisions():
    assert positive(Interval(1, 0.5, 2)) is True
    assert positive(Interval(-1, -2, -0.5)) is False
    assert positive(Interval(0.5, -1, 2)) is None
    assert within(-1, 1)(Interval(0, -0.5, 0.5)) is True
    assert within(-1, 1)(Interval(2, 1.5, 2.5)) is False
    assert within(-1, 1)(Interval(1, 0.5, 1.5)) is None
    assert mean_interval(np.array([1.0])).low == -np.inf


def test_verdicts_agree_between_terminal_report_summary_and_page(tmp_path):
    found = results(*as_the_paper_says("logistic", 0.0), *seeds_that_disagree())
    found.tables.pop("dynamic")  # the figures want columns that these records do not have
    found.tables.pop("static")
    found.tables.pop("traces")
    outcome = publish(found, tmp_path, "quell reproduce")
    expected = {claim.id: claim.verdict for claim in outcome.claims}
    assert len(set(expected.values())) > 1
    assert in_the_summary(tmp_path) == expected
    assert in_the_report(tmp_path) == expected
    assert in_the_page(tmp_path / "reproduction.md") == expected
    by_number = {claim.id: claim for claim in outcome.claims if claim.parts}
    lines = command.told(outcome, tmp_path, quick=False)
    judged = {int(line[:2]): line for line in lines if line[:2].strip().isdigit()}
    assert judged.keys() == by_number.keys()
    assert all(expected[i] in judged[i] for i in judged)
    assert [line.split(":")[0] for line in lines[-3:]] == ["Found", "Report", "Next"]


def in_the_summary(out):
    claims = json.loads((out / "summary.json").read_text())["claims"]
    return {claim["id"]: claim["verdict"] for claim in claims}


def in_the_report(out):
    page = (out / "report.html").read_text()
    found = re.findall(r"<b>(\d+)\.</b>.*?<span class=\"badge \w+\">([^<]*)</span>", page, re.S)
    return {int(i): verdict for i, verdict in found}


def in_the_page(page):
    return {i: row["verdict"] for i, row in overview(page).items()}


def overview(page):
    """The page's table of all claims: verdicts by number and column."""
    _, _, text = page.read_text().partition("| | claim | verdict |")
    lines = f"| | claim | verdict |{text}".partition("\n\n")[0].splitlines()
    head, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return {int(row[0]): dict(zip(head, row, strict=True)) for row in rows}


PAGE = Path(__file__).parent.parent / "docs" / "reproduction.md"


def test_the_committed_verdicts_are_those_of_the_committed_page():
    columns = {"all": "verdict"} | MODELS
    page = {
        i: {model: row[column] for model, column in columns.items() if row[column] != "–"}
        for i, row in overview(PAGE).items()
    }
    assert page == {int(i): verdicts for i, verdicts in committed().items()}
    assert len(page) == 11


def test_the_committed_page_has_the_words_of_its_templates():
    words = template_words()
    notes = ("judged", "scales_note", "capacity_note", "remaining_note", "joint_note")
    told = [str(getattr(words, name)()) for name in (*notes, "order_note", "timing_note")]
    told += [f"**{word}**: {meaning}" for word, meaning in words.words.items()]
    told += [" | ".join(row).replace("N/|B|", r"N/\|B\|") for row in words.deviations]
    told += ["; ".join(words.left_out), str(words.headlines_note(1000))]
    told += [text for claim in judge(results()) for text in (claim.text, claim.effect)]
    page = PAGE.read_text()
    assert [text for text in told if text not in page] == []
