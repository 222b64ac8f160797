"""Measure a gradient estimator at fixed parameters."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key, PyTree

from quell import _leaves
from quell._errors import invalid
from quell._measure._ceiling import ceilings, default_bases
from quell._measure._record import Measurement
from quell._measure._reference import Reference, full_gradient
from quell._measure._timing import learned_state, peak_memory, seconds_per_step, stepper
from quell._measure._variance import noisiness
from quell._objective import Objective
from quell._objective import batch_size as rows_of
from quell.bases import Basis
from quell.estimators import MakeEstimator

# How the time is shared out.
_WARM_UP, _REFERENCE, _TIMING, _CEILING, _VARIANCE = 0.15, 0.15, 0.15, 0.15, 0.4


def measure(
    key: Key[Array, ""],
    objective: Objective,
    estimator: MakeEstimator,
    params: PyTree[Array],
    data: PyTree[Array],
    *,
    batch_size: int,
    state: PyTree[Array] | None = None,
    warm_up: int = 1000,
    seconds: float = 5.0,
    reference: Reference | None = None,
    bases: Mapping[str, Basis] | None = None,
) -> Measurement:
    """Where the noise of a gradient estimator comes from at given parameters, and what it costs.

    The gradient G(B, ε) depends on which points are in the batch and on the draws. With the
    estimator's state frozen, the trace of its covariance falls into three parts that add up:

        total        T = tr Cov[G]
        points       Q = tr Cov_B[ E_ε[G | B] ]      what averaging over draws would leave
        draws        D = tr Cov_ε[ E_B[G | ε] ]      what averaging over batches would leave
        interaction  I = T − Q − D                   draws whose effect depends on the points

    By the law of total variance D + I = E_B[tr Cov_ε[G | B]] is all that can be gained from the
    draws once the batch is known (`draws_given_points`). A correction that does not look at the
    points can at best remove D; the interaction takes one that does.

    The parts come from independent blocks, each with 4 batches (drawn without replacement) crossed
    with 4 keys: in a block the mean squares of the two-way table give unbiased estimates of Q, D
    and I, and their spread over blocks gives the 95 % intervals. An unbiased estimate of a small
    part may be below zero.

    The bias is held against the mean of passes over all of the data with a draw for each point.
    `bias_z` is the largest z-score of any entry, turned into one z-score by Bonferroni's
    correction, so it is small and never negative for an unbiased estimator.

    Args:
      key: for everything that is random.
      objective: L, a user's own or a model's.
      estimator: the estimator, such as `quell.estimators.monte_carlo()`.
      params: θ.
      data: a pytree with leaves `[N, ...]`.
      batch_size: |B|.
      state: the estimator's state, such as a fit's. By default that of `init`, after learning.
      warm_up: how many steps the default state learns at the fixed parameters.
      seconds: how long to take, not counting compilation. More of it gives narrower intervals.
      reference: the gradient to hold the bias against; computed by default.
      bases: the bases whose best reach is wanted, by name; linear and quadratic by default.

    Returns:
      A record that prints as a table, plots and saves itself.
    """
    data = jax.tree.map(jnp.asarray, data)
    _check(objective, data, batch_size, seconds)
    keys = jax.random.split(key, 6)
    made = estimator(objective)
    loop = stepper(made, params, data, batch_size)
    if state is None:
        state = made.init(keys[0], params, data)
        allowed = _WARM_UP * seconds
        state = learned_state(keys[1], loop, state, steps=warm_up, seconds=allowed)
    if reference is None:
        allowed = _REFERENCE * seconds
        reference = full_gradient(keys[2], objective, params, data, seconds=allowed)
    found = noisiness(
        keys[3],
        made,
        params,
        data,
        batch_size=batch_size,
        state=state,
        reference=reference,
        seconds=_VARIANCE * seconds,
    )
    times = seconds_per_step(keys[4], {"": loop}, {"": state}, seconds=_TIMING * seconds)
    batch = jax.tree.map(lambda y: y[:batch_size], data)
    bases = default_bases(objective.noise) if bases is None else bases
    total = found.parts.total.value
    return Measurement(
        parts=found.parts,
        leaves=found.leaves,
        norm_variance=found.norm_variance,
        bias_z=found.bias_z,
        squared_bias=found.squared_bias,
        signal_to_noise=found.squared_mean / total if total > 0 else float("inf"),
        seconds_per_step=times[""],
        peak_memory=peak_memory(made, params, batch, state),
        ceilings=ceilings(
            keys[5], objective, params, data, bases=bases, seconds=_CEILING * seconds
        ),
        batch_size=batch_size,
        num_data=objective.num_data,
        num_params=_leaves.flattener(None, params).size,
        evaluations=found.evaluations,
    )


def _check(objective: Objective, data: PyTree[Array], batch_size: int, seconds: float) -> None:
    N = rows_of(data)
    if objective.num_data != N:
        raise invalid(
            "data",
            expected=f"the {objective.num_data} rows of objective.num_data",
            got=f"{N} rows",
            advice=f"Use objective._replace(num_data={N}) for these data.",
        )
    if not 1 <= batch_size <= N:
        raise invalid(
            "batch_size",
            expected=f"1 to {N}",
            got=batch_size,
            advice="A batch cannot be larger than the data.",
        )
    if not seconds > 0:
        raise invalid("seconds", expected="a positive number", got=seconds, advice="Try seconds=5.")
