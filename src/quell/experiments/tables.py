"""The tables of the page, as cells: what is left, both orders side by side, the time of a step."""

from functools import partial
from typing import NamedTuple

import numpy as np

from quell.experiments.config import CONTEXT_FREE, DEEPEST
from quell.experiments.methods import network_name
from quell.experiments.results import PAPERS, UNBIASED, NotRunError, Results
from quell.experiments.verdicts import MODELS, Interval, mean_interval, root

VARIANTS = (
    ("plain", "none", "Plain, one draw"),
    ("amortised", "squared_difference", "Squared diff., amortised"),
    ("amortised", "gradient_sum", "Grad. sum, amortised"),
    ("context-free", "squared_difference", "Squared diff., context-free"),
    ("context-free", "gradient_sum", "Grad. sum, context-free"),
)


LEFT_HEAD = ("model", "variate", "criterion", "rate", "left of the draws", "median", "of the norm")
LEFT_NOTE = (
    "The linear variate with the model frozen late, after all coefficient steps: what is left of "
    "the draws’ part of the trace, mean over seeds with its 95 % interval, and median; and of the "
    "norm’s variance, the paper’s measure. Where mean and median differ, a few seeds stand apart."
)


def left_rows(results: Results) -> list[list[str]]:
    """What is left in the static experiment: one row per variate, criterion and learning rate."""
    rows = []
    for model in results.models:
        static = results.plans[model].static
        for hidden in (CONTEXT_FREE, DEEPEST):
            for criterion in static.criteria:
                for rate in static.rates_for(criterion):
                    left = partial(
                        results.static,
                        model,
                        network=network_name(hidden),
                        criterion=criterion,
                        rate=rate,
                    )
                    try:
                        draws, norm = left("draws"), left("norm")
                    except NotRunError:
                        continue
                    variate = "amortised" if hidden else "context-free"
                    name = criterion.replace("_", " ")
                    cells = [shown(mean_interval(draws)), f"{np.median(draws):.2f}"]
                    cells += [shown(mean_interval(norm))]
                    rows.append([MODELS[model], variate, name, f"{rate:g}", *cells])
    return rows


class Side(NamedTuple):
    """One order's half of a row.

    Attributes:
      bias: norm of the bias over the gradient's, with its interval over seeds.
      z: root mean square z score of the bias; about 1 where there is none.
      left: what is left of the draws' part of the trace, mean over seeds.
    """

    bias: Interval
    z: float
    left: float

    @property
    def cells(self) -> list[str]:
        """As text."""
        return [shown(self.bias), f"{self.z:.1f}", f"{self.left:.2f}"]


class OrderRow(NamedTuple):
    """Both orders at the same state of the coefficients."""

    model: str
    variate: str
    coefficient_steps: int
    papers: Side
    unbiased: Side


def order_rows(results: Results) -> list[OrderRow]:
    """Squared difference, the model frozen late: one row per variate and coefficient steps."""
    rows = []
    for model in results.models:
        orders = results.plans[model].orders
        for hidden in orders.networks:
            for steps in orders.learned_for:
                try:
                    sides = [
                        _side(results, model, order, network_name(hidden), steps)
                        for order in (PAPERS, UNBIASED)
                    ]
                except NotRunError:
                    continue
                variate = "amortised" if hidden else "context-free"
                rows.append(OrderRow(model, variate, steps, *sides))
    return rows


def _side(results: Results, model: str, order: str, network: str, steps: int) -> Side:
    found = results.order(model, order, network=network, coefficient_steps=steps)
    z, left = np.sqrt(found.z.mean()), found.draws.mean()
    return Side(root(mean_interval(found.bias)), float(z), float(left))


def order_sentence(rows: list[OrderRow]) -> str:
    """What the rows say, in words."""
    worst = max(rows, key=lambda row: row.papers.bias.effect)
    z = [np.sqrt(np.mean([getattr(row, side).z ** 2 for row in rows])) for side in _SIDES]
    less = np.mean([row.unbiased.left - row.papers.left for row in rows])
    return (
        "The paper learns from a batch and then corrects it with what was learned; the correction "
        "is then no longer of mean zero. Measured at frozen models on fresh batches, its bias is "
        f"up to {worst.papers.bias.effect:.0%} of the gradient's norm "
        f"({MODELS[worst.model]}, {worst.variate}, after {worst.coefficient_steps} coefficient "
        f"steps), and it makes the variance look smaller by {less:.2f} on average. A z score near "
        f"1 is chance: it is {z[0]:.1f} over all rows in the paper's order, and {z[1]:.1f} when "
        "coefficients are applied before they learn, as everywhere else on this page unless it "
        "says otherwise."
    )


_SIDES = ("papers", "unbiased")


def timing_rows(results: Results, model: str) -> list[tuple[str, list[str]]]:
    """Name and cells of table 1: time of a step, standard deviation, and multiple of plain."""
    rows = []
    for variant, criterion, name in VARIANTS:
        cells = []
        try:
            for way in ("dispatched", "loop"):
                ours = results.milliseconds(model, variant, criterion, way)
                plain = results.milliseconds(model, "plain", "none", way)
                cells.append(f"{ours.mean():.3f} ({ours.std(ddof=1):.3f})")
                cells.append(f"{np.median(ours) / np.median(plain):.1f}×")
        except NotRunError:
            continue
        rows.append((name, cells))
    return rows


def shown(interval: Interval) -> str:
    """Three numbers with as many digits as they deserve.

    >>> shown(Interval(0.5, 0.25, 0.75))
    '0.50 [0.25, 0.75]'
    """
    size = max(abs(value) for value in interval if np.isfinite(value))
    digits = 2 if size >= 0.1 else 3
    if size >= 100:
        digits = 0
    show = [f"{value:.{digits}f}" if np.isfinite(value) else "?" for value in interval]
    return f"{show[0]} [{show[1]}, {show[2]}]".replace("-", "−")
