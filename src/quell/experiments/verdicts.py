"""Effects, their intervals over seeds, and what they decide."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

MODELS = {"logistic": "logistic regression", "deep-gp": "deep GP", "both": "both models"}


class Interval(NamedTuple):
    """A mean and its 95 % interval."""

    effect: float
    low: float
    high: float


class Part(NamedTuple):
    """A claim for one model, or one half of it.

    Attributes:
      name: what is compared.
      model: which model, or "both".
      interval: the effect and its 95 % interval.
      holds: True, False, or None where the seeds do not decide it.
      paper: the same by the paper's measure, where variances are compared.
    """

    name: str
    model: str
    interval: Interval
    holds: bool | None
    paper: Interval | None = None


class Claim(NamedTuple):
    """A claim of the paper.

    Attributes:
      id: its number.
      text: what the paper says.
      effect: what the effect measures.
      parts: for every model; none where nothing was run.
      also: parts that are shown but not judged.
      why: where we differ, a sentence on why.
    """

    id: int
    text: str
    effect: str
    parts: list[Part]
    also: list[Part] = []  # noqa: RUF012 — never changed
    why: str = ""

    @property
    def holds(self) -> bool | None:
        """Whether it holds in every part; None where one is undecided and none fails."""
        verdicts = [part.holds for part in self.parts]
        if not verdicts:
            return None
        return False if False in verdicts else (None if None in verdicts else True)

    @property
    def weakest(self) -> Part | None:
        """The part that decides: the least convincing."""
        rank = {False: 0, None: 1, True: 2}
        key = lambda part: (rank[part.holds], part.interval.effect)  # noqa: E731
        return min(self.parts, key=key) if self.parts else None


def mean_interval(values: np.ndarray) -> Interval:
    """The mean over seeds with Student's 95 % interval.

    >>> mean_interval(np.array([1.0, 2.0, 3.0])).effect
    2.0
    """
    values = np.asarray(values, float)
    mean, n = float(values.mean()), values.size
    if n < 2:
        return Interval(mean, -np.inf, np.inf)
    half = float(stats.t.ppf(0.975, n - 1) * values.std(ddof=1) / np.sqrt(n))
    return Interval(mean, mean - half, mean + half)


def difference_interval(a: np.ndarray, b: np.ndarray) -> Interval:
    """The difference of two means over independent seeds, with Welch's interval."""
    if min(a.size, b.size) < 2:
        return Interval(float(a.mean() - b.mean()), -np.inf, np.inf)
    interval = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    return Interval(float(a.mean() - b.mean()), float(interval.low), float(interval.high))


def root(interval: Interval) -> Interval:
    """The interval of a squared size as one of the size; negative where the estimate was.

    >>> root(Interval(0.04, -0.01, 0.09))
    Interval(effect=0.2, low=-0.1, high=0.3)
    """
    return Interval(*(float(np.sign(v) * np.sqrt(abs(v))) for v in interval))


def above(bound: float) -> Callable[[Interval], bool | None]:
    """Whether an effect lies above a bound."""

    def decide(interval: Interval) -> bool | None:
        return True if interval.low > bound else (False if interval.high <= bound else None)

    return decide


positive = above(0.0)
"""Whether an effect is above zero."""


def within(low: float, high: float) -> Callable[[Interval], bool | None]:
    """Whether an effect lies between two bounds."""

    def decide(interval: Interval) -> bool | None:
        if low < interval.low and interval.high < high:
            return True
        return False if interval.low >= high or interval.high <= low else None

    return decide


def median_interval(values: np.ndarray) -> Interval:
    """The median with the 95 % interval between order statistics."""
    values = np.sort(values)
    n = values.size
    low, high = stats.binom.ppf([0.025, 0.975], n, 0.5).astype(int)
    return Interval(
        float(np.median(values)), float(values[max(low - 1, 0)]), float(values[min(high, n - 1)])
    )


def verdict(holds: bool | None) -> str:
    """A verdict in words."""
    return {True: "holds", False: "does not hold here", None: "undecided"}[holds]


def explained(claim: Claim) -> str:
    """Where we differ, why; where the seeds do not decide, which part it is."""
    if claim.holds is True or not claim.parts:
        return ""
    if claim.holds is False:
        return claim.why
    undecided = [f"{p.name} ({MODELS[p.model]})" for p in claim.parts if p.holds is None]
    return (
        f"The seeds do not decide {', '.join(undecided)}: the interval allows both answers. "
        f"{claim.why}"
    )


def as_json(claim: Claim) -> dict[str, Any]:
    """For summary.json: the numbers of the part that decides, and all parts."""
    weakest = claim.weakest
    numbers = Interval(np.nan, np.nan, np.nan) if weakest is None else weakest.interval
    return {
        "id": claim.id,
        "claim": claim.text,
        "measure": claim.effect,
        "holds": claim.holds,
        "verdict": "not run" if weakest is None else verdict(claim.holds),
        "why": explained(claim),
        **{name: _number(value) for name, value in numbers._asdict().items()},
        "parts": [_part_json(part) for part in claim.parts],
        "also": [_part_json(part) for part in claim.also],
    }


def _part_json(part: Part) -> dict[str, Any]:
    found = {"name": part.name, "model": part.model, "holds": part.holds}
    found |= {name: _number(value) for name, value in part.interval._asdict().items()}
    if part.paper is not None:
        found["paper_metric"] = {n: _number(v) for n, v in part.paper._asdict().items()}
    return found


def _number(value: float) -> float | None:
    """JSON knows no infinities."""
    return float(value) if np.isfinite(value) else None
