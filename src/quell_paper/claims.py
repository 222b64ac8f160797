"""The paper's claims, judged by the results: an effect, its interval over seeds, a verdict.

The words of the claims stand in claims.toml, their effects here. A positive effect speaks for the
claim, unless its words say otherwise. The remaining variance is the controlled variance divided by
the plain variance. Claims are judged by the draws' part of the trace of the covariance, the only
part that these variates can reduce; the paper's own measure, the variance of the norm,
stands beside it.
"""

import tomllib
from collections.abc import Callable
from functools import partial
from importlib.resources import files

import numpy as np

from quell_paper.config import AMORTISED, APPLY_FIRST, LEARN_FIRST
from quell_paper.results import NotRunError, Results
from quell_paper.verdicts import (
    Claim,
    Decide,
    Part,
    above,
    difference_interval,
    mean_interval,
    median_interval,
    positive,
    within,
)

ALIKE = 0.1  # criteria behave alike if their remaining variances differ by less than this
LITTLE = 0.9  # few steps are a struggle if more variance than this remains after ten steps
OVERHEAD = (0.15, 0.35)  # the meaning of "about 25 %"

MakePart = Callable[[str], Part]
Parts = tuple[list[Part], list[Part]]  # the parts that are judged, and the parts that are shown


def judge(results: Results) -> list[Claim]:
    """All eleven claims; a claim has no parts if its experiment was not run."""
    words = tomllib.loads((files("quell_paper") / "claims.toml").read_text(encoding="utf-8"))
    numbers = {"alike": ALIKE, "little": LITTLE, "overhead": [100 * x for x in OVERHEAD]}
    return [
        Claim(i, claim["text"], claim["effect"].format(**numbers), *make(results), claim["why"])
        for i, (claim, make) in enumerate(zip(words["claims"], _PARTS, strict=True), start=1)
    ]


def _collect(results: Results, *makers: MakePart) -> list[Part]:
    """The parts of every model, without the parts that were not run."""
    parts = []
    for model in results.models:
        for make in makers:
            try:
                parts.append(make(model))
            except NotRunError:
                continue
    return parts


def _variance_part(
    name: str, effect: Callable[[str, str], np.ndarray], decide: Decide = positive
) -> MakePart:
    """A part by both measures; `effect(model, metric)` gives an effect for each seed."""

    def make(model: str) -> Part:
        interval, paper = (mean_interval(effect(model, metric)) for metric in ("draws", "norm"))
        return Part(name, model, interval, decide(interval), paper)

    return make


def _contrasts(decide: Decide = positive, **other) -> Callable[[Results], Parts]:
    """The remaining variance of another setting minus that of the main setting."""

    def parts(r: Results) -> Parts:
        def difference(get, model, metric):
            return get(model, metric, **other) - get(model, metric)

        experiments = {"static": r.static, "dynamic": r.dynamic}
        makers = [
            _variance_part(name, partial(difference, get), decide)
            for name, get in experiments.items()
        ]
        return _collect(r, *makers), []

    return parts


def _larger_networks(r: Results) -> Parts:
    steps = (
        ("wider: [16] → [128]", "16", "128"),
        ("deeper: [16] → [16, 16, 16]", "16", "16-16-16"),
        ("deeper: [128] → [128, 128, 128]", "128", AMORTISED),
        ("depth over width: [128] → [16, 16, 16]", "128", "16-16-16"),
    )

    def part(step: tuple[str, str, str], main: bool, model: str) -> Part:
        name, worse, better = step
        plan = r.plans[model]
        rates = [x for x in plan.static.learning_rates if (x == plan.main_learning_rate) == main]
        if not rates:
            raise NotRunError(name)

        def effect(model, metric):
            get = partial(r.static, model, metric, learning_rate=rates[0])
            return get(network=worse) - get(network=better)

        return _variance_part(f"{name}, at {rates[0]:g}", effect)(model)

    judged, also = (_collect(r, *(partial(part, s, main) for s in steps)) for main in (True, False))
    return judged, also


def _few_steps(r: Results) -> Parts:
    effect = partial(r.static, coefficient_steps=10)
    return _collect(r, _variance_part("10 coefficient steps", effect, above(LITTLE))), []


def _keeps_up(r: Results) -> Parts:
    def removed(model, metric):
        return 1 - r.dynamic(model, metric)

    def beside_frozen(model, metric):
        return r.static(model, metric) - r.dynamic(model, metric)

    name = "removed jointly minus removed with the model frozen"
    return (
        _collect(r, _variance_part("joint training", removed)),
        _collect(r, _variance_part(name, beside_frozen, above(-ALIKE))),
    )


def _gains(*comparisons: tuple[str, int, str, float, float]) -> Callable[[Results], Parts]:
    """Comparisons `(name, sign, baseline, begin, end)` of traces, in both orders.

    The effect is the sign times (bound of the baseline minus amortised bound), the mean over the
    criteria and over the iterations between two fractions of the training.
    """

    def part(r: Results, order: str, comparison: tuple, model: str) -> Part:
        name, sign, baseline, begin, end = comparison
        T = r.trace(model, "plain").shape[1]
        columns = slice(int(begin * T), max(int(begin * T) + 1, int(end * T)))
        gains = []
        for criterion in r.plans[model].traces.criteria:
            ours = r.trace(model, AMORTISED, criterion, order)
            setting = () if baseline == "plain" else (criterion, order)
            theirs = r.trace(model, baseline, *setting)
            gains.append((theirs - ours)[:, columns].mean(1))
        interval = mean_interval(sign * np.mean(gains, axis=0))
        name += ", paper's order" if order == LEARN_FIRST else ""
        return Part(name, model, interval, positive(interval))

    def parts(r: Results) -> Parts:
        judged, also = (
            _collect(r, *(partial(part, r, order, comparison) for comparison in comparisons))
            for order in (APPLY_FIRST, LEARN_FIRST)
        )
        return judged, also

    return parts


def _overhead(r: Results) -> Parts:
    def part(name: str, way: str, model: str) -> Part:
        def milliseconds(variant: str, criterion: str) -> np.ndarray:
            where = {"variant": variant, "criterion": criterion, "way": way}
            return r.rows("table-1", model=model, **where)["milliseconds"].to_numpy()

        ratios = [
            milliseconds("amortised", criterion) / milliseconds("context-free", criterion)
            for criterion in r.plans[model].step_time.criteria
        ]
        interval = median_interval(np.mean(ratios, axis=0) - 1)
        return Part(name, model, interval, within(*OVERHEAD)(interval))

    return (
        _collect(r, partial(part, "step by step", "dispatched")),
        _collect(r, partial(part, "in a compiled loop", "loop")),
    )


def _partial_gradients_faster(r: Results) -> Parts:
    def effect(criterion, model, metric):
        get = partial(r.static, model, metric, coefficient_steps=100)
        return get(criterion=criterion) - get(criterion="partial_gradients")

    others = ("squared_difference", "gradient_sum")
    makers = [_variance_part(c.replace("_", " "), partial(effect, c)) for c in others]
    return _collect(r, *makers), []


def _logistic_over_deep(r: Results) -> Parts:
    def compare(name: str, get: Callable[..., np.ndarray]) -> list[Part]:
        try:
            interval, paper = (
                difference_interval(get("deep-gp", metric), get("logistic", metric))
                for metric in ("draws", "norm")
            )
        except (NotRunError, KeyError):
            return []
        return [Part(name, "both", interval, positive(interval), paper)]

    return compare("static", r.static), compare("dynamic", r.dynamic)


_PARTS: tuple[Callable[[Results], Parts], ...] = (
    _contrasts(network="none"),
    _contrasts(early=True),
    _larger_networks,
    _few_steps,
    _keeps_up,
    _gains(("uncontrolled", 1, "plain", 0.5, 1.0), ("context-free", 1, "none", 0.5, 1.0)),
    _gains(("starts worse", -1, "plain", 0.0, 0.05), ("then wins", 1, "plain", 0.75, 1.0)),
    _contrasts(within(-ALIKE, ALIKE), criterion="gradient_sum"),
    _overhead,
    _partial_gradients_faster,
    _logistic_over_deep,
)
