"""One estimator at one batch size: its loop, its state after learning, its noise and its time."""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import optax
from jaxtyping import Array, Key, PyTree

from quell._checks import check_measured
from quell.diagnostics.budget import Budget
from quell.diagnostics.metric import Metric, fisher_metric, optimizer_metric
from quell.diagnostics.reference import Reference
from quell.diagnostics.statistics import Interval
from quell.diagnostics.stepper import (
    Learned,
    Stepper,
    state_after_path,
    state_after_steps,
    stepper,
)
from quell.diagnostics.timing import refresh_seconds, seconds_per_step
from quell.diagnostics.variance import VarianceComponents, variance_components
from quell.estimators._types import Started
from quell.objective import Objective

_LEARNING, _FIXED = 0.4, 1000  # share of a cell's time, and the most steps without a path


class Spot(NamedTuple):
    """The problem at the parameters at which all estimators are measured."""

    objective: Objective
    params: PyTree[Array]
    path: PyTree[Array] | None
    data: PyTree[Array]
    optimizer: optax.GradientTransformation
    reference: Reference


class Cell(NamedTuple):
    """An estimator at a batch size: its loop, its state after learning, and its noise."""

    loop: Stepper
    learned: Learned
    found: VarianceComponents | None

    def rare(self, key: Key[Array, ""]) -> float:
        """The seconds per step of the estimator's rare work between steps."""
        if not self.learned.refreshes:
            return 0.0
        each = refresh_seconds(key, self.loop, self.learned.state)
        return each * self.learned.refreshes / self.learned.steps


def metric_at(key: Key[Array, ""], spot: Spot, plain: Started, size: int) -> Metric:
    """The Fisher information of q if there is one, else the optimiser's, warmed on plain noise."""
    found = fisher_metric(spot.objective, spot.params)
    if found is not None:
        return found
    loop = stepper(spot.objective, spot.params, spot.data, plain, size, spot.optimizer)
    state = plain.init(key, spot.params)
    return optimizer_metric(
        spot.optimizer, loop.warmed(loop.prepare(key), state, loop.length), spot.params
    )


def measured_cell(
    key: Key[Array, ""],
    spot: Spot,
    metric: Metric,
    started: Started,
    size: int,
    precise: float,
    seconds: float,
) -> Cell:
    """Let an estimator learn, and measure its noise, within so many seconds if they suffice."""
    init_key, learn_key, noise_key = jax.random.split(key, 3)
    problem, budget = (spot.objective, spot.params, spot.data), Budget(seconds)
    loop = stepper(*problem, started, size, spot.optimizer)
    allowed = budget.share(_LEARNING)
    if spot.path is None:
        state = started.init(init_key, spot.params)
        learned = state_after_steps(learn_key, loop, state, steps=_FIXED, seconds=allowed)
    else:
        state = started.init(init_key, jax.tree.map(lambda p: p[0], spot.path))
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
    return Cell(loop, learned, found)


def step_times(
    key: Key[Array, ""], cells: Mapping[tuple[str, int], Cell], seconds: float
) -> dict[tuple[str, int], Interval]:
    """The time of a step of each estimator, rare work included."""
    loops = {at: cell.loop for at, cell in cells.items()}
    states = {at: cell.learned.state for at, cell in cells.items()}
    taken = seconds_per_step(key, loops, states, seconds=seconds)
    return {at: time.plus(cells[at].rare(key)) for at, time in taken.items()}
