"""Parameters to compare at, states that have followed them there, and the time to a target."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Int, Key, PyTree

from quell._batches import reshuffle
from quell._fit import fit
from quell._objective import Objective
from quell._progress import silent
from quell.estimators import Estimator, MakeEstimator, monte_carlo


class Training(NamedTuple):
    """How the common parameters are reached.

    Attributes:
      optimizer: any optax optimiser.
      num_steps: T.
      batch_size: of the plain gradients that drive it.
    """

    optimizer: optax.GradientTransformation
    num_steps: int
    batch_size: int


class Following(NamedTuple):
    """State of an estimator that watches a run it does not drive.

    Attributes:
      driver: the state of the estimator that drives.
      follower: the state of the one that watches.
      step: how many steps were taken, `[]`.
    """

    driver: PyTree[Array]
    follower: PyTree[Array]
    step: Int[Array, ""]


def trained(
    key: Key[Array, ""],
    objective: Objective,
    params: PyTree[Array],
    data: PyTree[Array],
    training: Training,
) -> PyTree[Array]:
    """The parameters after training on plain gradients."""
    return _run(key, objective, monte_carlo(), params, data, training).params


def followed(
    key: Key[Array, ""],
    objective: Objective,
    estimator: MakeEstimator,
    params: PyTree[Array],
    data: PyTree[Array],
    training: Training,
    batch_size: int,
) -> PyTree[Array]:
    """The state of an estimator that learned along the same run, from batches of its own.

    With the same key every estimator, at every batch size, follows the same parameters. It follows
    the last p steps, p the largest prime up to T, so that an estimator that does something every
    so many steps is caught in between.
    """
    state = jax.eval_shape(estimator(objective).init, key, params, data)
    if not jax.tree.leaves(state):
        return state
    both = _following(estimator, data, batch_size, training.num_steps)
    return _run(key, objective, both, params, data, training).estimator_state.follower


def seconds_to_target(
    key: Key[Array, ""],
    objective: Objective,
    estimator: MakeEstimator,
    params: PyTree[Array],
    data: PyTree[Array],
    training: Training,
    *,
    target: float,
    seconds_per_step: float,
    num_steps: int,
) -> float | None:
    """Steps of training until the objective is at most the target, times the time of a step.

    The objective is estimated from all of the data, every hundredth of the run, with the same
    draws each time.
    """
    noise_key, fit_key = jax.random.split(key)
    noise = objective.sample_noise(noise_key, objective.num_data)
    every = max(1, num_steps // 100)
    result = fit(
        objective,
        data,
        params=params,
        optimizer=training.optimizer,
        num_steps=num_steps,
        batch_size=training.batch_size,
        key=fit_key,
        estimator=estimator,
        monitors={"whole": lambda step: objective.value(step.params, noise, data)},
        monitor_every=every,
        progress=silent,
    )
    whole = result.history.monitors["whole"][::every]
    reached = np.flatnonzero(whole <= target)
    return float(reached[0] * every * seconds_per_step) if len(reached) else None


def _run(key, objective, estimator: MakeEstimator, params, data, training: Training):
    return fit(
        objective,
        data,
        params=jax.tree.map(jnp.array, params),
        optimizer=training.optimizer,
        num_steps=training.num_steps,
        batch_size=training.batch_size,
        key=key,
        estimator=estimator,
        progress=silent,
    )


def _following(
    estimator: MakeEstimator, data: PyTree[Array], batch_size: int, num_steps: int
) -> Callable[[Objective], Estimator]:
    """Plain gradients, while another estimator watches with batches of its own."""
    start = num_steps - _largest_prime(num_steps)

    def make(objective: Objective) -> Estimator:
        driver, follower = monte_carlo()(objective), estimator(objective)

        def init(key, params, batch):
            # The driver has no state, and so needs no key.
            watching = follower.init(key, params, batch)
            return Following(driver.init(key, params, batch), watching, jnp.zeros((), jnp.int32))

        def estimate(key, params, batch, state):
            gradient, value, driver_state = driver.estimate(key, params, batch, state.driver)
            row_key, follower_key = jax.random.split(jax.random.fold_in(key, 1))
            rows = reshuffle(row_key, 0, 1, objective.num_data, batch_size)[0]
            own = jax.tree.map(lambda y: y[rows], data)
            watching = lax.cond(
                state.step >= start,
                lambda: follower.estimate(follower_key, params, own, state.follower)[2],
                lambda: state.follower,
            )
            return gradient, value, Following(driver_state, watching, state.step + 1)

        return Estimator(init, estimate)

    return make


def _largest_prime(most: int) -> int:
    """The largest prime up to `most`, or `most` itself below two.

    >>> _largest_prime(1000), _largest_prime(1)
    (997, 1)
    """
    for p in range(most, 1, -1):
        if all(p % d for d in range(2, math.isqrt(p) + 1)):
            return p
    return most
