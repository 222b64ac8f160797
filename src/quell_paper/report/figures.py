"""Figures of the paper: the results, arranged for the drawings."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from quell_paper.config import APPLY_FIRST, LEARN_FIRST, Plan
from quell_paper.report import plots
from quell_paper.results import Results, grouped, late_static, remaining, select
from quell_paper.verdicts import mean_interval, root

_REMAINING = {"norm": "Var‖G̃‖ / Var‖Ĝ‖", "draws": "remaining variance, draws"}
_STAGES: Any = {
    "by": "frozen_after",
    "title": "frozen after {} steps".format,
    "x": "coefficient_steps",
}
_ORDERS = {APPLY_FIRST: "apply, then learn", LEARN_FIRST: "the paper’s order"}

Look = tuple[str, int, bool]  # the label of a line, its colour, whether it is dashed


class Figure(NamedTuple):
    """A figure of the report.

    Attributes:
      kind: the name of the caption in the template of captions.
      name: the name of the files, without ending.
      facts: the values that its caption names.
      main: whether the figure stands in the paper itself rather than in its supplement.
      drawing: the figure, or its bytes as PNG.
    """

    kind: str
    name: str
    facts: dict[str, Any]
    main: bool
    drawing: Any


def all_figures(results: Results) -> Iterator[Figure]:
    """Yield all figures for which there are results."""
    if "figure-1" in results.tables:
        yield _illustration(results.tables["figure-1"])
    makers = {"static": _static, "dynamic": _dynamic, "orders": _orders, "traces": _traces}
    for experiment, make in makers.items():
        for plan, rows in results.by_model(experiment):
            yield from make(plan, rows)


def variate_name(network: str) -> str:
    """The kind of coefficients that a network makes."""
    return "context-free" if network == "none" else "amortised"


def criterion_name(criterion: str) -> str:
    """A criterion in words."""
    return criterion.replace("_", " ")


def _illustration(table: pd.DataFrame) -> Figure:
    points = []
    for _, rows in grouped(table, "point"):
        first = rows.iloc[0]
        arrays = ("epsilon", "gradient", "dependent", "independent")
        points.append(
            plots.Illustrated(
                f"x = {first['x']:.2f}, y = {first['y']:.0f}",
                *(rows[name].to_numpy() for name in arrays),
                mean=first["mean_gradient"],
                own=first["variance_dependent"] / first["variance"],
                common=first["variance_independent"] / first["variance"],
            )
        )
    return Figure("illustration", "figure-1", {"points": points}, True, plots.illustration(points))


def _static(plan: Plan, rows: pd.DataFrame) -> Iterator[Figure]:
    for (basis, criterion, rate), group in grouped(rows, "basis", "criterion", "learning_rate"):
        networks = list(dict.fromkeys(group["network"]))

        def look(network: str, networks=networks) -> Look:
            free = network == "none"
            label = "none (context-free)" if free else f"[{network.replace('-', ', ')}]"
            return label, networks.index(network), free

        panels = _panels(
            _with_remaining(group), **_STAGES, measures=_REMAINING, lines=["network"], look=look
        )
        main = ("linear", "squared_difference", plan.main_learning_rate)
        yield Figure(
            "static",
            f"static-{plan.model}-{basis}-{criterion}-{rate:g}",
            {"model": plan.model, "basis": basis, "criterion": criterion, "rate": rate},
            (basis, criterion, rate) == main,
            plots.step_lines(panels, levels=(1, 1), log=True),
        )
    late = select(late_static(plan, rows), learning_rate=plan.main_learning_rate)
    if not late.empty:
        yield Figure("parts", f"parts-{plan.model}", {"model": plan.model}, True, _parts(late))


def _parts(rows: pd.DataFrame) -> Any:
    total = rows["plain_draws"] + rows["plain_points"]
    shares = rows.filter(regex="_(draws|points)$").div(total, axis=0)
    shares = shares.assign(norm=remaining(rows, "norm"))
    bars = []
    for (network, criterion), group in grouped(rows, "network", "criterion"):
        mean = shares.loc[group.index].mean()
        if not bars:
            bars.append(("plain", mean["plain_draws"], mean["plain_points"], 1.0))
        name = f"{variate_name(network)}, {criterion_name(criterion)}"
        bars.append((name, mean["controlled_draws"], mean["controlled_points"], mean["norm"]))
    return plots.stacked_parts(*zip(*bars))


def _dynamic(plan: Plan, rows: pd.DataFrame) -> Iterator[Figure]:
    def look(order: str, network: str, basis: str) -> Look:
        papers = order == LEARN_FIRST
        label = f"{variate_name(network)}, {basis}" + (", paper’s order" if papers else "")
        return label, _colour(network), papers

    # The unbiased order first, then context-free before amortised.
    rows = rows.sort_values(["order", "network"], ascending=[True, False], kind="stable")
    for (criterion, rate), group in grouped(rows, "criterion", "learning_rate"):
        panels = _panels(
            _with_remaining(group),
            by="steps",
            title="after {} steps".format,
            measures=_REMAINING,
            x="steps",
            lines=["order", "network", "basis"],
            look=look,
        )
        both = LEARN_FIRST in set(group["order"])
        yield Figure(
            "dynamic",
            f"dynamic-{plan.model}-{criterion}-{rate:g}",
            {"model": plan.model, "criterion": criterion, "rate": rate, "both_orders": both},
            (criterion, rate) == ("squared_difference", plan.main_learning_rate),
            plots.ratio_dots(panels),
        )


def _orders(plan: Plan, rows: pd.DataFrame) -> Iterator[Figure]:
    def look(network: str, order: str) -> Look:
        label = f"{variate_name(network)}, {_ORDERS[order]}"
        return label, _colour(network), order == LEARN_FIRST

    rows = _with_remaining(rows).assign(bias=rows["bias"] / rows["gradient"])
    measures = {"bias": "bias ÷ gradient", "draws": _REMAINING["draws"]}
    for (criterion,), group in grouped(rows, "criterion"):
        panels = _panels(group, **_STAGES, measures=measures, lines=["network", "order"], look=look)
        yield Figure(
            "orders",
            f"orders-{plan.model}-{criterion}",
            {"model": plan.model, "criterion": criterion},
            criterion == "squared_difference",
            plots.step_lines(panels, levels=(0, 1), log=False),
        )


def _traces(plan: Plan, rows: pd.DataFrame) -> Iterator[Figure]:
    def look(network: str, criterion: str) -> Look:
        label = f"{variate_name(network)}, {criterion_name(criterion)}"
        colour = _colour(network) + (criterion != "squared_difference")
        return label, colour, network == "none"

    plain = select(rows, network="plain")
    rows = rows.drop(index=plain.index).sort_values("network", ascending=False, kind="stable")
    rows = rows.merge(
        plain[["seed", "step", "nelbo"]], on=["seed", "step"], suffixes=("", "_plain")
    )
    if not rows.empty:
        (panels,) = _panels(
            rows.assign(difference=rows["nelbo"] - rows["nelbo_plain"]),
            by="order",
            title=_ORDERS.__getitem__,
            measures={"difference": "NELBO minus uncontrolled"},
            x="step",
            lines=["network", "criterion"],
            look=look,
        )
        facts = {"model": plan.model, "seeds": plan.seeds}
        drawing = plots.difference_lines(panels)
        yield Figure("traces", f"traces-{plan.model}", facts, True, drawing)


def _colour(network: str) -> int:
    return 4 if network == "none" else 1


def _with_remaining(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(**{metric: remaining(rows, metric) for metric in _REMAINING})


def _panels(
    rows: pd.DataFrame,
    *,
    by: str,
    title: Callable[[Any], str],
    measures: dict[str, str],
    x: str,
    lines: list[str],
    look: Callable[..., Look],
) -> list[list[plots.Panel]]:
    """A row of panels per measure, a panel per value of `by`, a line per value of `lines`."""

    def panel(measure: str, label: str, value: Any, rows: pd.DataFrame) -> plots.Panel:
        series = [_series(r, measure, x, look(*key)) for key, r in grouped(rows, *lines)]
        return plots.Panel(title(value), label, series)

    return [
        [panel(measure, label, value, group) for (value,), group in grouped(rows, by)]
        for measure, label in measures.items()
    ]


def _series(rows: pd.DataFrame, measure: str, x: str, look: Look) -> plots.Series:
    """A line with its interval over seeds."""
    values = rows.pivot(index="seed", columns=x, values=measure)
    seeds = values.to_numpy()
    interval = root(mean_interval(seeds)) if measure == "bias" else mean_interval(seeds)
    mean, low, high = map(np.asarray, interval)
    if measure != "bias":  # the interval of few seeds may reach far beyond all of them
        low, high = low.clip(seeds.min(axis=0)), high.clip(None, seeds.max(axis=0))
    label, colour, dashed = look
    return plots.Series(label, colour, dashed, values.columns.to_numpy(float), mean, low, high)
