"""Figures of the paper: the results, arranged for the drawings."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from quell_paper.claims import SCALE_NAMES, procedure_name
from quell_paper.config import AMORTISED, APPLY_FIRST, FULL, LEARN_FIRST, LITERAL, OWN, Plan
from quell_paper.report import plots
from quell_paper.results import Results, grouped, late_static, of_variates, remaining, select
from quell_paper.verdicts import MODELS, mean_interval, root

Look = tuple[str, int, bool]  # the label of a line, its colour, whether it is dashed

_REMAINING = {"norm": "Var‖G̃‖ / Var‖Ĝ‖", "draws": "remaining variance, draws"}
_STAGES: Any = {
    "by": "frozen_after",
    "title": "frozen after {} steps".format,
    "x": "coefficient_steps",
}
_OWN: dict[str, Look] = {  # the lines of the figures with the library's own estimator
    "none": ("the paper’s, context-free", 4, True),
    AMORTISED: ("the paper’s network", 1, False),
    "pairs": ("pairs of draws alone", 5, True),
    "closed-form": ("quell.closed_form()", 3, False),
}
_ORDERS = {APPLY_FIRST: "apply, then learn", LEARN_FIRST: "the paper’s order"}


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
    for experiment, own in (("dynamic", _own_variance), ("traces", _own_traces)):
        table = results.tables.get(experiment)
        if table is not None and "closed-form" in set(table["network"]):
            yield own(results)
    if "figure-1" in results.tables:
        yield _illustration(results.tables["figure-1"])
    makers = {"static": _static, "dynamic": _dynamic, "orders": _orders, "traces": _traces}
    for experiment, make in makers.items():
        for plan, rows in results.by_model(experiment):
            yield from make(plan, rows)


def variate_name(network: str) -> str:
    """The kind of coefficients that a network makes, or the other estimator."""
    others = {"none": "context-free", "pairs": "pairs alone", "closed-form": "quell.closed_form()"}
    return others.get(network, "amortised")


def network_label(network: str) -> str:
    """A network by its layers."""
    return "none (context-free)" if network == "none" else f"[{network.replace('-', ', ')}]"


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
    kinds = ("basis", "criterion", "scale", "learning_rate")
    for (basis, criterion, scale, rate), group in grouped(rows, *kinds):
        networks = list(dict.fromkeys(group["network"]))

        def look(network: str, networks=networks) -> Look:
            return network_label(network), networks.index(network), network == "none"

        panels = _panels(
            _with_remaining(group), **_STAGES, measures=_REMAINING, lines=["network"], look=look
        )
        main = ("linear", "squared_difference", FULL, plan.main_learning_rate)
        facts = {"basis": basis, "criterion": criterion, "scale": SCALE_NAMES[scale], "rate": rate}
        yield Figure(
            "static",
            f"static-{plan.model}-{basis}-{criterion}-{_file_name(scale)}-{rate:g}",
            {"model": plan.model} | facts,
            (basis, criterion, scale, rate) == main,
            plots.step_lines(panels, levels=(1, 1), log=True),
        )
    late = select(late_static(plan, rows), learning_rate=plan.main_learning_rate, scale=FULL)
    if not late.empty:
        yield Figure("parts", f"parts-{plan.model}", {"model": plan.model}, True, _parts(late))


def _parts(rows: pd.DataFrame) -> Any:
    total = rows["plain_draws"] + rows["plain_points"]
    shares = rows.filter(regex="_(draws|points)$").div(total, axis=0)
    shares = shares.assign(norm=remaining(rows, "norm").to_numpy())
    bars = []
    for (network, criterion), group in grouped(rows, "network", "criterion"):
        mean = shares.loc[group.index].mean()
        if not bars:
            bars.append(("plain", mean["plain_draws"], mean["plain_points"], 1.0))
        name = f"{variate_name(network)}, {criterion_name(criterion)}"
        bars.append((name, mean["controlled_draws"], mean["controlled_points"], mean["norm"]))
    return plots.stacked_parts(*zip(*bars))


def _dynamic(plan: Plan, rows: pd.DataFrame) -> Iterator[Figure]:
    def look(scale: str, order: str, network: str, basis: str) -> Look:
        label = f"{variate_name(network)}, {basis}; {procedure_name((scale, order))}"
        return label, _colour(network), (scale, order) != LITERAL

    rows = of_variates(rows).sort_values("network", ascending=False, kind="stable")
    for (criterion, rate), group in grouped(rows, "criterion", "learning_rate"):
        panels = _panels(
            _with_remaining(group),
            by="steps",
            title="after {} steps".format,
            measures=_REMAINING,
            x="steps",
            lines=["scale", "order", "network", "basis"],
            look=look,
        )
        yield Figure(
            "dynamic",
            f"dynamic-{plan.model}-{criterion}-{rate:g}",
            {"model": plan.model, "criterion": criterion, "rate": rate},
            (criterion, rate) == ("squared_difference", plan.main_learning_rate),
            plots.ratio_dots(panels),
        )


def _own_variance(results: Results) -> Figure:
    """The paper's figure of variance in joint training, with the library's own estimator."""
    measures = {"draws": "remaining, draws", "whole": "remaining, whole gradient"}
    columns = []
    for plan, rows in results.by_model("dynamic"):
        rows = own_rows(plan, rows)
        rows = rows.assign(whole=remaining(rows, "draws", "points").to_numpy())
        rows = _with_remaining(rows).assign(model=plan.model)
        panels = _panels(
            rows,
            by="model",
            title=MODELS.__getitem__,
            measures=measures,
            x="steps",
            lines=["network"],
            look=_OWN.__getitem__,
        )
        columns.append(panels)
    panels = [[panel for line in row for panel in line] for row in zip(*columns)]
    drawing = plots.step_lines(panels, levels=(1, 1), log=True, xlabel="steps of training")
    return Figure("own_variance", "own-variance", {}, True, drawing)


def _own_traces(results: Results) -> Figure:
    """The paper's figure of traces, with the library's own estimator."""
    panels = []
    for plan, rows in results.by_model("traces"):
        (line,) = _panels(
            _minus_plain(own_rows(plan, rows), rows).assign(model=plan.model),
            by="model",
            title=MODELS.__getitem__,
            measures={"difference": "NELBO minus uncontrolled"},
            x="step",
            lines=["network"],
            look=_OWN.__getitem__,
        )
        panels += line
    drawing = plots.difference_lines(panels, shared=False)
    return Figure("own_traces", "own-traces", {}, True, drawing)


def own_rows(plan: Plan, rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of the literal variates by squared difference, of pairs and of the closed form."""
    main = {"scale": LITERAL[0], "order": LITERAL[1], "learning_rate": plan.main_learning_rate}
    papers = select(rows, criterion="squared_difference", basis="linear", **main)
    parts = [select(papers, network=name) for name in ("none", AMORTISED)]
    return pd.concat([*parts, *(select(rows, network=name) for name in ("pairs", "closed-form"))])


def _orders(plan: Plan, rows: pd.DataFrame) -> Iterator[Figure]:
    def look(network: str, order: str) -> Look:
        label = f"{variate_name(network)}, {_ORDERS[order]}"
        return label, _colour(network), order == LEARN_FIRST

    rows = _with_remaining(rows).assign(bias=rows["bias"] / rows["gradient"])
    measures = {"bias": "bias ÷ gradient", "draws": _REMAINING["draws"]}
    for (scale,), group in grouped(rows, "scale"):
        panels = _panels(group, **_STAGES, measures=measures, lines=["network", "order"], look=look)
        yield Figure(
            "orders",
            f"orders-{plan.model}-{_file_name(scale)}",
            {"model": plan.model, "scale": SCALE_NAMES[scale]},
            scale == FULL,
            plots.step_lines(panels, levels=(0, 1), log=False),
        )


def _traces(plan: Plan, rows: pd.DataFrame) -> Iterator[Figure]:
    def look(network: str, criterion: str) -> Look:
        label = f"{variate_name(network)}, {criterion_name(criterion)}"
        colour = _colour(network) + (criterion != "squared_difference")
        return label, colour, network == "none"

    papers = of_variates(rows).sort_values("network", ascending=False, kind="stable")
    difference = _minus_plain(papers, rows)
    procedures = list(zip(difference["scale"], difference["order"]))
    difference = difference.assign(procedure=[procedure_name(p) for p in procedures])
    is_main = pd.Series([p in (LITERAL, OWN) for p in procedures], index=difference.index)
    for main, group in ((True, difference[is_main]), (False, difference[~is_main])):
        if group.empty:
            continue
        (panels,) = _panels(
            group,
            by="procedure",
            title=str,
            measures={"difference": "NELBO minus uncontrolled"},
            x="step",
            lines=["network", "criterion"],
            look=look,
        )
        name = f"traces-{plan.model}" + ("" if main else "-others")
        facts = {"model": plan.model, "draws": plan.traces.nelbo_draws}
        yield Figure("traces", name, facts, main, plots.difference_lines(panels))


def _minus_plain(rows: pd.DataFrame, all_rows: pd.DataFrame) -> Any:
    """The rows with the difference to the uncontrolled run of the same seed."""
    plain = select(all_rows, network="plain")[["seed", "step", "nelbo"]]
    merged = rows.merge(plain, on=["seed", "step"], suffixes=("", "_plain"))
    return merged.assign(difference=merged["nelbo"] - merged["nelbo_plain"])


def late_difference(plan: Plan, rows: pd.DataFrame) -> dict[str, Any]:
    """The bound minus that of the uncontrolled run in the last quarter, by network and seed."""
    difference = _minus_plain(own_rows(plan, rows), rows)
    late = difference[difference["step"] >= 0.75 * plan.traces.num_steps]
    return {
        network: group.groupby("seed")["difference"].mean()
        for (network,), group in grouped(late, "network")
    }


def _file_name(scale: str) -> str:
    return {"N/|B| Σ g_b": "full", "Σ g_b": "sum"}.get(SCALE_NAMES[scale], "unit")


def _colour(network: str) -> int:
    return 4 if network == "none" else 1


def _with_remaining(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(**{metric: remaining(rows, metric).to_numpy() for metric in _REMAINING})


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
