"""Parameters to compare at, the path that led there, and the time to a target."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Int, Key, PyTree

from quell._fit import fit
from quell._measure import largest_prime
from quell._objective import Objective
from quell._progress import silent
from quell.estimators import Estimator, MakeEstimator, antithetic, monte_carlo

_PATH_NUMBERS = 2**25  # how much of a run is remembered
_TARGET_DRAWS = 16  # or pairs, of every point, to estimate the objective by


class Training(NamedTuple):
    """How the common parameters are reached.

    Attributes:
      optimizer: any optax optimiser.
      num_steps: T.
      batch_size: of the gradients that drive it.
      driver: the estimator of these gradients.
    """

    optimizer: optax.GradientTransformation
    num_steps: int
    batch_size: int
    driver: MakeEstimator


class Recording(NamedTuple):
    """State of an estimator that keeps a record of where its gradients were taken.

    Attributes:
      driver: the estimator's own state.
      path: the parameters of the last W steps, leaves `[W, ...]`.
      step: how many steps were taken, `[]`.
    """

    driver: PyTree[Array]
    path: PyTree[Array]
    step: Int[Array, ""]


def trained(
    key: Key[Array, ""],
    objective: Objective,
    params: PyTree[Array],
    data: PyTree[Array],
    training: Training,
) -> tuple[PyTree[Array], PyTree[Array]]:
    """Train on the gradients of the driver.

    Returns:
      The parameters, and their path over the last W steps, leaves `[W, ...]`: all of the run if
      memory allows. W is a prime, so that an estimator that does something every so many steps is
      caught in between when it has followed the path.
    """
    size = sum(int(jnp.size(leaf)) for leaf in jax.tree.leaves(params))
    W = largest_prime(min(training.num_steps, _PATH_NUMBERS // size))
    result = fit(
        objective,
        data,
        params=jax.tree.map(jnp.array, params),
        optimizer=training.optimizer,
        num_steps=training.num_steps,
        batch_size=training.batch_size,
        key=key,
        estimator=_recording(training.driver, training.num_steps, W),
        progress=silent,
    )
    return result.params, result.estimator_state.path


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
    draws each time, many of each point so that it can be told from a target close by.
    """
    noise_key, fit_key = jax.random.split(key)
    draw_keys = jax.random.split(noise_key, _TARGET_DRAWS)
    sampling = monte_carlo() if objective.noise.reflect is None else antithetic()
    precise = sampling(objective)
    precise_state = precise.init(noise_key, params, data)

    def whole(step):
        def one(key):
            return precise.estimate(key, step.params, data, precise_state)[1]

        return jax.lax.map(one, draw_keys).mean()

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
        monitors={"whole": whole},
        monitor_every=every,
        progress=silent,
    )
    seen = result.history.monitors["whole"][::every]
    reached = np.flatnonzero(seen <= target)
    return float(reached[0] * every * seconds_per_step) if len(reached) else None


def _recording(driver: MakeEstimator, num_steps: int, W: int) -> MakeEstimator:
    """The driver, keeping the parameters of the last W of so many steps."""

    def make(objective: Objective) -> Estimator:
        driving = driver(objective)

        def init(key, params, batch):
            path = jax.tree.map(lambda p: jnp.zeros((W, *p.shape), p.dtype), params)
            return Recording(driving.init(key, params, batch), path, jnp.zeros((), jnp.int32))

        def estimate(key, params, batch, state):
            gradient, value, driven = driving.estimate(key, params, batch, state.driver)
            row = jnp.maximum(state.step - (num_steps - W), 0)  # row 0 until the last W begin
            path = jax.tree.map(lambda kept, p: kept.at[row].set(p), state.path, params)
            return gradient, value, Recording(driven, path, state.step + 1)

        return Estimator(init, estimate)

    return make
