"""Estimates with their intervals, and the decomposition of a variance into parts."""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import special

CONFIDENCE = 0.95


class Estimate(NamedTuple):
    """A number with its 95 % confidence interval.

    Attributes:
      value: the estimate.
      low, high: the ends of the interval.
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"

    @property
    def standard_error(self) -> float:
        """The standard error that the interval stands for, as if it were normal."""
        return (self.high - self.low) / (2 * float(special.ndtri(0.5 + CONFIDENCE / 2)))


class Parts(NamedTuple):
    """The trace of a covariance, split by what causes it; see `quell.measure`.

    Attributes:
      total: points + draws + interaction.
      points: what remains when the draws are averaged out.
      draws: what remains when the points are averaged out.
      interaction: the effect of draws that differs from batch to batch.
      draws_given_points: draws + interaction, the variance that is left once the batch is known.
    """

    total: Estimate
    points: Estimate
    draws: Estimate
    interaction: Estimate
    draws_given_points: Estimate


def mean_estimate(values: Float[np.ndarray, " R"]) -> Estimate:
    """The mean of independent replicates, with Student's interval."""
    R = len(values)
    mean = float(np.mean(values))
    half = float(
        special.stdtrit(R - 1, 0.5 + CONFIDENCE / 2) * np.std(values, ddof=1) / math.sqrt(R)
    )
    return Estimate(mean, mean - half, mean + half)


def parts_estimate(replicates: Float[np.ndarray, "R 3"]) -> Parts:
    """Parts from replicates of (points, draws, interaction)."""
    points, draws, interaction = replicates.T
    return Parts(
        total=mean_estimate(points + draws + interaction),
        points=mean_estimate(points),
        draws=mean_estimate(draws),
        interaction=mean_estimate(interaction),
        draws_given_points=mean_estimate(draws + interaction),
    )


def ratio_estimate(top: Float[np.ndarray, " R"], bottom: Float[np.ndarray, " R"]) -> Estimate:
    """Σ top / Σ bottom over independent pairs, with the delta method's interval."""
    ratio = float(np.sum(top) / np.sum(bottom))
    spread = mean_estimate((top - ratio * bottom) / np.mean(bottom))
    half = spread.high - spread.value
    return Estimate(ratio, ratio - half, ratio + half)


def quotient(top: Estimate, bottom: Estimate) -> Estimate:
    """top / bottom for two independent estimates, with the delta method's interval."""
    if bottom.value <= 0:
        return Estimate(math.nan, math.nan, math.nan)
    ratio = top.value / bottom.value
    half = math.hypot(top.high - top.value, ratio * (bottom.high - bottom.value)) / bottom.value
    return Estimate(ratio, ratio - half, ratio + half)
