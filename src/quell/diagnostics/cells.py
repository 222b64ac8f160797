"""One estimator at one batch size: its loop, its state after learning, its noise and its time."""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import optax
from jaxtyping import Array, Key, PyTree

from quell._checks import check_measured
from quell._jit import quick_jit
from quell.diagnostics.budget import Budget
from quell.diagnostics.metric import Metric, fisher_metric, optimizer_metric
from quell.diagnostics.reference import Reference
from quell.diagnostics.statistics import Interval
from quell.diagnostics.stepper import (
    Learned,
    Stepper,
    pace,
    state_after_path,
    state_after_steps,
    stepper,
)
from quell.diagnostics.timing import refresh_seconds, seconds_per_step
from quell.diagnostics.variance import VarianceComponents, variance_components
from quell.estimators._types import Started
from quell.objective import Objective

_LEARNING, _FIXED = 0.4, 1000  # share of a cell's time, and the most steps without a path
_BESIDE = 0.2  # learning may take this share of the compilation in any case
_STEADY = 1000  # steps after which Adam's second moments are those of its gradients


class Spot(NamedTuple):
    """The problem at the parameters at which all estimators are measured."""

    objective: Objective
    params: PyTree[Array]
    path: PyTree[Array] | None
    data: PyTree[Array]
    optimizer: optax.GradientTransformation
    reference: Reference


class Cell(NamedTuple):
    """An estimator at a batch size: its loop, its state after learning, and its noise.

    Attributes:
      loop: the loop of its steps.
      learned: its state.
      found: its noise; None if its steps are timed and no more.
      compilation: the seconds that compiling took.
    """

    loop: Stepper
    learned: Learned
    found: VarianceComponents | None
    compilation: float

    def rare(self, key: Key[Array, ""], seconds: float) -> float:
        """The seconds per step of the estimator's rare work between steps."""
        if not self.learned.refreshes:
            return 0.0
        each = refresh_seconds(key, self.loop, self.learned.state, seconds=seconds)
        return each * self.learned.refreshes / self.learned.steps


def loop_of(spot: Spot, started: Started, size: int) -> Stepper:
    """The loop of an estimator's steps."""
    return stepper(spot.objective, spot.params, spot.data, started, size, spot.optimizer)


def metric_at(
    key: Key[Array, ""],
    objective: Objective,
    params: PyTree[Array],
    optimizer: optax.GradientTransformation,
    loop: Stepper,
    state: PyTree[Array],
    *,
    seconds: float,
) -> Metric:
    """The Fisher information of q if there is one, else the optimiser's, warmed on this noise.

    Args:
      key: the key for batches and noise.
      objective: L.
      params: θ.
      optimizer: the optimiser.
      loop: a loop of steps with this optimiser, at these parameters.
      state: the state of the loop's estimator.
      seconds: the time for the steps that warm it, compilation apart.
    """
    found = fisher_metric(objective, params)
    if found is not None:
        return found
    fit = seconds / pace(key, loop, state)
    steps = max(1, min(_STEADY, loop.length, int(min(fit, _STEADY))))
    return optimizer_metric(optimizer, loop.warmed(loop.prepare(key), state, steps), params)


def measured_cell(
    key: Key[Array, ""],
    spot: Spot,
    metric: Metric,
    started: Started,
    loop: Stepper,
    size: int,
    precise: float,
    seconds: float,
) -> Cell:
    """Let an estimator learn, and measure its noise, within so many seconds if they suffice."""
    init_key, learn_key, noise_key = jax.random.split(key, 3)
    problem, budget = (spot.objective, spot.params, spot.data), Budget(seconds)
    init = quick_jit(started.init)
    state = init(init_key, spot.params)
    loop.advance(loop.prepare(learn_key), state, 0)  # compiles, also for the time of a step
    compilation = seconds - budget.left()
    allowed = max(budget.share(_LEARNING), _BESIDE * compilation)
    if spot.path is None:
        learned = state_after_steps(learn_key, loop, state, steps=_FIXED, seconds=allowed)
    else:
        state = init(init_key, jax.tree.map(lambda p: p[0], spot.path))
        learned = state_after_path(learn_key, loop, state, spot.path, seconds=allowed)
    found = variance_components(
        noise_key,
        *problem,
        started,
        batch_size=size,
        state=learned.state,
        metric=metric,
        reference=spot.reference,
        seconds=budget.left(),
        precise=precise,
    )
    check_measured(found.parts.total.value, size)
    return Cell(loop, learned, found, compilation + found.compilation)


def step_times(
    key: Key[Array, ""], cells: Mapping[tuple[str, int], Cell], seconds: float
) -> dict[tuple[str, int], Interval]:
    """The time of a step of each estimator, rare work included."""
    loops = {at: cell.loop for at, cell in cells.items()}
    states = {at: cell.learned.state for at, cell in cells.items()}
    taken = seconds_per_step(key, loops, states, seconds=seconds)
    each = seconds / len(cells)
    return {at: time.plus(cells[at].rare(key, each)) for at, time in taken.items()}
