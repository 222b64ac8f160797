"""The results arranged for the figures of the paper."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pandas as pd

from quell_paper.config import APPLY_FIRST, LEARN_FIRST, Plan
from quell_paper.report import plots
from quell_paper.results import NotRunError, Results, context_free_first, remaining
from quell_paper.verdicts import mean_interval, root

REMAINING = {"norm": "Var‖G̃‖ / Var‖Ĝ‖", "draws": "remaining variance\n(draws)"}
_MAIN = ("linear", "squared_difference")
_ORDERS = {APPLY_FIRST: "apply, then learn", LEARN_FIRST: "the paper’s order"}

Look = tuple[str, int, bool]  # the label of a line, its colour, whether it is dashed


class Figure(NamedTuple):
    """A figure of the report.

    Attributes:
      name: the name of its files, without ending.
      kind: the name of its caption in the template of captions.
      facts: the values that the caption names.
      main: whether the figure stands in the paper itself rather than in its supplement.
      drawing: the figure, or its bytes as PNG.
    """

    name: str
    kind: str
    facts: dict[str, Any]
    main: bool
    drawing: Any


def all_figures(results: Results) -> Iterator[Figure]:
    """All figures for which there are results, one by one."""
    yield from _illustration(results)
    for make, experiment in (
        (_static, "static"),
        (_dynamic, "dynamic"),
        (_orders, "orders"),
        (_traces, "traces"),
    ):
        for model in results.models:
            try:
                rows = results.rows(experiment, model=model)
            except NotRunError:
                continue
            yield from make(results, results.plans[model], rows)


def variate_name(network: str) -> str:
    """The kind of coefficients that a network makes."""
    return "context-free" if network == "none" else "amortised"


def criterion_name(criterion: str) -> str:
    """A criterion in words."""
    return criterion.replace("_", " ")


def _illustration(results: Results) -> Iterator[Figure]:
    points = []
    for _, rows in results.tables.get("figure-1", pd.DataFrame({"point": []})).groupby("point"):
        first = rows.iloc[0]
        points.append(
            plots.Illustrated(
                name=f"x = {first['x']:.2f}, y = {first['y']:.0f}",
                mean=first["mean_gradient"],
                own=first["variance_dependent"] / first["variance"],
                common=first["variance_independent"] / first["variance"],
                **{
                    name: rows[name].to_numpy()
                    for name in ("epsilon", "gradient", "dependent", "independent")
                },
            )
        )
    if points:
        drawing = plots.illustration(points)
        yield Figure("figure-1", "illustration", {"points": points}, True, drawing)


def _static(results: Results, plan: Plan, rows: pd.DataFrame) -> Iterator[Figure]:
    rows = _with_remaining(rows)
    settings = ["basis", "criterion", "learning_rate"]
    for (basis, criterion, rate), group in rows.groupby(settings, sort=False):
        networks = list(group["network"].unique())

        def look(network: str, networks=networks) -> Look:
            free = network == "none"
            label = "none (context-free)" if free else f"[{network.replace('-', ', ')}]"
            return label, networks.index(network), free

        panels = _panels(
            group, "frozen_after", _frozen, REMAINING, "coefficient_steps", ["network"], look
        )
        yield Figure(
            f"static-{plan.model}-{basis}-{criterion}-{rate:g}",
            "static",
            {"model": plan.model, "basis": basis, "criterion": criterion, "rate": rate},
            (basis, criterion, rate) == (*_MAIN, plan.main_learning_rate),
            plots.step_lines(panels, levels=(1, 1), log=True),
        )
    late = results.late_static(plan.model)
    late = late[late["learning_rate"] == plan.main_learning_rate]
    if not late.empty:
        name, facts = f"parts-{plan.model}", {"model": plan.model}
        yield Figure(name, "parts", facts, True, plots.stacked_parts(_shares(late)))


def _shares(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean shares of the plain trace, one row per variate after a first one for none."""
    total = rows["plain_draws"] + rows["plain_points"]
    parts = ("plain_draws", "plain_points", "controlled_draws", "controlled_points")
    shares = rows.assign(norm=remaining(rows, "norm"), **{p: rows[p] / total for p in parts})
    means = shares.groupby(["network", "criterion"], sort=False)[[*parts, "norm"]].mean()
    bars = [("plain", *means.iloc[0][["plain_draws", "plain_points"]], 1.0)]
    bars += [
        (
            f"{variate_name(network)}, {criterion_name(criterion)}",
            *mean[["controlled_draws", "controlled_points", "norm"]],
        )
        for (network, criterion), mean in means.iterrows()
    ]
    return pd.DataFrame(bars, columns=["name", "draws", "points", "norm"])


def _dynamic(results: Results, plan: Plan, rows: pd.DataFrame) -> Iterator[Figure]:
    # The unbiased order first, then context-free before amortised, then by basis.
    rows = _with_remaining(context_free_first(rows)).sort_values("order", kind="stable")
    orders = rows["order"].unique()

    def look(order: str, network: str, basis: str) -> Look:
        papers = order == LEARN_FIRST
        label = f"{variate_name(network)}, {basis}" + (", paper’s order" if papers else "")
        return label, _colour(network), papers

    for (criterion, rate), group in rows.groupby(["criterion", "learning_rate"], sort=False):
        panels = _panels(
            group,
            "steps",
            "after {} steps".format,
            REMAINING,
            "steps",
            ["order", "network", "basis"],
            look,
        )
        yield Figure(
            f"dynamic-{plan.model}-{criterion}-{rate:g}",
            "dynamic",
            {
                "model": plan.model,
                "criterion": criterion,
                "rate": rate,
                "both_orders": LEARN_FIRST in orders,
            },
            (criterion, rate) == (_MAIN[1], plan.main_learning_rate),
            plots.ratio_dots(panels),
        )


def _orders(results: Results, plan: Plan, rows: pd.DataFrame) -> Iterator[Figure]:
    rows = _with_remaining(rows).assign(bias=rows["bias"] / rows["gradient"])
    measures = {"bias": "bias ÷ gradient", "draws": REMAINING["draws"]}

    def look(network: str, order: str) -> Look:
        label = f"{variate_name(network)}, {_ORDERS[order]}"
        return label, _colour(network), order == LEARN_FIRST

    for criterion, group in rows.groupby("criterion", sort=False):
        panels = _panels(
            group,
            "frozen_after",
            _frozen,
            measures,
            "coefficient_steps",
            ["network", "order"],
            look,
        )
        yield Figure(
            f"orders-{plan.model}-{criterion}",
            "orders",
            {"model": plan.model, "criterion": criterion},
            criterion == _MAIN[1],
            plots.step_lines(panels, levels=(0, 1), log=False),
        )


def _traces(results: Results, plan: Plan, rows: pd.DataFrame) -> Iterator[Figure]:
    plain = rows[rows["network"] == "plain"][["seed", "step", "nelbo"]]
    controlled = context_free_first(rows[rows["network"] != "plain"])
    controlled = controlled.merge(plain, on=["seed", "step"], suffixes=("", "_plain"))
    controlled["difference"] = controlled["nelbo"] - controlled["nelbo_plain"]

    def look(network: str, criterion: str) -> Look:
        label = f"{variate_name(network)}, {criterion_name(criterion)}"
        colour = _colour(network) + (criterion != "squared_difference")
        return label, colour, network == "none"

    measures = {"difference": "NELBO minus uncontrolled"}
    if not controlled.empty:
        (panels,) = _panels(
            controlled,
            "order",
            _ORDERS.__getitem__,
            measures,
            "step",
            ["network", "criterion"],
            look,
        )
        facts = {"model": plan.model, "seeds": plan.seeds}
        drawing = plots.difference_lines(panels)
        yield Figure(f"traces-{plan.model}", "traces", facts, True, drawing)


def _colour(network: str) -> int:
    return 4 if network == "none" else 1


_frozen = "frozen after {} steps".format


def _with_remaining(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(**{metric: remaining(rows, metric) for metric in REMAINING})


def _panels(
    rows: pd.DataFrame,
    by: str,
    title: Callable[[Any], str],
    measures: dict[str, str],
    x: str,
    lines: list[str],
    look: Callable[..., Look],
) -> list[list[plots.Panel]]:
    """A row of panels per measure, a panel per value of `by`, a line per value of `lines`."""
    return [
        [
            plots.Panel(
                title(value),
                label,
                [
                    _series(line, measure, x, *look(*key))
                    for key, line in panel.groupby(lines, sort=False)
                ],
            )
            for value, panel in rows.groupby(by, sort=False)
        ]
        for measure, label in measures.items()
    ]


def _series(
    rows: pd.DataFrame, measure: str, x: str, label: str, colour: int, dashed: bool
) -> plots.Series:
    """A line with its interval over seeds."""
    values = rows.pivot(index="seed", columns=x, values=measure)
    seeds, interval = values.to_numpy(), mean_interval(values.to_numpy())
    if measure == "bias":  # the table holds its square
        interval = root(interval)
    else:  # the interval of a few seeds may reach far beyond them
        low, high = seeds.min(axis=0), seeds.max(axis=0)
        interval = interval._replace(
            low=interval.low.clip(low), high=interval.high.clip(None, high)
        )
    return plots.Series(label, values.columns.to_numpy(float), *interval, colour, dashed)
