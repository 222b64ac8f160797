"""Plain estimators: how many draws, and how they are spread."""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key, PyTree

from quell._errors import invalid
from quell._objective import Objective, batch_size
from quell.estimators._types import Estimator


class Sampling(NamedTuple):
    """A way to draw the noise of a batch; called with an objective, a plain estimator.

    Attributes:
      draw: `draw(key, objective, batch_size)` gives draws with leaves `[S, B or 1, ...]`, each of
        them distributed as `objective.noise`. Draws of different examples are independent unless
        the batch shares them.
      balanced: whether what is odd in the noise cancels, all of it or nearly.
    """

    draw: Callable[[Key[Array, ""], Objective, int], PyTree[Array]]
    balanced: bool = False

    def __call__(self, objective: Objective) -> Estimator:
        def estimate(key, params, batch, state):
            noise = self.draw(key, objective, batch_size(batch))
            value, gradient = objective.value_and_gradient(params, noise, batch)
            return gradient, value, state

        return Estimator(init=lambda key, params, batch: (), estimate=estimate)


def monte_carlo(samples: int = 1, *, shared: bool = False) -> Sampling:
    """Independent draws: the plain reparameterisation gradient.

    Args:
      samples: S, draws per example.
      shared: one set of draws for the whole batch instead of one per example.
    """
    _check_samples(samples, 1)
    return Sampling(
        lambda key, objective, B: objective.sample_noise(key, B, samples=samples, shared=shared)
    )


def antithetic(samples: int = 2, *, shared: bool = False) -> Sampling:
    """Pairs of a draw and its mirror image: what is odd in the noise cancels.

    Every draw is distributed as the noise, so the estimate is unbiased for any sampling of
    points. J. M. Hammersley and K. W. Morton, "A new Monte Carlo technique: antithetic variates",
    1956.

    Args:
      samples: S, draws per example, an even number.
      shared: one set of draws for the whole batch instead of one per example.
    """
    _check_samples(samples, 2)

    def draw(key, objective, B):
        reflect = objective.noise.reflect
        if reflect is None:
            raise _lacking(objective, "a mirror image", "Use monte_carlo or symmetric noise.")
        half = objective.sample_noise(key, B, samples=samples // 2, shared=shared)
        mirrored = jax.vmap(jax.vmap(reflect))(half)
        return jax.tree.map(lambda e, m: jnp.concatenate([e, m]), half, mirrored)

    return Sampling(draw, balanced=True)


def quasi_monte_carlo(samples: int = 8, *, shared: bool = False) -> Sampling:
    """Sobol points, randomised for each example on its own: draws that keep their distance.

    The first m = log₂ S binary digits of point s are those of the Sobol sequence, xor a random
    shift drawn for each example and dimension; the digits after them are random. Each draw is
    then distributed as the noise, so the estimate is unbiased, and the S draws of an example stay
    one to each elementary interval. A. B. Owen, "Monte Carlo variance of scrambled net quadrature",
    1997; the points come from `scipy.stats.qmc`.

    Args:
      samples: S, draws per example, a power of two.
      shared: one set of draws for the whole batch instead of one per example.
    """
    _check_samples(samples, 1)
    if samples & (samples - 1):
        raise invalid(
            "samples",
            expected="a power of two, at which Sobol points are balanced",
            got=samples,
            advice=f"Use samples={1 << samples.bit_length()}.",
        )

    def draw(key, objective, B):
        noise = objective.noise
        if noise.from_uniform is None:
            raise _lacking(objective, "a quantile function", "Use monte_carlo or antithetic.")
        shift_key, digits_key = jax.random.split(key)
        points = jnp.asarray(_sobol(samples, noise.size))[:, None]
        shape = (1 if shared else B, noise.size)
        shift = jax.random.randint(shift_key, shape, 0, samples)
        digits = jax.random.uniform(digits_key, (samples, *shape))
        u = ((points ^ shift) + digits) / samples
        least = jnp.finfo(u.dtype).eps / 2
        return noise.from_uniform(jnp.clip(u, least, 1 - least))

    return Sampling(draw, balanced=True)


@lru_cache
def _sobol(samples: int, dim: int) -> Int[np.ndarray, "S D"]:
    """The first S Sobol points, in units of 1/S."""
    from scipy.stats import qmc  # slow to import

    points = qmc.Sobol(dim, scramble=False).random_base2(samples.bit_length() - 1)
    return np.asarray(points * samples, np.int32)


def _lacking(objective: Objective, what: str, advice: str) -> ValueError:
    return invalid(
        "objective.noise",
        expected=f"noise with {what}",
        got=f"{objective.noise.name} noise without one",
        advice=advice,
    )


def _check_samples(samples: int, multiple: int) -> None:
    if not isinstance(samples, int) or samples < 1 or samples % multiple:
        raise invalid(
            "samples",
            expected=f"a positive multiple of {multiple}",
            got=samples,
            advice=f"Use samples={multiple}.",
        )
