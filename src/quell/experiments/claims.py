"""The paper's claims, each judged by the records: an effect, its interval over seeds, a verdict.

Effects are signed so that a positive one speaks for the claim, unless a claim says otherwise.
"Left" is the controlled variance over the plain one. Claims are judged by the part of the
covariance's trace that is due to draws, which is what these variates can reduce; the paper's own
measure, the variance of the norm, stands beside it.
"""

from collections.abc import Callable

import numpy as np

from quell.experiments.claim_parts import METRIC, PAPER_METRIC, collect, variance_part
from quell.experiments.claims_training import lower_bound, overhead, worse_then_better
from quell.experiments.results import AMORTISED, NotRunError, Results
from quell.experiments.verdicts import (
    Claim,
    Part,
    above,
    difference_interval,
    positive,
    within,
)

ALIKE = 0.1  # criteria behave alike when what they leave differs by less than this
LITTLE = 0.9  # few steps are a struggle when more than this is left after ten of them


def judge(results: Results) -> list[Claim]:
    """All eleven claims; those whose records are missing come without parts."""
    return [make(results) for make in _CLAIMS]


def _amortised_beats_context_free(r: Results) -> Claim:
    def static(model):
        return variance_part(
            "static",
            model,
            lambda metric: r.static(model, metric, network="none") - r.static(model, metric),
        )

    def dynamic(model):
        return variance_part(
            "dynamic",
            model,
            lambda metric: r.dynamic(model, metric, network="none") - r.dynamic(model, metric),
        )

    return Claim(
        1,
        "Amortised coefficients reduce variance more than context-free ones.",
        "left by context-free minus left by amortised",
        collect(r, static, dynamic),
        why="The deep GP's last layer has 1.35 million weights to learn from a thousand gradients "
        "whose noise is mostly the choice of points.",
    )


def _stronger_later(r: Results) -> Claim:
    def static(model):
        early = r.plans[model].static.frozen_after[0]
        return variance_part(
            "static",
            model,
            lambda metric: r.static(model, metric, frozen_after=early) - r.static(model, metric),
        )

    def dynamic(model):
        early = r.plans[model].dynamic.measured_after[0]
        return variance_part(
            "dynamic",
            model,
            lambda metric: r.dynamic(model, metric, steps=early) - r.dynamic(model, metric),
        )

    return Claim(
        2,
        "Variance reduction is stronger later in the optimisation.",
        "left early minus left late, by the amortised variate",
        collect(r, static, dynamic),
        why="With the model frozen, coefficients take as many steps early as late: what differs is "
        "how the gradients depend on the noise.",
    )


def _larger_networks(r: Results) -> Claim:
    steps = (
        ("wider: [16] → [128]", "16", "128"),
        ("deeper: [16] → [16, 16, 16]", "16", "16-16-16"),
        ("deeper: [128] → [128, 128, 128]", "128", AMORTISED),
        ("depth over width: [128] → [16, 16, 16]", "128", "16-16-16"),
    )

    def compare(name, worse, better, other_rate=False):
        def make(model):
            plan = r.plans[model]
            others = [x for x in plan.static.learning_rates if x != plan.main_learning_rate]
            if other_rate and not others:
                raise NotRunError(name)
            rate = others[0] if other_rate else plan.main_learning_rate
            return variance_part(
                f"{name}, at {rate:g}",
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
        "left by the first network minus left by the second, at a coefficient learning rate",
        collect(r, *(compare(*step) for step in steps)),
        collect(r, *(compare(*step, other_rate=True) for step in steps)),
        why="It depends on the learning rate (the other one stands in brackets): at 1e-2 Adam's "
        "own noise sets the floor, and deep networks pass more of it on; at 1e-3 learning speed "
        "decides, and larger networks learn faster.",
    )


def _few_steps(r: Results) -> Claim:
    def part(model):
        return variance_part(
            "10 coefficient steps",
            model,
            lambda metric: r.static(model, metric, coefficient_steps=10),
            above(LITTLE),
        )

    return Claim(
        4,
        "After few coefficient steps the network struggles.",
        f"left after 10 coefficient steps; a struggle where it is above {LITTLE}",
        collect(r, part),
        why="Coefficients are learned at unit scale, so ten steps go further here.",
    )


def _keeps_up(r: Results) -> Claim:
    def part(model):
        return variance_part("joint training", model, lambda metric: 1 - r.dynamic(model, metric))

    def beside_static(model):
        return variance_part(
            "removed jointly minus removed with the model frozen",
            model,
            lambda metric: r.static(model, metric) - r.dynamic(model, metric),
            above(-ALIKE),
        )

    return Claim(
        5,
        "Trained jointly, the network keeps up with the moving target.",
        "share of the variance removed at the end of joint training; in brackets, how that "
        f"compares with a model that stands still (it keeps up when less than {ALIKE} is lost)",
        collect(r, part),
        collect(r, beside_static),
        why="The coefficients lag behind a model that moves at every step.",
    )


def _criteria_alike(r: Results) -> Claim:
    def compare(name, get: Callable[..., np.ndarray]):
        return lambda model: variance_part(
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
        collect(r, compare("static", r.static), compare("dynamic", r.dynamic)),
        why="Their means agree, their noise does not: near a good fit squared difference is made "
        "of a small residual, while gradient sum keeps every point's variate times the gradients "
        "of the others.",
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

            return variance_part(criterion.replace("_", " "), model, effect)

        return make

    return Claim(
        10,
        "Partial gradients learns faster than the other two criteria.",
        "left by the other minus left by partial gradients, after 100 coefficient steps",
        collect(r, against("squared_difference"), against("gradient_sum")),
        why="After 100 steps the criteria differ by less than the seeds do.",
    )


def _logistic_over_deep(r: Results) -> Claim:
    def compare(name, get: Callable[..., np.ndarray]) -> list[Part]:
        try:
            own, papers = (
                difference_interval(get("deep-gp", metric), get("logistic", metric))
                for metric in (METRIC, PAPER_METRIC)
            )
        except (NotRunError, KeyError):
            return []
        return [Part(name, "both", own, positive(own), papers)]

    return Claim(
        11,
        "Variance reduction is larger for logistic regression than for the deep GP.",
        "left for the deep GP minus left for logistic regression",
        compare("static", r.static),
        compare("dynamic", r.dynamic),
        why="Each model has the paper's own coefficient learning rate; see claim 3 for what that "
        "decides.",
    )


_CLAIMS: tuple[Callable[[Results], Claim], ...] = (
    _amortised_beats_context_free,
    _stronger_later,
    _larger_networks,
    _few_steps,
    _keeps_up,
    lower_bound,
    worse_then_better,
    _criteria_alike,
    overhead,
    _partial_gradients_faster,
    _logistic_over_deep,
)
