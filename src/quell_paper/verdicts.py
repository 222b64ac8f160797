"""Verdicts on claims: effects, their intervals over seeds, and decisions from intervals."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from quell.types import Interval

MODELS = {
    "logistic": "logistic regression",
    "deep-gp": "deep GP, lengthscale √5",
    "deep-gp-1": "deep GP, lengthscale 1",
}
PARTS = {True: "holds", False: "does not hold here", None: "undecided"}
DEPENDS = "depends"

Decide = Callable[[Interval], bool | None]


class Part(NamedTuple):
    """One comparison for one model; a claim has several parts.

    Attributes:
      name: the comparison in words.
      model: the model.
      interval: the effect and its interval.
      holds: True, False, or None if the seeds do not decide.
      paper: the same effect by the paper's measure, if variances are compared.
      seeds: the number of seeds, or of repetitions.
      jobs: the identities of the jobs behind the part.
    """

    name: str
    model: str
    interval: Interval
    holds: bool | None
    paper: Interval | None = None
    seeds: int = 0
    jobs: frozenset[str] = frozenset()


class Claim(NamedTuple):
    """A claim of the paper.

    Attributes:
      id: the number of the claim.
      text: the claim in the paper's sense.
      effect: the quantity that is judged.
      parts: the parts for every model; empty if nothing was run.
      also: parts that are shown but not judged.
      why: the reason for a result that differs from the paper's.
    """

    id: int
    text: str
    effect: str
    parts: list[Part]
    also: list[Part]
    why: str

    @property
    def verdict(self) -> str:
        """The verdict in words.

        A claim depends on its setting if some parts hold and others do not. Otherwise one part
        that does not hold refutes it, and one undecided part leaves it undecided.
        """
        return _combined(self.parts)

    @property
    def decided(self) -> bool:
        """Whether there is an answer."""
        return self.verdict not in ("not run", PARTS[None])

    @property
    def weakest(self) -> Part | None:
        """The least convincing part, which decides."""
        rank = {False: 0, None: 1, True: 2}
        key = lambda part: (rank[part.holds], part.interval.value)  # noqa: E731
        return min(self.parts, key=key, default=None)

    @property
    def explanation(self) -> str:
        """The count of parts by verdict, and the reason for a result other than the paper's."""
        if self.verdict in ("not run", PARTS[True]):
            return ""
        counts = Counter(part.holds for part in self.parts)
        words = {
            True: ("holds", "hold"),
            False: ("does not", "do not"),
            None: ("is undecided", "are undecided"),
        }
        told = ", ".join(
            f"{counts[holds]} {word[counts[holds] > 1]}"
            for holds, word in words.items()
            if counts[holds]
        )
        return f"Of {len(self.parts)} parts, {told}. {self.why}"

    @property
    def undecided_jobs(self) -> frozenset[str]:
        """The jobs whose seeds do not decide the claim."""
        if self.decided:
            return frozenset()
        return frozenset().union(*(part.jobs for part in self.parts if part.holds is None))


def _combined(parts: Iterable[Part]) -> str:
    found = {part.holds for part in parts}
    if not found:
        return "not run"
    if {True, False} <= found:
        return DEPENDS
    return PARTS[False if False in found else (None if None in found else True)]


def verdicts_by_model(claim: Claim) -> dict[str, str]:
    """The verdict on a claim, and those of each model's parts alone."""
    models = dict.fromkeys(part.model for part in claim.parts)
    alone = {m: _combined(p for p in claim.parts if p.model == m) for m in models}
    return {"all": claim.verdict} | alone


def mean_interval(values: Any, level: float = 0.95) -> Interval:
    """The mean over seeds, the first axis, with Student's interval; seeds with a gap are left out.

    >>> float(mean_interval(np.array([1.0, 2.0, 3.0])).value)
    2.0
    """
    values = np.asarray(values, float)
    values = values[np.isfinite(values).reshape(len(values), -1).all(axis=1)]
    mean, n = values.mean(axis=0), len(values)
    if n < 2:
        return Interval(mean, mean - np.inf, mean + np.inf)
    half = stats.t.ppf(0.5 + level / 2, n - 1) * values.std(axis=0, ddof=1) / np.sqrt(n)
    return Interval(mean, mean - half, mean + half)


def difference_interval(a: Any, b: Any, level: float = 0.95) -> Interval:
    """The difference of two means over independent seeds, with Welch's interval."""
    effect = a.mean() - b.mean()
    if min(a.size, b.size) < 2:
        return Interval(effect, -np.inf, np.inf)
    interval = stats.ttest_ind(a, b, equal_var=False).confidence_interval(level)
    return Interval(effect, interval.low, interval.high)


def root(interval: Interval) -> Interval:
    """The interval of a size from the interval of its square; the root keeps the sign.

    >>> [float(round(value, 9)) for value in root(Interval(0.04, -0.01, 0.09))]
    [0.2, -0.1, 0.3]
    """
    return Interval(*(np.sign(value) * np.sqrt(np.abs(value)) for value in interval))


def above(bound: float) -> Decide:
    """The decision whether an effect lies above a bound."""

    def decide(interval: Interval) -> bool | None:
        return True if interval.low > bound else (False if interval.high <= bound else None)

    return decide


positive = above(0.0)
"""The decision whether an effect is above zero."""


def within(low: float, high: float) -> Decide:
    """The decision whether an effect lies between two bounds."""

    def decide(interval: Interval) -> bool | None:
        if low < interval.low and interval.high < high:
            return True
        return False if interval.low >= high or interval.high <= low else None

    return decide


def as_json(claim: Claim) -> dict[str, Any]:
    """A claim for summary.json: the numbers of the part that decides, and all parts."""
    weakest = claim.weakest
    return {
        "id": claim.id,
        "claim": claim.text,
        "measure": claim.effect,
        "verdict": claim.verdict,
        "why": claim.explanation,
        **_numbers(weakest.interval if weakest else Interval(np.nan, np.nan, np.nan)),
        "parts": [_part_json(part) for part in claim.parts],
        "also": [_part_json(part) for part in claim.also],
    }


def _part_json(part: Part) -> dict[str, Any]:
    found = {"name": part.name, "model": part.model, "holds": part.holds, "seeds": part.seeds}
    found |= _numbers(part.interval)
    return found if part.paper is None else found | {"paper_metric": _numbers(part.paper)}


def _numbers(interval: Interval) -> dict[str, float | None]:
    """An effect and its interval as JSON, which knows no infinities."""
    names = ("effect", "low", "high")
    return {k: float(v) if np.isfinite(v) else None for k, v in zip(names, interval)}
