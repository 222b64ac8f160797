"""What claims are made of: a part for every model whose records are there."""

from collections.abc import Callable

import numpy as np

from quell.experiments.results import NotRunError, Results
from quell.experiments.verdicts import Interval, Part, mean_interval, positive

METRIC, PAPER_METRIC = "draws", "norm"


def variance_part(
    name: str,
    model: str,
    effect: Callable[[str], np.ndarray],
    decide: Callable[[Interval], bool | None] = positive,
) -> Part:
    """A part whose effect is a function of the metric."""
    interval = mean_interval(effect(METRIC))
    return Part(name, model, interval, decide(interval), mean_interval(effect(PAPER_METRIC)))


def collect(results: Results, *makers: Callable[[str], Part]) -> list[Part]:
    """A part for every model and maker whose records are there."""
    parts = []
    for model in results.models:
        for make in makers:
            try:
                parts.append(make(model))
            except NotRunError:
                continue
    return parts
