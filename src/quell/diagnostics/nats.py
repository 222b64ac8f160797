"""Noise in nats: the limit that it sets to a run, and a verdict on what holds the run back.

T steps with noise ν per step end, in expectation, at least ν/T above the optimum, whatever the
optimiser (Polyak and Juditsky, 1992). Batches that are reshuffled visit every point once an epoch,
and a smooth average over E > 1 epochs sees only how its weights change within an epoch: of the
points' part a share of about 1/E² is left. docs/yardstick.md derives and tests both.
"""

import math
from typing import NamedTuple

from quell.diagnostics.records import microseconds, percent
from quell.diagnostics.statistics import Interval, Parts

_FAR = 10.0  # a run that is so many times farther away than its noise demands waits for steps
_SEEN = 0.5  # a signal with a relative standard error above this is not seen


class Nats(NamedTuple):
    """The noise of a gradient as a run sees it; see `quell.measure`.

    Attributes:
      noise: ν = ½ tr(H⁻¹Σ), split into points, draws and interaction.
      signal: ½ gᵀH⁻¹g, the nats that one step without noise would gain if the objective were
        quadratic with Hessian H, without bias.
      metric: H in words.
      exact: whether the unit is the nat, since H is the Fisher information of q; otherwise H⁻¹ is
        what the optimiser multiplies with, its rate included.
      epoch: the steps of an epoch if batches are reshuffled; infinite with replacement.
    """

    noise: Parts
    signal: Interval
    metric: str
    exact: bool
    epoch: float

    def after(self, num_steps: float) -> float:
        """The nats that noise leaves at least after so many steps."""
        return left_after(*self.split(), num_steps, self.epoch)

    def steps_to(self, nats: float = 1.0) -> float:
        """The steps that noise demands at least to come so close to the optimum."""
        return steps_to(*self.split(), nats, self.epoch)

    def split(self) -> tuple[float, float]:
        """The noise of the draws, and that of the choice of points."""
        return max(self.noise.draws_given_points.value, 0.0), max(self.noise.points.value, 0.0)


def left_after(draws: float, points: float, num_steps: float, epoch: float) -> float:
    """Nats that are left after T steps: draws count in full, points as long as they are new.

    >>> left_after(1.0, 100.0, 10, math.inf), left_after(1.0, 100.0, 100, 10)
    (10.1, 0.02)
    """
    seen = num_steps / epoch if math.isfinite(epoch) else 0.0
    return (draws + points * min(1.0, seen**-2 if seen else 1.0)) / num_steps


def steps_to(draws: float, points: float, nats: float, epoch: float) -> float:
    """The least T with `left_after` at most so many nats, at least one step.

    >>> steps_to(1.0, 99.0, 1.0, math.inf), round(steps_to(0.0, 8000.0, 1.0, 10), 1)
    (100.0, 92.8)
    """
    replaced = (draws + points) / nats
    if replaced <= epoch:
        return max(replaced, 1.0)
    low, high = min(epoch, replaced), replaced
    for _ in range(60):  # left_after falls with T
        middle = math.sqrt(low * high)
        if left_after(draws, points, middle, epoch) > nats:
            low = middle
        else:
            high = middle
    return max(high, 1.0)


def verdict(nats: Nats, seconds_per_step: float, num_steps: int | None) -> str:
    """Words and numbers: the limit, and whether noise or steps hold back the run that led here."""
    lines = [_limit(nats, seconds_per_step)] if nats.exact else [_standing(nats)]
    return "\n".join([*lines, *_reason(nats, num_steps)])


def noise_limits(nats: Nats, num_steps: int) -> bool:
    """Whether noise limits a run of so many steps that ended here, or else its steps do.

    A run that averages its noise ideally ends `after(num_steps)` above the optimum, and there the
    signal is as large. A far larger signal could have been followed: noise did not hide it.
    """
    signal = nats.signal
    if signal.value <= 0 or signal.standard_error > _SEEN * signal.value:
        return True
    return signal.value < _FAR * nats.after(num_steps)


def _limit(nats: Nats, seconds: float) -> str:
    steps = nats.steps_to(1.0)
    said = f"To be within 1 nat takes at least {_count(steps)} steps ({_time(steps * seconds)})"
    if math.isfinite(nats.epoch) and steps > nats.epoch:
        said += f", {steps / nats.epoch:.1f} epochs of reshuffled batches"
    return said + " with these draws."


def _standing(nats: Nats) -> str:
    level = nats.noise.total.value / 2
    return (
        f"A run at this rate stays about {level:.3g} nats above its optimum; the rate must fall by "
        f"as much to come within 1 nat. (Noise by the {nats.metric}.)"
    )


def _reason(nats: Nats, num_steps: int | None) -> list[str]:
    noise, signal = max(nats.noise.total.value, 0.0), nats.signal
    source, falls = _source(nats, num_steps)
    if noise == 0:
        return ["There is no noise here: the steps limit the run."]
    if num_steps is None:
        if signal.value > noise:
            return ["The steps limit here: the signal of a single step is larger than its noise."]
        if signal.value <= 0:
            return [f"Noise limits here: no signal is seen in it. {source} {falls}"]
        return [
            f"Noise limits a run that came here in up to {_count(_FAR * noise / signal.value)} "
            f"steps; a longer run was held back by its steps (pass num_steps). {source} {falls}"
        ]
    limit, here = nats.after(num_steps), f"the signal is {signal.value:.3g} nats"
    if noise_limits(nats, num_steps):
        return [
            f"Noise limits the run: {here}, and after {num_steps} steps noise leaves at least "
            f"{limit:.3g}. {source} {falls}"
        ]
    return [
        f"The steps limit the run: {here}, {signal.value / limit:.3g} times the {limit:.3g} that "
        f"noise leaves after {num_steps} steps. A longer run, or another optimiser or rate, gains "
        "more than quieter gradients."
    ]


def _source(nats: Nats, num_steps: int | None) -> tuple[str, str]:
    """Where the noise comes from, and what is left of it without that."""
    draws, points = nats.split()
    if num_steps is not None and math.isfinite(nats.epoch):
        points *= (
            left_after(0.0, 1.0, num_steps, nats.epoch) * num_steps
        )  # of the share that counts
    name, least = ("points", draws) if points > draws else ("draws", points)
    total = draws + points
    how = "the choice of points" if name == "points" else "the draws"
    remedy = (
        "a closed form or a larger batch"
        if name == "points"
        else "pairs, more draws or a closed form"
    )
    return (
        f"{percent(total - least, total)} of it comes from {how};",
        f"without that, {percent(least, total)} would be left ({remedy}).",
    )


def _count(steps: float) -> str:
    """A number of steps with two digits that matter.

    >>> _count(1234.5), _count(3.2)
    ('1,200', '4')
    """
    if steps < 100:
        return f"{math.ceil(steps)}"
    digits = 10 ** (int(math.log10(steps)) - 1)
    return f"{round(steps / digits) * digits:,}"


def _time(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{microseconds(seconds)} µs"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
