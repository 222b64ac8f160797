"""Statistics: numbers with their intervals, and the parts of a variance."""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import special

CONFIDENCE = 0.95


class Interval(NamedTuple):
    """A number with its 95 % confidence interval.

    Attributes:
      value: the number.
      low, high: the ends of the interval.
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"

    def plus(self, constant: float) -> "Interval":
        """The same with a known number added."""
        return Interval(self.value + constant, self.low + constant, self.high + constant)

    @property
    def standard_error(self) -> float:
        """The standard error behind the interval, as if the number were normal."""
        return (self.high - self.low) / (2 * float(special.ndtri(0.5 + CONFIDENCE / 2)))


class Parts(NamedTuple):
    """The trace of a covariance, split by cause; see `quell.measure`.

    Attributes:
      total: points + draws + interaction.
      points: the variance that remains if the draws are averaged out.
      draws: the variance that remains if the points are averaged out.
      interaction: the effect of draws that differs from batch to batch.
      draws_given_points: draws + interaction, the variance that remains when the batch is known.
    """

    total: Interval
    points: Interval
    draws: Interval
    interaction: Interval
    draws_given_points: Interval


def mean_interval(values: Float[np.ndarray, " R"]) -> Interval:
    """The mean of independent replicates, with Student's interval."""
    R = len(values)
    quantile = float(special.stdtrit(R - 1, 0.5 + CONFIDENCE / 2))
    return _around(float(np.mean(values)), quantile * float(np.std(values, ddof=1)) / math.sqrt(R))


def parts_from(replicates: Float[np.ndarray, "R 3"]) -> Parts:
    """Parts from replicates of (points, draws, interaction)."""
    points, draws, interaction = replicates.T
    return Parts(
        total=mean_interval(points + draws + interaction),
        points=mean_interval(points),
        draws=mean_interval(draws),
        interaction=mean_interval(interaction),
        draws_given_points=mean_interval(draws + interaction),
    )


def ratio_interval(top: Float[np.ndarray, " R"], bottom: Float[np.ndarray, " R"]) -> Interval:
    """The ratio Σ top / Σ bottom over independent pairs, with the interval of the delta method."""
    ratio = float(np.sum(top) / np.sum(bottom))
    spread = mean_interval((top - ratio * bottom) / np.mean(bottom))  # linearised ratio
    return _around(ratio, spread.high - spread.value)


def median_interval(values: Float[np.ndarray, " R"]) -> Interval:
    """The median of independent replicates, with the interval of its order statistics.

    For fewer than six replicates the interval is their range, whose confidence is lower.
    """
    ordered = np.sort(values)
    R = len(ordered)
    below = int(special.bdtrik((1 - CONFIDENCE) / 2, R, 0.5)) if R > 5 else 0
    return Interval(float(np.median(ordered)), float(ordered[below]), float(ordered[R - 1 - below]))


def quotient(top: Interval, bottom: Interval) -> Interval:
    """The ratio of two independent numbers, with the interval of the delta method."""
    if bottom.value <= 0:  # an unbiased variance may be negative
        return Interval(math.nan, math.nan, math.nan)
    ratio = top.value / bottom.value
    half = math.hypot(top.high - top.value, ratio * (bottom.high - bottom.value)) / bottom.value
    return _around(ratio, half)


def _around(value: float, half: float) -> Interval:
    return Interval(value, value - half, value + half)
