"""The recommendation of an estimator for a problem, from measurements within a budget."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import optax
from jaxtyping import Array, Key, PyTree

from quell import bases
from quell._checks import check_batch_size, check_positive, check_whole, checked_problem
from quell._tree import number_of_parameters
from quell.diagnostics.ranking import Row, ranked
from quell.diagnostics.records import microseconds, table
from quell.estimators._closed_form import closed_form
from quell.estimators._joint import joint
from quell.estimators._sampling import antithetic, monte_carlo
from quell.estimators._types import Estimator
from quell.objective import Objective

_WEIGHTS, _TABLE = 16, 2**23  # the most weights (d² Hessian entries) and table entries of `joint`
_MARGIN = 1.05  # the least efficiency of a recommendation: below it, the gain may be noise


class Recommendation(NamedTuple):
    """The estimator to use, with the measurements behind the choice; see `quell.recommend`.

    Attributes:
      name: the name of the recommended estimator.
      estimator: the estimator itself, for `fit`.
      candidates: the measured estimators, the most efficient first.
      batch_size: |B|, for which the choice holds.
    """

    name: str
    estimator: Estimator
    candidates: tuple[Row, ...]
    batch_size: int

    def __repr__(self) -> str:
        gain = next(row.efficiency_vs_plain for row in self.candidates if row.name == self.name)
        return f"Recommendation({self.name} at batch size {self.batch_size}, {gain:.2f} × plain)"

    def __str__(self) -> str:
        head = ["estimator", "variance", "µs per step", "efficiency (plain = 1)"]
        rows = [
            [
                row.name,
                f"{row.error:.3g}",
                microseconds(row.seconds_per_step),
                f"{row.efficiency_vs_plain:.2f}",
            ]
            for row in self.candidates
        ]
        return f"Use {self.name} (batch size {self.batch_size}).\n\n{table(head, rows)}"

    def to_json(self) -> dict[str, Any]:
        """The record as plain dictionaries and numbers."""
        rows = [row.to_json() for row in self.candidates]
        return {"name": self.name, "batch_size": self.batch_size, "candidates": rows}


def recommend(
    key: Key[Array, ""],
    objective: Objective,
    params: PyTree[Array],
    data: PyTree[Array],
    *,
    batch_size: int = 10,
    seconds: float = 10.0,
    optimizer: optax.GradientTransformation | None = None,
    num_steps: int = 500,
) -> Recommendation:
    """Recommend the estimator with the least variance × time, or plain if nothing beats plain.

    The candidates learn along a short training on plain gradients, as they would in a long
    training, and are measured at its end.

    Args:
      key: the key for all randomness.
      objective: L.
      params: θ, the start of the training.
      data: leaves `[N, ...]`.
      batch_size: |B|.
      seconds: the time to measure, not counting compilation and the short training.
      optimizer: the optimiser of the short training; Adam with rate 0.01 by default. Its update is
        part of the time of a step.
      num_steps: the number of steps of the short training.

    Returns:
      A record that prints as a table: `fit(..., estimator=recommend(...).estimator)`.
    """
    data = checked_problem(key, objective, data)
    check_batch_size(batch_size, objective.num_data)
    check_whole("num_steps", num_steps, 0)
    check_positive("seconds", seconds, 10)
    estimators = candidates(objective, params)
    ranking = ranked(
        key,
        objective,
        params,
        data,
        estimators,
        baselines=("plain",),
        batch_sizes=(batch_size,),
        num_steps=num_steps,
        optimizer=optax.adam(1e-2) if optimizer is None else optimizer,
        driver=None,
        seconds=seconds,
    )
    return recommendation(estimators, ranking.rows)


def candidates(objective: Objective, params: PyTree[Array]) -> dict[str, Estimator]:
    """The candidates of `recommend`, by name.

    The joint control variate is a candidate for variational objectives with few weights.
    """
    found = {
        "plain": monte_carlo(),
        "closed-form": closed_form(),
        "closed-form-points": closed_form(basis=bases.no_basis()),
    }
    if objective.noise.reflect is not None:
        found["antithetic"] = antithetic()
    small = objective.num_data * number_of_parameters(params) <= _TABLE
    if objective.variational is not None and objective.noise.size <= _WEIGHTS and small:
        found["joint"] = joint()
    return found


def recommendation(estimators: Mapping[str, Estimator], rows: Sequence[Row]) -> Recommendation:
    """The choice from rows of one batch size, the most efficient first."""
    best = rows[0].name if rows[0].efficiency_vs_plain >= _MARGIN else "plain"
    return Recommendation(best, estimators[best], tuple(rows), rows[0].batch_size)
