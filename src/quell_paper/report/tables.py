"""The tables of the report: remaining variances, networks by scale, both orders, step times."""

from collections import Counter
from typing import Any

import numpy as np
import pandas as pd

from quell.types import Interval
from quell_paper.claims import SCALE_NAMES, STEPS, capacity_part, procedure_name
from quell_paper.config import AMORTISED, APPLY_FIRST, LEARN_FIRST, network_name
from quell_paper.jobs import number_of_weights
from quell_paper.report.figures import (
    criterion_name,
    late_difference,
    network_label,
    own_rows,
    variate_name,
)
from quell_paper.results import NotRunError, Results, grouped, late_static, remaining, select
from quell_paper.verdicts import MODELS, mean_interval, root


def remaining_rows(results: Results) -> list[dict[str, Any]]:
    """Late remaining variances: one row per model, variate, criterion, scale and learning rate."""
    rows = []
    for plan, static in results.by_model("static"):
        late = late_static(plan, static)
        settings = grouped(late, "network", "criterion", "scale", "learning_rate")
        for (network, criterion, scale, rate), group in settings:
            setting = {
                "variate": variate_name(network),
                "criterion": criterion_name(criterion),
                "setting": SCALE_NAMES[scale],
                "rate": f"{rate:g}",
            }
            rows.append({"model": MODELS[plan.model]} | setting | _remaining(group))
    return rows


def joint_rows(results: Results) -> list[dict[str, Any]]:
    """Remaining variances at the end of joint training, the other estimators among them."""
    rows = []
    for plan, dynamic in results.by_model("dynamic"):
        last = select(dynamic, steps=plan.dynamic.measured_after[-1])
        last = pd.concat([select(last, basis=basis) for basis in ("linear", "none")])
        settings = grouped(last, "scale", "order", "network", "criterion", "learning_rate")
        for (scale, order, network, criterion, rate), group in settings:
            other = scale == "none"
            setting = {
                "variate": variate_name(network),
                "criterion": "" if other else criterion_name(criterion),
                "setting": "" if other else procedure_name((scale, order)),
                "rate": "" if other else f"{rate:g}",
            }
            rows.append({"model": MODELS[plan.model]} | setting | _remaining(group))
    return rows


def _remaining(group: pd.DataFrame) -> dict[str, Any]:
    return {
        "draws": mean_interval(remaining(group, "draws")),
        "noisier": group["noisier"].mean(),
        "whole": remaining(group, "draws", "points").mean(),
        "norm": mean_interval(remaining(group, "norm")),
    }


def capacity_tables(results: Results) -> list[dict[str, Any]]:
    """Remaining variance by network, scale and rate: one table per model and frozen stage.

    Each table has `settings`, its columns; `rows`, one per network, whose cells are the mean and
    the share of noisier entries, or None; and `counts`, the verdicts on the comparisons of claim 3.
    """
    tables = []
    for plan, static in results.by_model("static"):
        steps = plan.static.measured_after[-1]
        rows = select(static, basis="linear", criterion="squared_difference")
        rows = select(rows, coefficient_steps=steps)
        rows = rows.assign(left=remaining(rows, "draws").to_numpy())
        where = ("frozen_after", "network", "scale", "learning_rate")
        means = {
            key: (group["left"].mean(), group["noisier"].mean())
            for key, group in grouped(rows, *where)
        }
        order = list(SCALE_NAMES)
        settings = sorted(plan.static.settings, key=lambda s: (order.index(s[0]), s[1]))
        for stage in plan.static.frozen_after:
            here = [s for s in settings if any(key[0] == stage and key[2:] == s for key in means)]
            found = []
            for hidden in plan.static.networks:
                network = network_name(hidden)
                cells = [means.get((stage, network, *setting)) for setting in here]
                if any(cells):
                    weights = number_of_weights(plan.model, hidden)
                    label = network_label(network)
                    found.append({"network": label, "weights": weights, "cells": cells})
            tables.append(
                {
                    "model": MODELS[plan.model],
                    "stage": stage,
                    "settings": [(SCALE_NAMES[scale], rate) for scale, rate in here],
                    "rows": found,
                    "counts": [_verdicts(results, plan.model, stage, *s) for s in here],
                }
            )
    return tables


def _verdicts(results: Results, model: str, stage: int, scale: str, rate: float) -> Counter:
    """The number of comparisons of networks by verdict."""
    counts, words = Counter(), {True: "hold", False: "do not", None: "undecided"}
    for step in STEPS:
        try:
            counts[words[capacity_part(step, scale, rate, stage)(results, model).holds]] += 1
        except NotRunError:
            continue
    return counts


def headlines(results: Results) -> list[dict[str, Any]]:
    """The measured numbers behind the first sentence of the report, one entry per model."""
    found = []
    if not {"dynamic", "traces"} <= set(results.tables):
        return found
    bounds = {plan.model: (plan, rows) for plan, rows in results.by_model("traces")}
    for plan, rows in results.by_model("dynamic"):
        if plan.model not in bounds:
            continue
        last = select(own_rows(plan, rows), steps=plan.dynamic.measured_after[-1])
        gains = late_difference(*bounds[plan.model])
        facts = {}
        for name, network in (("paper", AMORTISED), ("pairs", "pairs"), ("own", "closed-form")):
            group = select(last, network=network)
            if len(group) == 0 or network not in gains:
                break
            facts[name] = {
                "draws": remaining(group, "draws").mean(),
                "whole": remaining(group, "draws", "points").mean(),
                "noisier": group["noisier"].mean(),
                "gain": mean_interval(-gains[network]),
            }
        else:
            steps = plan.dynamic.measured_after[-1]
            found.append({"model": plan.model, "steps": steps, "seeds": len(group)} | facts)
    return found


def order_rows(results: Results) -> list[dict[str, Any]]:
    """Both orders side by side, by squared difference at the model that is frozen last.

    One row per scale, variate and coefficient steps. Each order has its `bias`, the norm of the
    bias over the norm of the gradient, with its interval over seeds; `z`, the root mean square z
    score of the bias, about 1 without bias; `remaining`, the mean remaining variance of the draws;
    and `noisier`, the share of noisier entries.
    """
    rows = []
    for plan, orders in results.by_model("orders"):
        late = select(orders, frozen_after=plan.static.frozen_after[-1])
        settings = grouped(late, "scale", "network", "coefficient_steps")
        for (scale, network, steps), group in settings:
            names = {"model": MODELS[plan.model], "scale": SCALE_NAMES[scale]}
            names |= {"variate": variate_name(network), "steps": steps}
            sides = {"papers": LEARN_FIRST, "unbiased": APPLY_FIRST}
            halves = {side: _half(select(group, order=order)) for side, order in sides.items()}
            rows.append(names | halves)
    return rows


def _half(rows: pd.DataFrame) -> dict[str, Any]:
    bias = root(mean_interval((rows["bias"] / rows["gradient"]).to_numpy()))
    z = np.sqrt(rows["z"].to_numpy().mean())
    left, noisier = remaining(rows, "draws").mean(), rows["noisier"].mean()
    return {"bias": bias, "z": z, "remaining": left, "noisier": noisier}


def order_summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The facts of the sentence above the table: largest bias, z scores, apparent reduction."""
    z = {
        side: np.sqrt(np.mean([row[side]["z"] ** 2 for row in rows]))
        for side in ("papers", "unbiased")
    }
    gain = np.mean([row["unbiased"]["remaining"] - row["papers"]["remaining"] for row in rows])
    return {"worst": max(rows, key=lambda row: row["papers"]["bias"].value), "z": z, "gain": gain}


def timing_rows(results: Results) -> list[dict[str, Any]]:
    """Table 1: one row per model and variant, with the times of both ways of taking a step."""
    rows = []
    for plan, table in results.by_model("table-1"):
        plain = {}
        for (criterion, variant), group in grouped(table, "criterion", "variant"):
            ways = []
            for way, part in grouped(group, "way"):
                ms = part["milliseconds"].to_numpy()
                base = plain.setdefault(way, np.median(ms))  # the plain variant stands first
                ratio = np.median(ms) / base
                ways.append({"mean": ms.mean(), "std": ms.std(ddof=1), "ratio": ratio})
            names = {"model": MODELS[plan.model], "criterion": criterion_name(criterion)}
            rows.append(names | {"variant": variant, "ways": ways})
    return rows


def shown(interval: Interval) -> str:
    """The text of an interval, with digits to suit its size.

    >>> shown(Interval(0.5, 0.25, 0.75))
    '0.50 [0.25, 0.75]'
    """
    size = max(abs(value) for value in interval if np.isfinite(value))
    digits = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 0.1 else 3
    show = [f"{value:.{digits}f}" if np.isfinite(value) else "?" for value in interval]
    return f"{show[0]} [{show[1]}, {show[2]}]".replace("-", "−")


def brief(value: float) -> str:
    """A number with two significant digits, three from 10 on.

    >>> brief(0.0042), brief(0.1), brief(123.4)
    ('0.0042', '0.10', '123')
    """
    digits = 2 if abs(value) < 10 else 3
    text = np.format_float_positional(value, digits, unique=False, fractional=False)
    return text.rstrip(".").replace("-", "−")
