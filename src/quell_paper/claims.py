"""The paper's claims, judged by the results: an effect, its interval over seeds, a verdict.

The words of the claims stand in claims.toml, their effects here. A positive effect speaks for the
claim, unless its words say otherwise. The remaining variance is the controlled variance divided by
the plain variance. Claims are judged by the draws' part of the trace of the covariance, the only
part that these variates can reduce; the paper's own measure, the variance of the norm,
stands beside it. Claims are judged for the literal procedure, unless they are judged by procedure;
the same effects for the other procedures are shown.
"""

import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from importlib.resources import files

import numpy as np
import pandas as pd

from quell.diagnostics.statistics import median_interval
from quell_paper.config import (
    AMORTISED,
    APPLY_FIRST,
    FULL,
    LITERAL,
    PROCEDURES,
    SUM,
    UNIT,
    Procedure,
)
from quell_paper.results import NotRunError, Results
from quell_paper.verdicts import (
    Claim,
    Decide,
    Part,
    above,
    difference_interval,
    mean_interval,
    positive,
    within,
)

KEEPS_UP = 0.1  # the loss of reduction with which a network still keeps up with a moving model
LITTLE = 0.9  # few steps are a struggle if more variance than this remains after ten steps
ON_THE_LINE = 1.0  # nats by which a trace may lie below another and still be "on or above"
ALIKE = 1.0  # traces are alike if they differ by less than this times the spread of plain runs
OVERHEAD = (0.15, 0.35)  # the meaning of "about 25 %"

SCALE_NAMES = {FULL: "N/|B| Σ g_b", SUM: "Σ g_b", UNIT: "unit scale"}

MakePart = Callable[[Results, str], Part]
Parts = tuple[list[Part], list[Part]]  # the parts that are judged, and the parts that are shown


def judge(results: Results) -> list[Claim]:
    """All eleven claims; a claim has no parts if its experiment was not run."""
    words = tomllib.loads((files("quell_paper") / "claims.toml").read_text(encoding="utf-8"))
    numbers = {"keeps_up": KEEPS_UP, "little": LITTLE, "overhead": [100 * x for x in OVERHEAD]}
    numbers |= {"line": ON_THE_LINE, "alike": ALIKE}
    return [
        Claim(i, claim["text"], claim["effect"].format(**numbers), *make(results), claim["why"])
        for i, (claim, make) in enumerate(zip(words["claims"], _PARTS, strict=True), start=1)
    ]


def _collect(results: Results, *makers: MakePart) -> list[Part]:
    """The parts of every model, without the parts that were not run."""
    parts = []
    for model in results.models:
        for make in makers:
            results.used.clear()
            try:
                part = make(results, model)
            except NotRunError:
                continue
            parts.append(part._replace(jobs=frozenset(results.used)))
    return parts


def procedure_name(procedure: Procedure) -> str:
    """The scale and the order of a procedure in words."""
    scale, order = procedure
    own = "apply first" if order == APPLY_FIRST else "paper’s order"
    return f"{SCALE_NAMES[scale]}, {own}"


def _by_procedure(make: Callable[[Procedure], list[MakePart]]) -> Callable[[Results], Parts]:
    """Parts that are judged for the literal procedure and shown for the others."""

    def parts(r: Results) -> Parts:
        others = [maker for procedure in PROCEDURES[1:] for maker in make(procedure)]
        return _collect(r, *make(LITERAL)), _collect(r, *others)

    return parts


def _seed_part(
    name: str, effect: Callable[[Results, str], pd.Series], decide: Decide = positive
) -> MakePart:
    """A part with one effect for each seed."""

    def make(r: Results, model: str) -> Part:
        values = effect(r, model).dropna()
        interval = mean_interval(values, r.level(model))
        return Part(name, model, interval, decide(interval), seeds=len(values))

    return make


def _variance_part(
    name: str, effect: Callable[[Results, str, str], pd.Series], decide: Decide = positive
) -> MakePart:
    """A part by both measures; `effect(results, model, metric)` gives an effect for each seed."""

    def make(r: Results, model: str) -> Part:
        part = _seed_part(name, lambda r, model: effect(r, model, "draws"), decide)(r, model)
        return part._replace(paper=mean_interval(effect(r, model, "norm"), r.level(model)))

    return make


def _experiments(procedure: Procedure) -> list[tuple[Callable, str]]:
    """Remaining variance at a frozen model and in joint training, with their names."""
    return [
        (partial(Results.static, procedure=procedure), f"frozen, {SCALE_NAMES[procedure[0]]}"),
        (
            partial(Results.dynamic, procedure=procedure),
            f"joint training, {procedure_name(procedure)}",
        ),
    ]


def _contrasts(**other) -> Callable[[Results], Parts]:
    """The remaining variance of another setting minus that of the main setting."""

    def makers(procedure: Procedure) -> Iterator[MakePart]:
        for get, name in _experiments(procedure):

            def difference(r, model, metric, get=get):
                return get(r, model, metric, **other) - get(r, model, metric)

            yield _variance_part(name, difference)

    return _by_procedure(lambda procedure: list(makers(procedure)))


STEPS = (
    ("wider: [16] → [128]", "16", "128"),
    ("deeper: [16] → [16, 16, 16]", "16", "16-16-16"),
    ("deeper: [128] → [128, 128, 128]", "128", AMORTISED),
    ("depth over width: [128] → [64, 64, 64]", "128", "64-64-64"),
    ("depth over width: [512] → [128, 128, 128]", "512", AMORTISED),
)


def capacity_part(
    step: tuple[str, str, str], scale: str, rate: float, stage: int | None = None
) -> MakePart:
    """The gain of a wider or deeper network at a target scale and a learning rate."""
    name, worse, better = step

    def effect(r, model, metric):
        at = {} if stage is None else {"frozen_after": stage}
        get = partial(r.static, model, metric, scale=scale, learning_rate=rate, **at)
        return get(network=worse) - get(network=better)

    return _variance_part(f"{name}; {SCALE_NAMES[scale]}, rate {rate:g}", effect)


def _larger_networks(r: Results) -> Parts:
    settings = [(scale, rate) for scale in (FULL, SUM, UNIT) for rate in (1e-3, 1e-2)]
    return _collect(r, *(capacity_part(step, *where) for where in settings for step in STEPS)), []


def _few_steps(procedure: Procedure) -> list[MakePart]:
    def effect(r, model, metric):
        return r.static(model, metric, procedure=procedure, coefficient_steps=10)

    name = f"10 coefficient steps, {SCALE_NAMES[procedure[0]]}"
    return [_variance_part(name, effect, above(LITTLE))]


def _keeps_up(r: Results) -> Parts:
    def removed(procedure, r, model, metric):
        return 1 - r.dynamic(model, metric, procedure=procedure)

    def beside_frozen(procedure, r, model, metric):
        get = {"procedure": procedure}
        return r.static(model, metric, **get) - r.dynamic(model, metric, **get)

    def makers(effect, decide, name):
        return [
            _variance_part(f"{name}, {procedure_name(p)}", partial(effect, p), decide)
            for p in PROCEDURES
        ]

    literal, *others = makers(removed, positive, "removed in joint training")
    lost = makers(
        beside_frozen, above(-KEEPS_UP), "removed jointly minus removed at a frozen model"
    )
    return _collect(r, literal), _collect(r, *others, *lost)


def _window(r: Results, model: str, begin: float, end: float, network: str, **where) -> pd.Series:
    """The mean bound between two fractions of the training, by seed."""
    trace = r.trace(model, network, **where)
    T = trace.shape[1]
    return trace.iloc[:, int(begin * T) : max(int(begin * T) + 1, int(end * T))].mean(axis=1)


def _gain(
    name: str,
    sign: int,
    baseline: str,
    window: tuple[float, float],
    procedure: Procedure,
    decide: Decide = positive,
) -> MakePart:
    """The sign times (bound of the baseline minus amortised bound), the mean over the criteria."""
    where = dict(zip(("scale", "order"), procedure))

    def effect(r: Results, model: str) -> pd.Series:
        gains = []
        for criterion in r.plans[model].traces.criteria:
            of = where | {"criterion": criterion}
            ours = _window(r, model, *window, AMORTISED, **of)
            theirs = _window(r, model, *window, baseline, **({} if baseline == "plain" else of))
            gains.append(sign * (theirs - ours))
        return sum(gains[1:], gains[0]) / len(gains)

    return _seed_part(f"{name}, {procedure_name(procedure)}", effect, decide)


def _lower_in_the_end(procedure: Procedure) -> list[MakePart]:
    late = (0.5, 1.0)
    return [
        _gain("below uncontrolled", 1, "plain", late, procedure),
        _gain("below context-free", 1, "none", late, procedure),
    ]


def _worse_then_better(r: Results) -> Parts:
    makers = []
    for procedure in (*PROCEDURES, (UNIT, LITERAL[1])):
        start = above(-ON_THE_LINE)
        makers.append(_gain("starts on or above", -1, "plain", (0.0, 0.05), procedure, start))
        makers.append(_gain("ends below", 1, "plain", (0.75, 1.0), procedure))
    return _collect(r, *makers), []


def _alike(r: Results) -> Parts:
    def of_traces(procedure: Procedure, network: str) -> MakePart:
        where = {"network": network, "scale": procedure[0], "order": procedure[1]}

        def effect(r: Results, model: str) -> pd.Series:
            mean = partial(_window, r, model, 0.5, 1.0)
            difference = mean(criterion="gradient_sum", **where)
            difference = difference - mean(criterion="squared_difference", **where)
            return difference / mean(network="plain").std()

        kind = "amortised" if network == AMORTISED else "context-free"
        name = f"traces, {kind}, {procedure_name(procedure)}"
        return _seed_part(name, effect, within(-ALIKE, ALIKE))

    def of_variances(procedure: Procedure) -> Iterator[MakePart]:
        for get, name in _experiments(procedure):

            def effect(r, model, metric, get=get):
                return get(r, model, metric, criterion="gradient_sum") - get(r, model, metric)

            yield _variance_part(f"variances, {name}", effect, lambda interval: None)

    networks = (AMORTISED, "none")
    judged = [of_traces(LITERAL, network) for network in networks]
    shown = [of_traces(procedure, n) for procedure in PROCEDURES[1:] for n in networks]
    shown += [make for procedure in PROCEDURES for make in of_variances(procedure)]
    return _collect(r, *judged), _collect(r, *shown)


def _overhead(r: Results) -> Parts:
    def part(name: str, way: str, r: Results, model: str) -> Part:
        def milliseconds(variant: str, criterion: str) -> np.ndarray:
            where = {"variant": variant, "criterion": criterion, "way": way}
            return r.rows("table-1", model=model, **where)["milliseconds"].to_numpy()

        ratios = np.mean(
            [
                milliseconds("amortised", criterion) / milliseconds("context-free", criterion)
                for criterion in r.plans[model].step_time.criteria
            ],
            axis=0,
        )
        interval = median_interval(ratios - 1)
        return Part(name, model, interval, within(*OVERHEAD)(interval), seeds=len(ratios))

    return (
        _collect(r, partial(part, "step by step", "dispatched")),
        _collect(r, partial(part, "in a compiled loop", "loop")),
    )


def _partial_gradients_faster(procedure: Procedure) -> list[MakePart]:
    def effect(criterion, r, model, metric):
        get = partial(r.static, model, metric, procedure=procedure, coefficient_steps=100)
        return get(criterion=criterion) - get(criterion="partial_gradients")

    scale = SCALE_NAMES[procedure[0]]
    return [
        _variance_part(f"over {c.replace('_', ' ')}, {scale}", partial(effect, c))
        for c in ("squared_difference", "gradient_sum")
    ]


def _logistic_over_deep(r: Results) -> Parts:
    def compare(get: Callable, name: str, r: Results, model: str) -> Part:
        if model == "logistic" or "logistic" not in r.plans:
            raise NotRunError(name)

        def interval(metric: str):
            deep, logistic = get(r, model, metric), get(r, "logistic", metric)
            return difference_interval(deep, logistic, r.level(model, "logistic")), deep.size

        (draws, seeds), (norm, _) = interval("draws"), interval("norm")
        return Part(name, model, draws, positive(draws), norm, seeds)

    judged, *others = [partial(compare, *e) for p in PROCEDURES for e in _experiments(p)]
    return _collect(r, judged), _collect(r, *others)


_PARTS: tuple[Callable[[Results], Parts], ...] = (
    _contrasts(network="none"),
    _contrasts(early=True),
    _larger_networks,
    _by_procedure(_few_steps),
    _keeps_up,
    _by_procedure(_lower_in_the_end),
    _worse_then_better,
    _alike,
    _overhead,
    _by_procedure(_partial_gradients_faster),
    _logistic_over_deep,
)
