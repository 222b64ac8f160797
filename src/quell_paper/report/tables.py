"""The tables of the report: remaining variances, both orders side by side, times of a step."""

from typing import Any

import numpy as np
import pandas as pd

from quell.types import Interval
from quell_paper.config import APPLY_FIRST, LEARN_FIRST
from quell_paper.report.figures import criterion_name, variate_name
from quell_paper.results import Results, grouped, late_static, remaining, select
from quell_paper.verdicts import MODELS, mean_interval, root


def remaining_rows(results: Results) -> list[dict[str, Any]]:
    """Late remaining variances: one row per model, variate, criterion and learning rate."""
    rows = []
    for plan, static in results.by_model("static"):
        late = late_static(plan, static)
        settings = grouped(late, "network", "criterion", "learning_rate")
        for (network, criterion, rate), group in settings:
            draws = remaining(group, "draws")
            rows.append(
                {
                    "model": MODELS[plan.model],
                    "variate": variate_name(network),
                    "criterion": criterion_name(criterion),
                    "rate": rate,
                    "draws": mean_interval(draws),
                    "median": np.median(draws),
                    "norm": mean_interval(remaining(group, "norm")),
                }
            )
    return rows


def order_rows(results: Results) -> list[dict[str, Any]]:
    """Both orders side by side, by squared difference at the model that is frozen last.

    One row per variate and coefficient steps. Each order has its `bias`, the norm of the bias
    over the norm of the gradient, with its interval over seeds; `z`, the root mean square z score
    of the bias, about 1 without bias; and `remaining`, the mean remaining variance of the draws.
    """
    rows = []
    for plan, orders in results.by_model("orders"):
        stage = plan.static.frozen_after[-1]
        late = select(orders, criterion="squared_difference", frozen_after=stage)
        for (network, steps), group in grouped(late, "network", "coefficient_steps"):
            names = {"model": MODELS[plan.model], "variate": variate_name(network), "steps": steps}
            sides = {"papers": LEARN_FIRST, "unbiased": APPLY_FIRST}
            halves = {side: _half(select(group, order=order)) for side, order in sides.items()}
            rows.append(names | halves)
    return rows


def _half(rows: pd.DataFrame) -> dict[str, Any]:
    bias = root(mean_interval((rows["bias"] / rows["gradient"]).to_numpy()))
    z = np.sqrt(rows["z"].to_numpy().mean())
    return {"bias": bias, "z": z, "remaining": remaining(rows, "draws").mean()}


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
    digits = 0 if size >= 100 else (2 if size >= 0.1 else 3)
    show = [f"{value:.{digits}f}" if np.isfinite(value) else "?" for value in interval]
    return f"{show[0]} [{show[1]}, {show[2]}]".replace("-", "−")
