"""Which estimator to use: measured on the problem at hand, within a budget."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Key, PyTree

from quell import bases
from quell._errors import invalid
from quell._measure import followed_state, full_gradient, noisiness, seconds_per_step, stepper
from quell._measure._record import plain, table
from quell._objective import Objective
from quell._objective import batch_size as rows_of
from quell.contexts import as_matrix
from quell.estimators import (
    MakeEstimator,
    antithetic,
    closed_form,
    joint,
    monte_carlo,
    noisy_leaves,
)
from quell.estimators._short_training import short_training

# How the time is shared out.
_VARIANCE, _TIMING, _REFERENCE = 0.5, 0.4, 0.1
_DIRECTIONS, _TABLE = 16, 2**23  # the most weights and entries of a table for `joint`
_MARGIN = 1.05  # what must be gained before anything but plain is worth having


class Candidate(NamedTuple):
    """One estimator, measured.

    Attributes:
      name: of the estimator.
      variance: tr Cov of its gradient.
      seconds_per_step: of its compiled step.
      efficiency: variance × time of plain, over its own.
    """

    name: str
    variance: float
    seconds_per_step: float
    efficiency: float


class Recommendation(NamedTuple):
    """What to use, and why; prints as a table.

    Attributes:
      name: of the recommended estimator.
      estimator: the estimator itself, for `fit`.
      candidates: all that were measured, the most efficient first.
      batch_size: |B|, for which it holds.
    """

    name: str
    estimator: MakeEstimator
    candidates: tuple[Candidate, ...]
    batch_size: int

    def __str__(self) -> str:
        rows = [
            [c.name, f"{c.variance:.3g}", f"{c.seconds_per_step * 1e6:.1f}", f"{c.efficiency:.2f}"]
            for c in self.candidates
        ]
        lines = table(["estimator", "variance", "µs/step", "×plain"], rows)
        return f"Use {self.name} (batch size {self.batch_size}).\n\n{lines}"

    def to_json(self) -> dict[str, Any]:
        """The record as plain dictionaries and numbers."""
        return {
            "name": self.name,
            "batch_size": self.batch_size,
            "candidates": [plain(c._asdict()) for c in self.candidates],
        }


def recommend(
    objective: Objective,
    data: PyTree[Array],
    params: PyTree[Array],
    *,
    key: Key[Array, ""],
    batch_size: int = 10,
    seconds: float = 10.0,
    optimizer: optax.GradientTransformation | None = None,
    num_steps: int = 500,
    context: Callable[[PyTree[Array]], PyTree[Array]] = as_matrix,
) -> Recommendation:
    """The estimator with the best variance × time on this problem; plain if nothing beats it.

    The candidates learn along a short training on plain gradients, as they would in earnest, and
    are measured where it ends.

    Args:
      objective: L.
      data: leaves `[N, ...]`.
      params: θ, where the training starts.
      key: for everything that is random.
      batch_size: |B|.
      seconds: how long to measure, not counting compilation and the short training.
      optimizer: of the short training; Adam with rate 0.01 by default. Its update is part of the
        time of a step.
      num_steps: of the short training.
      context: the contexts of a batch, for the control variates.
    """
    data = jax.tree.map(jnp.asarray, data)
    _check(data, batch_size, seconds)
    make_key, train_key, reference_key, each_key, timing_key = jax.random.split(key, 5)
    makers = candidates(make_key, objective, params, data, context=context)
    optimizer = optax.adam(1e-2) if optimizer is None else optimizer
    here, path = short_training(
        train_key,
        objective,
        params,
        data,
        examples=batch_size,
        optimizer=optimizer,
        num_steps=num_steps,
        keep=lambda params: params,
    )
    reference = full_gradient(reference_key, objective, here, data, seconds=_REFERENCE * seconds)
    loops, states, variances = {}, {}, {}
    for name, make in makers.items():
        init_key, learn_key, noise_key = jax.random.split(each_key, 3)
        estimator = make(objective)
        loops[name] = stepper(estimator, here, data, batch_size, optimizer)
        state = estimator.init(init_key, params, data)
        state = followed_state(learn_key, loops[name], state, path, seconds=seconds)
        states[name] = state
        found = noisiness(
            noise_key,
            estimator,
            here,
            data,
            batch_size=batch_size,
            state=state,
            reference=reference,
            seconds=_VARIANCE * seconds / len(makers),
        )
        variances[name] = max(found.parts.total.value, 0.0)
    times = seconds_per_step(timing_key, loops, states, seconds=_TIMING * seconds)
    return _ranked(makers, variances, times, batch_size)


def candidates(
    key: Key[Array, ""],
    objective: Objective,
    params: PyTree[Array],
    data: PyTree[Array],
    *,
    context: Callable[[PyTree[Array]], PyTree[Array]] = as_matrix,
) -> dict[str, MakeEstimator]:
    """What `recommend` chooses from, by name.

    The joint control variate is among them where it can be had: for a variational objective of few
    weights, and data with a leaf `index`.
    """
    found: dict[str, MakeEstimator] = {"plain": monte_carlo()}
    size = sum(jnp.size(leaf) for leaf in jax.tree.leaves(params))
    indexed = isinstance(data, dict) and "index" in data
    few = objective.noise.size <= _DIRECTIONS and rows_of(data) * size <= _TABLE
    if objective.variational is not None and indexed and few:
        found["joint"] = joint()
    if objective.noise.reflect is not None:
        found["antithetic"] = antithetic()
    arguments = (key, objective, params, data)
    leaves = noisy_leaves(*arguments, antithetic() if "antithetic" in found else monte_carlo())
    both = closed_form(*arguments, context=context, leaves=leaves)
    points = closed_form(*arguments, context=context, leaves=leaves, basis=bases.none())
    found |= {"closed-form": both, "closed-form-points": points}
    return found


def _ranked(makers, variances, times, B) -> Recommendation:
    costs = {name: variances[name] * times[name] for name in makers}
    rows = [
        Candidate(name, variances[name], times[name], costs["plain"] / max(costs[name], 1e-300))
        for name in makers
    ]
    rows = sorted(rows, key=lambda row: -row.efficiency)
    best = rows[0].name if rows[0].efficiency >= _MARGIN else "plain"
    return Recommendation(best, makers[best], tuple(rows), B)


def _check(data, B: int, seconds: float) -> None:
    N = rows_of(data)
    if not 1 <= B <= N:
        raise invalid(
            "batch_size", expected=f"1 to {N}, the rows of the data", got=B, advice="Lower it."
        )
    if not seconds > 0:
        raise invalid(
            "seconds", expected="a positive number", got=seconds, advice="Try seconds=10."
        )
