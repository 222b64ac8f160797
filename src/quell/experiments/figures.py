"""Records arranged for the figures of the paper."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from quell.experiments.config import CONTEXT_FREE
from quell.experiments.methods import network_name
from quell.experiments.results import AMORTISED, PAPERS, UNBIASED, NotRunError, Results
from quell.experiments.verdicts import mean_interval, root
from quell.plotting import reproduction as plot

NAMES = {"logistic": "logistic regression on titanic", "deep-gp": "deep GP on airfoil"}
METRICS = {"norm": "Var‖G̃‖ / Var‖Ĝ‖", "draws": "left of the draws’ trace"}
SHORT = {
    "squared_difference": "squared difference",
    "gradient_sum": "gradient sum",
    "partial_gradients": "partial gradients",
}


def all_figures(results: Results) -> Iterator[tuple[str, str, bool, Any]]:
    """Name, caption, whether it is one of the paper's main figures, and figure, one by one."""
    for make in (_figure_one, _static, _dynamic, _orders, _traces):
        yield from make(results)


def _figure_one(results: Results):
    try:
        table = results.find("figure-1").table
    except NotRunError:
        return
    points = []
    for name in ("a", "b"):
        chosen = np.asarray(table["point"]) == name
        pick = lambda column: np.asarray(table[column])[chosen]  # noqa: B023, E731
        left = [
            float(pick(f"variance_{kind}")[0] / pick("variance")[0])
            for kind in ("dependent", "independent")
        ]
        points.append(
            plot.Illustrated(
                name=f"x = {pick('x')[0]:.2f}, y = {pick('y')[0]:.0f}",
                epsilon=pick("epsilon"),
                gradient=pick("gradient"),
                dependent=pick("dependent"),
                independent=pick("independent"),
                mean=float(pick("mean_gradient")[0]),
                left=(left[0], left[1]),
            )
        )
    shares = "; ".join(
        f"{p.name}: own variate leaves {p.left[0]:.2f} of the variance, common one {p.left[1]:.2f}"
        for p in points
    )
    caption = f"Figure 1. Two points need two variates. {shares}."
    yield "figure-1", caption, True, plot.illustration(points)


def _static(results: Results):
    for model in results.models:
        plan = results.plans[model]
        for basis in plan.static.bases:
            for criterion in plan.static.criteria:
                for rate in plan.static.rates_for(criterion):
                    panels = _static_panels(results, model, basis, criterion, rate)
                    if not panels:
                        continue
                    main = (basis, criterion, rate) == (
                        "linear",
                        "squared_difference",
                        plan.main_learning_rate,
                    )
                    caption = (
                        f"Static: {NAMES[model]}, {basis} variate, {SHORT[criterion]}, coefficient "
                        f"learning rate {rate:g}; one line per network. What is left of the "
                        "variance, by the paper’s measure (above) and by the draws’ part of the "
                        "trace (below); lower is better, 1 is no reduction. Bands are 95 % "
                        "intervals over seeds."
                    )
                    name = f"static-{model}-{basis}-{criterion}-{rate:g}"
                    yield name, caption, main, plot.ratio_lines(panels)
        parts = _parts(results, model)
        if parts is not None:
            caption = (
                f"Static, late: {NAMES[model]}. What is left of the total variance, split into "
                "draws and points (these variates can only reduce the draws), and what is left by "
                "the paper’s measure."
            )
            yield f"parts-{model}", caption, True, parts


def _static_panels(results: Results, model: str, basis: str, criterion: str, rate: float):
    static = results.plans[model].static
    networks = static.networks_for(basis, criterion)
    x = np.asarray(static.measured_after, float)
    rows = []
    try:
        for metric, ylabel in METRICS.items():
            row = []
            for stage in static.frozen_after:
                lines = []
                for colour, hidden in enumerate(networks):
                    values = [
                        results.static(
                            model,
                            metric,
                            network=network_name(hidden),
                            criterion=criterion,
                            basis=basis,
                            rate=rate,
                            frozen_after=stage,
                            coefficient_steps=steps,
                        )
                        for steps in static.measured_after
                    ]
                    label = "none (context-free)" if hidden == CONTEXT_FREE else str(list(hidden))
                    lines.append(_series(label, x, values, colour, hidden == CONTEXT_FREE))
                row.append(plot.Panel(f"frozen after {stage} steps", ylabel, lines))
            rows.append(row)
    except NotRunError:
        return []
    return rows


def _series(label, x, values, colour, dashed=False) -> plot.Series:
    """Values `[T][seeds]` with their interval, cut where a few seeds would give nonsense."""
    intervals = [mean_interval(np.asarray(v)) for v in values]
    spread = [(np.min(v), np.max(v)) for v in values]
    low = [max(i.low, s[0]) for i, s in zip(intervals, spread)]
    high = [min(i.high, s[1]) for i, s in zip(intervals, spread)]
    mean = np.array([i.effect for i in intervals])
    return plot.Series(label, x, mean, np.array(low), np.array(high), colour, dashed)


def _parts(results: Results, model: str):
    static, rate = results.plans[model].static, results.plans[model].main_learning_rate
    names, draws, points, norm = ["plain"], [], [], [1.0]
    for network in ("none", AMORTISED):
        for criterion in static.criteria:
            try:
                record = results.find(
                    "static",
                    model=model,
                    network=network,
                    criterion=criterion,
                    basis="linear",
                    learning_rate=rate,
                )
            except NotRunError:
                continue
            table = {name: np.asarray(column) for name, column in record.table.items()}
            rows = (table["frozen_after"] == static.frozen_after[-1]) & (
                table["coefficient_steps"] == static.measured_after[-1]
            )
            total = (table["plain_draws"] + table["plain_points"])[rows]
            if not draws:
                draws.append((table["plain_draws"][rows] / total).mean())
                points.append((table["plain_points"][rows] / total).mean())
            kind = "context-free" if network == "none" else "amortised"
            names.append(f"{kind}, {SHORT[criterion]}")
            draws.append((table["controlled_draws"][rows] / total).mean())
            points.append((table["controlled_points"][rows] / total).mean())
            norm.append((table["controlled_norm"] / table["plain_norm"])[rows].mean())
    if not draws:
        return None
    return plot.stacked_parts(names, draws, points, norm, NAMES[model])


def _dynamic(results: Results):
    for model in results.models:
        plan = results.plans[model]
        for criterion in plan.dynamic.criteria:
            for rate in plan.dynamic.learning_rates:
                panels = _dynamic_panels(results, model, criterion, rate)
                if not panels:
                    continue
                main = (criterion, rate) == ("squared_difference", plan.main_learning_rate)
                both = (
                    "; hollow marks are the paper’s order" if PAPERS in plan.dynamic.orders else ""
                )
                caption = (
                    f"Dynamic: {NAMES[model]}, {SHORT[criterion]}, coefficient learning rate "
                    f"{rate:g}. What is left of the variance at three points of joint training, "
                    "by the paper’s measure (above) and by the draws’ part of the trace (below); "
                    f"network [128, 128, 128]. The vertical line is no reduction{both}."
                )
                name = f"dynamic-{model}-{criterion}-{rate:g}"
                yield name, caption, main, plot.ratio_dots(panels)


def _dynamic_panels(results: Results, model: str, criterion: str, rate: float):
    dynamic = results.plans[model].dynamic
    rows = []
    try:
        for metric, xlabel in METRICS.items():
            row = []
            for steps in dynamic.measured_after:
                dots = []
                for order in dynamic.orders:
                    for hidden in dynamic.networks:
                        for basis in dynamic.bases:
                            values = results.dynamic(
                                model,
                                metric,
                                network=network_name(hidden),
                                criterion=criterion,
                                basis=basis,
                                rate=rate,
                                order=order,
                                steps=steps,
                            )
                            kind = "context-free" if hidden == CONTEXT_FREE else "amortised"
                            papers = order == PAPERS
                            label = f"{kind}, {basis}" + (", paper's order" if papers else "")
                            colour = 1 if hidden else 4
                            dots.append(_series(label, np.ones(1), [values], colour, papers))
                row.append(plot.Panel(f"after {steps} steps", xlabel, dots))
            rows.append(row)
    except NotRunError:
        return []
    return rows


def _orders(results: Results):
    for model in results.models:
        for criterion in results.plans[model].orders.criteria:
            panels = _order_panels(results, model, criterion)
            if not panels:
                continue
            caption = (
                f"The two orders: {NAMES[model]}, linear variate, {SHORT[criterion]}. Above, the "
                "norm of the bias as a share of the gradient’s (below zero: less than chance "
                "gives); below, the share of the draws’ variance that each order shows. Bands are "
                "95 % intervals over seeds."
            )
            main = criterion == "squared_difference"
            yield f"orders-{model}-{criterion}", caption, main, plot.order_lines(panels)


def _order_panels(results: Results, model: str, criterion: str):
    plan = results.plans[model]
    x = np.asarray(plan.orders.learned_for, float)
    rows = []
    try:
        for quantity, ylabel in (("bias", "bias ÷ gradient"), ("draws", METRICS["draws"])):
            row = []
            for stage in plan.static.frozen_after:
                lines = []
                for hidden in plan.orders.networks:
                    for order in (UNBIASED, PAPERS):
                        found = [
                            results.order(
                                model,
                                order,
                                network=network_name(hidden),
                                criterion=criterion,
                                frozen_after=stage,
                                coefficient_steps=steps,
                            )
                            for steps in plan.orders.learned_for
                        ]
                        kind = "context-free" if hidden == CONTEXT_FREE else "amortised"
                        papers = order == PAPERS
                        label = f"{kind}, {'paper’s order' if papers else 'apply, then learn'}"
                        values = [getattr(one, quantity) for one in found]
                        series = _series(label, x, values, 1 if hidden else 4, papers)
                        if quantity == "bias":
                            series = _rooted(series, values)
                        lines.append(series)
                row.append(plot.Panel(f"frozen after {stage} steps", ylabel, lines))
            rows.append(row)
    except NotRunError:
        return []
    return rows


def _rooted(series: plot.Series, values) -> plot.Series:
    """The series of a size whose squares the values are."""
    intervals = [root(mean_interval(v)) for v in values]
    mean, low, high = np.array(intervals).T
    return series._replace(mean=mean, low=low, high=high)


def _traces(results: Results):
    for model in results.models:
        plan = results.plans[model]
        panels = []
        for order, title in ((UNBIASED, "apply, then learn"), (PAPERS, "the paper's order")):
            try:
                panels.append(_trace_panel(results, model, order, title))
            except NotRunError:
                continue
        if panels:
            caption = (
                f"Traces: {NAMES[model]}. NELBO on the whole data minus that of the uncontrolled "
                f"run of the same seed, mean of {plan.seeds} seeds with its 95 % interval; lower "
                "is better. Linear variate."
            )
            yield f"traces-{model}", caption, True, plot.difference_lines(panels)


def _trace_panel(results: Results, model: str, order: str, title: str) -> plot.Panel:
    traces = results.plans[model].traces
    plain = results.trace(model, "plain")
    x = np.arange(plain.shape[1]) * traces.nelbo_every
    lines = []
    for hidden in traces.networks:
        for criterion in traces.criteria:
            difference = results.trace(model, network_name(hidden), criterion, order) - plain
            kind = "context-free" if hidden == CONTEXT_FREE else "amortised"
            colour = (1 if hidden else 4) + (0 if criterion == "squared_difference" else 1)
            lines.append(
                _series(f"{kind}, {SHORT[criterion]}", x, difference.T, colour, not hidden)
            )
    return plot.Panel(title, "NELBO minus uncontrolled", lines)
