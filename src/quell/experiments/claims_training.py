"""The claims about whole runs: where their bound ends, and how long a step takes."""

import numpy as np

from quell.experiments.claim_parts import collect
from quell.experiments.results import AMORTISED, PAPERS, UNBIASED, Results
from quell.experiments.verdicts import (
    Claim,
    Part,
    mean_interval,
    median_interval,
    positive,
    within,
)

OVERHEAD = (0.15, 0.35)  # what counts as "about 25 %"


def _gain(r: Results, model: str, baseline: str, order: str, rows: slice) -> np.ndarray:
    """Baseline's bound minus the amortised one, mean over iterations and criteria, per seed."""
    gains = []
    for criterion in r.plans[model].traces.criteria:
        ours = r.trace(model, AMORTISED, criterion, order)
        theirs = (
            r.trace(model, "plain")
            if baseline == "plain"
            else r.trace(model, baseline, criterion, order)
        )
        gains.append((theirs - ours)[:, rows].mean(1))
    return np.mean(gains, axis=0)


def _fraction(r: Results, model: str, begin: float, end: float) -> slice:
    T = r.trace(model, "plain").shape[1]
    return slice(int(begin * T), max(int(begin * T) + 1, int(end * T)))


def _gain_part(r, name, model, baseline, order, begin, end, sign=1) -> Part:
    rows = _fraction(r, model, begin, end)
    interval = mean_interval(sign * _gain(r, model, baseline, order, rows))
    return Part(name, model, interval, positive(interval))


def lower_bound(r: Results) -> Claim:
    def against(name, baseline, order):
        return lambda model: _gain_part(r, name, model, baseline, order, 0.5, 1.0)

    return Claim(
        6,
        "Amortised control ends at a lower NELBO on average than no control and than context-free.",
        "NELBO of the other minus NELBO of the amortised run, mean over the second half, in nats",
        collect(
            r, against("uncontrolled", "plain", UNBIASED), against("context-free", "none", UNBIASED)
        ),
        collect(
            r,
            against("uncontrolled, paper's order", "plain", PAPERS),
            against("context-free, paper's order", "none", PAPERS),
        ),
        why="The sub-sampling noise stays, and with it most of what Adam's last iterates owe to "
        "noise; the gain is small against the spread of the seeds.",
    )


def worse_then_better(r: Results) -> Claim:
    def start(name, order):
        return lambda model: _gain_part(r, name, model, "plain", order, 0.0, 0.05, sign=-1)

    def end(name, order):
        return lambda model: _gain_part(r, name, model, "plain", order, 0.75, 1.0)

    return Claim(
        7,
        "Controlled runs start worse than uncontrolled ones, then win.",
        "amortised less uncontrolled NELBO in the first twentieth, reversed in the last quarter",
        collect(r, start("starts worse", UNBIASED), end("then wins", UNBIASED)),
        collect(
            r,
            start("starts worse, paper's order", PAPERS),
            end("then wins, paper's order", PAPERS),
        ),
        why="See claim 6: what is gained late is small against the spread of the seeds.",
    )


def overhead(r: Results) -> Claim:
    def part(name, way):
        def make(model):
            criteria = r.plans[model].table_one.criteria
            ratio = [
                r.milliseconds(model, "amortised", c, way)
                / r.milliseconds(model, "context-free", c, way)
                for c in criteria
            ]
            interval = median_interval(np.mean(ratio, axis=0) - 1)
            return Part(name, model, interval, within(*OVERHEAD)(interval))

        return make

    return Claim(
        9,
        "The amortised step takes about 25 % longer than the context-free one.",
        "extra time as a share of the context-free step (0.25 is 25 %), median over repetitions; "
        f"about 25 % is {100 * OVERHEAD[0]:.0f} to {100 * OVERHEAD[1]:.0f} %",
        collect(r, part("step by step", "dispatched")),
        collect(r, part("in a compiled loop", "loop")),
        why="In the paper's stack the time of a step goes to starting operations, which hides the "
        "network's arithmetic; compiled, the arithmetic is what is left.",
    )
