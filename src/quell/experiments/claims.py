"""The paper's claims, each judged by the records: an effect, its interval over seeds, a verdict.

Effects are signed so that a positive one speaks for the claim, unless a claim says otherwise.
"Left" is the controlled variance over the plain one. Claims are judged by the part of the
covariance's trace that is due to draws, which is what these variates can reduce; the paper's own
measure, the variance of the norm, stands beside it.
"""

from collections.abc import Callable

import numpy as np

from quell.experiments.results import AMORTISED, PAPERS, UNBIASED, NotRunError, Results
from quell.experiments.verdicts import (
    Claim,
    Interval,
    Part,
    difference_interval,
    mean_interval,
    median_interval,
    positive,
    within,
)

METRIC, PAPER_METRIC = "draws", "norm"
ALIKE = 0.1  # criteria behave alike when what they leave differs by less than this
LITTLE = 0.9  # few steps are a struggle when more than this is left after ten of them
OVERHEAD = (0.15, 0.35)  # what counts as "about 25 %"


def judge(results: Results) -> list[Claim]:
    """All eleven claims; those whose records are missing come without parts."""
    return [make(results) for make in _CLAIMS]


def _variance_part(
    name: str,
    model: str,
    effect: Callable[[str], np.ndarray],
    decide: Callable[[Interval], bool | None] = positive,
) -> Part:
    """A part whose effect is a function of the metric."""
    interval = mean_interval(effect(METRIC))
    return Part(name, model, interval, decide(interval), mean_interval(effect(PAPER_METRIC)))


def _collect(results: Results, *makers: Callable[[str], Part]) -> list[Part]:
    """A part for every model and maker whose records are there."""
    parts = []
    for model in results.models:
        for make in makers:
            try:
                parts.append(make(model))
            except NotRunError:
                continue
    return parts


def _amortised_beats_context_free(r: Results) -> Claim:
    def static(model):
        return _variance_part(
            "static",
            model,
            lambda metric: r.static(model, metric, network="none") - r.static(model, metric),
        )

    def dynamic(model):
        return _variance_part(
            "dynamic",
            model,
            lambda metric: r.dynamic(model, metric, network="none") - r.dynamic(model, metric),
        )

    return Claim(
        1,
        "Amortised coefficients reduce variance more than context-free ones.",
        "left by context-free minus left by amortised",
        _collect(r, static, dynamic),
        why="In the deep GP the last layer has 1.35 million weights to learn from a thousand noisy "
        "sums.",
    )


def _stronger_later(r: Results) -> Claim:
    def static(model):
        early = r.plans[model].static.frozen_after[0]
        return _variance_part(
            "static",
            model,
            lambda metric: r.static(model, metric, frozen_after=early) - r.static(model, metric),
        )

    def dynamic(model):
        early = r.plans[model].dynamic.measured_after[0]
        return _variance_part(
            "dynamic",
            model,
            lambda metric: r.dynamic(model, metric, steps=early) - r.dynamic(model, metric),
        )

    return Claim(
        2,
        "Variance reduction is stronger later in the optimisation.",
        "left early minus left late, by the amortised variate",
        _collect(r, static, dynamic),
    )


def _larger_networks(r: Results) -> Claim:
    steps = (
        ("wider: [16] to [128]", "16", "128"),
        ("deeper: [16] to [16, 16, 16]", "16", "16-16-16"),
        ("deeper: [128] to [128, 128, 128]", "128", AMORTISED),
        ("depth over width: [128] to [16, 16, 16]", "128", "16-16-16"),
    )

    def compare(name, worse, better, other_rate=False):
        def make(model):
            plan = r.plans[model]
            others = [x for x in plan.static.learning_rates if x != plan.main_learning_rate]
            if other_rate and not others:
                raise NotRunError(name)
            rate = others[0] if other_rate else plan.main_learning_rate
            return _variance_part(
                f"{name}, rate {rate:g}",
                model,
                lambda metric: (
                    r.static(model, metric, network=worse, rate=rate)
                    - r.static(model, metric, network=better, rate=rate)
                ),
            )

        return make

    return Claim(
        3,
        "Wider and deeper networks do better, and depth helps more than width.",
        "left by the smaller network minus left by the larger",
        _collect(r, *(compare(*step) for step in steps)),
        _collect(r, *(compare(*step, other_rate=True) for step in steps)),
        why="It depends on the learning rate (the other one stands in brackets): at 1e-2 Adam's "
        "own noise sets the floor, and deep networks pass more of it on; at 1e-3 learning speed "
        "decides, and larger networks learn faster.",
    )


def _few_steps(r: Results) -> Claim:
    def part(model):
        return _variance_part(
            "10 coefficient steps",
            model,
            lambda metric: r.static(model, metric, coefficient_steps=10) - LITTLE,
        )

    return Claim(
        4,
        "After few coefficient steps the network struggles.",
        f"left after 10 coefficient steps, above {LITTLE}",
        _collect(r, part),
    )


def _keeps_up(r: Results) -> Claim:
    def part(model):
        return _variance_part("joint training", model, lambda metric: 1 - r.dynamic(model, metric))

    return Claim(
        5,
        "Trained jointly, the network keeps up with the moving target.",
        "variance removed at the end of joint training",
        _collect(r, part),
    )


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


def _lower_bound(r: Results) -> Claim:
    def against(name, baseline, order):
        return lambda model: _gain_part(r, name, model, baseline, order, 0.5, 1.0)

    return Claim(
        6,
        "Amortised control ends at a lower NELBO on average than no control and than context-free.",
        "NELBO of the other minus NELBO of the amortised run, mean over the second half, in nats",
        _collect(
            r, against("uncontrolled", "plain", UNBIASED), against("context-free", "none", UNBIASED)
        ),
        _collect(
            r,
            against("uncontrolled, paper's order", "plain", PAPERS),
            against("context-free, paper's order", "none", PAPERS),
        ),
        why="The sub-sampling noise stays, and with it most of what Adam's last iterates owe to "
        "noise; the gain is small against the spread of the seeds.",
    )


def _worse_then_better(r: Results) -> Claim:
    def start(name, order):
        return lambda model: _gain_part(r, name, model, "plain", order, 0.0, 0.05, sign=-1)

    def end(name, order):
        return lambda model: _gain_part(r, name, model, "plain", order, 0.75, 1.0)

    return Claim(
        7,
        "Controlled runs start worse than uncontrolled ones, then win.",
        "amortised less uncontrolled NELBO in the first twentieth, reversed in the last quarter",
        _collect(r, start("starts worse", UNBIASED), end("then wins", UNBIASED)),
        _collect(
            r,
            start("starts worse, paper's order", PAPERS),
            end("then wins, paper's order", PAPERS),
        ),
        why="See claim 6: what is gained late is small against the spread of the seeds.",
    )


def _criteria_alike(r: Results) -> Claim:
    def compare(name, get: Callable[..., np.ndarray]):
        return lambda model: _variance_part(
            name,
            model,
            lambda metric: (
                get(model, metric, criterion="gradient_sum")
                - get(model, metric, criterion="squared_difference")
            ),
            within(-ALIKE, ALIKE),
        )

    return Claim(
        8,
        "Gradient sum and squared difference behave alike.",
        f"left by gradient sum minus left by squared difference; alike within ±{ALIKE}",
        _collect(r, compare("static", r.static), compare("dynamic", r.dynamic)),
        why="Both estimate the same variance, but gradient sum is noisier: it keeps cross terms "
        "between a point's variate and the other points' gradients.",
    )


def _overhead(r: Results) -> Claim:
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
        "relative overhead, median over repetitions; about 25 % is "
        f"{OVERHEAD[0]:.0%} to {OVERHEAD[1]:.0%}",
        _collect(r, part("step by step", "dispatched")),
        _collect(r, part("in a compiled loop", "loop")),
        why="In the paper's stack the time of a step goes to starting operations, which hides the "
        "network's arithmetic; compiled, the arithmetic is what is left.",
    )


def _partial_gradients_faster(r: Results) -> Claim:
    def against(criterion):
        def make(model):
            def effect(metric):
                theirs, ours = (
                    r.static(model, metric, criterion=name, coefficient_steps=100)
                    for name in (criterion, "partial_gradients")
                )
                return theirs - ours

            return _variance_part(criterion.replace("_", " "), model, effect)

        return make

    return Claim(
        10,
        "Partial gradients learns faster than the other two criteria.",
        "left by the other minus left by partial gradients, after 100 coefficient steps",
        _collect(r, against("squared_difference"), against("gradient_sum")),
        why="By 100 steps the criteria differ by less than the seeds do.",
    )


def _logistic_over_deep(r: Results) -> Claim:
    parts = []
    try:
        by_metric = {
            metric: difference_interval(r.static("deep-gp", metric), r.static("logistic", metric))
            for metric in (METRIC, PAPER_METRIC)
        }
        interval = by_metric[METRIC]
        parts = [Part("static", "both", interval, positive(interval), by_metric[PAPER_METRIC])]
    except (NotRunError, KeyError):
        pass
    return Claim(
        11,
        "Variance reduction is larger for logistic regression than for the deep GP.",
        "left for the deep GP minus left for logistic regression",
        parts,
    )


_CLAIMS: tuple[Callable[[Results], Claim], ...] = (
    _amortised_beats_context_free,
    _stronger_later,
    _larger_networks,
    _few_steps,
    _keeps_up,
    _lower_bound,
    _worse_then_better,
    _criteria_alike,
    _overhead,
    _partial_gradients_faster,
    _logistic_over_deep,
)
