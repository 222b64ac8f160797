"""The measurement of a gradient estimator at fixed parameters."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key, PyTree

from quell._checks import check_batch_size, check_positive, check_whole, checked_problem
from quell._errors import invalid
from quell._tree import number_of_parameters
from quell.diagnostics.ceilings import ceilings, default_bases
from quell.diagnostics.measurement import Measurement
from quell.diagnostics.reference import full_gradient
from quell.diagnostics.timing import peak_memory, seconds_per_step, state_after_steps, stepper
from quell.diagnostics.variance import variance_components
from quell.estimators._types import Estimator, batch_of, check_estimator
from quell.objective import Objective
from quell.training.loop import start_key

# Shares of the time; the variance needs most, since its error falls as one over the square root.
_WARM_UP, _REFERENCE, _TIMING, _CEILING, _VARIANCE = 0.15, 0.15, 0.15, 0.15, 0.4


def measure(
    key: Key[Array, ""],
    objective: Objective,
    params: PyTree[Array],
    data: PyTree[Array],
    estimator: Estimator,
    *,
    batch_size: int,
    state: PyTree[Array] | None = None,
    warm_up: int = 1000,
    seconds: float = 5.0,
) -> Measurement:
    """Measure the noise of a gradient estimator at given parameters, split by cause, and its cost.

    The gradient G(B, ε) depends on the points of the batch and on the draws. With the state of the
    estimator frozen, the trace of its covariance is the sum of three parts:

        total        T = tr Cov[G]
        points       Q = tr Cov_B[ E_ε[G | B] ]      remains if the draws are averaged out
        draws        D = tr Cov_ε[ E_B[G | ε] ]      remains if the batches are averaged out
        interaction  I = T − Q − D                   draws whose effect depends on the points

    By the law of total variance D + I = E_B[tr Cov_ε[G | B]] is the most that can be gained from
    the draws when the batch is known (`draws_given_points`). A correction that does not look at the
    points can at best remove D; to remove the interaction, it must look at them.

    The parts come from independent blocks, each with 4 batches (drawn without replacement) crossed
    with 4 keys: in a block the mean squares of the two-way table give unbiased estimates of Q, D
    and I, and their spread over blocks gives the 95 % intervals. An unbiased estimate of a small
    part may be below zero.

    The bias is the distance to the mean of passes over all of the data with a draw for each point.
    `bias_z` is the largest z-score of any entry, turned into one z-score by Bonferroni's
    correction, so it is small and never negative for an unbiased estimator.

    Args:
      key: the key for all randomness.
      objective: L, a user's own or a model's.
      params: θ.
      data: a pytree with leaves `[N, ...]`.
      estimator: the estimator, such as `quell.monte_carlo()`.
      batch_size: |B|.
      state: the estimator's state, such as `fit(...).estimator_state`, for estimators that make no
        choices at the start, or the same choices. By default the first state, after learning.
      warm_up: the number of steps for which the default state learns at the fixed parameters.
      seconds: the time to take, not counting compilation. More time gives narrower intervals.

    Returns:
      A record that prints as a table, plots and saves itself.
    """
    data = checked_problem(key, objective, data)
    check_estimator("estimator", estimator)
    check_batch_size(batch_size, objective.num_data)
    check_whole("warm_up", warm_up, 0)
    check_positive("seconds", seconds, 5)
    init_key, learn_key, *keys = jax.random.split(key, 6)
    started = estimator.start(start_key(key), objective, params, data)
    loop = stepper(objective, params, data, started, batch_size)
    first = started.init(init_key, params)
    if state is None:
        allowed = _WARM_UP * seconds
        state = state_after_steps(learn_key, loop, first, steps=warm_up, seconds=allowed)
    _check_state(state, first)
    problem = (objective, params, data)
    found = variance_components(
        keys[0],
        *problem,
        started,
        batch_size=batch_size,
        state=state,
        reference=full_gradient(keys[1], *problem, seconds=_REFERENCE * seconds),
        seconds=_VARIANCE * seconds,
    )
    times = seconds_per_step(keys[2], {"": loop}, {"": state}, seconds=_TIMING * seconds)
    bases, allowed = default_bases(objective.noise), _CEILING * seconds
    batch, total = batch_of(data, jnp.arange(batch_size)), found.parts.total.value
    return Measurement(
        parts=found.parts,
        leaves=found.leaves,
        norm_variance=found.norm_variance,
        bias_z=found.bias_z,
        squared_bias=found.squared_bias,
        signal_to_noise=found.squared_mean / total if total > 0 else float("inf"),
        seconds_per_step=times[""],
        peak_memory=peak_memory(objective, params, batch, started, state),
        ceilings=ceilings(keys[3], *problem, bases=bases, seconds=allowed),
        batch_size=batch_size,
        num_data=objective.num_data,
        num_params=number_of_parameters(params),
        evaluations=found.evaluations,
    )


def _check_state(state: PyTree[Array], expected: PyTree[Array]) -> None:
    """Refuse the state of another estimator, or of the same estimator after other choices."""
    if jax.tree.map(jnp.shape, state) != jax.tree.map(jnp.shape, expected):
        raise invalid(
            "state",
            expected="a state of this estimator, as it is started here",
            got="arrays of other shapes",
            advice="Pass the key of its run, or fix the estimator's choices, such as leaves=.",
        )
