"""The time of a training until it reaches a target."""

import jax
import numpy as np
import optax
from jaxtyping import Array, Key, PyTree

from quell.estimators._sampling import antithetic, monte_carlo
from quell.estimators._types import Estimator, check_sampling
from quell.objective import Objective
from quell.training.fit import fit
from quell.training.hooks import monitor, silent

_DRAWS = 16  # draws, or pairs, of every point, from which the objective is estimated


def seconds_to_target(
    key: Key[Array, ""],
    objective: Objective,
    params: PyTree[Array],
    data: PyTree[Array],
    estimator: Estimator,
    optimizer: optax.GradientTransformation,
    *,
    batch_size: int,
    target: float,
    seconds_per_step: float,
    num_steps: int,
) -> float | None:
    """Steps of training until the objective is at most the target, times the time of a step.

    The objective is estimated from all of the data, a hundred times in a run, always with the same
    draws, and from many draws of each point to tell it from a target close by. The result is None
    if the target is not reached in `num_steps` steps.
    """
    noise_key, fit_key = jax.random.split(key)
    draw_keys = jax.random.split(noise_key, _DRAWS)
    reflected = objective.noise.reflect is not None
    draws = check_sampling("sampling", antithetic() if reflected else monte_carlo())

    def whole(step):
        def one(key):
            noise = draws.draw(key, objective, objective.num_data)
            return objective.value(step.params, noise, data)

        return jax.lax.map(one, draw_keys).mean()  # one by one: memory of one pass

    every = max(1, num_steps // 100)
    history = fit(
        fit_key,
        objective,
        params,
        data,
        optimizer,
        num_steps=num_steps,
        batch_size=batch_size,
        estimator=estimator,
        hooks=[monitor(whole=whole, every=every), silent],
    ).history
    reached = np.flatnonzero(history["whole"][::every] <= target)
    return float(reached[0] * every * seconds_per_step) if len(reached) else None
