"""Plain estimators: draws and nothing else, independent, paired or spread evenly."""

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from quell._arguments import checked
from quell._errors import invalid
from quell._tree import batch_size
from quell.estimators._types import Batch, Estimate, Estimator, Sampling, stateless
from quell.objective import Objective


def plain(name: str, sampling: Sampling) -> Estimator:
    """An estimator of draws alone: the gradient of the objective at the draws."""

    def estimate(key, objective: Objective, params, batch: Batch, state):
        noise = sampling.draw(key, objective, batch_size(batch.examples))
        value, gradient = objective.value_and_gradient(params, noise, batch.examples)
        return Estimate(gradient, value, state)

    return Estimator(name, lambda key, objective, params, data: stateless(estimate), sampling)


@checked()
def monte_carlo(draws: int = 1, *, shared: bool = False) -> Estimator:
    """Draw independently: the plain reparameterisation gradient.

    Args:
      draws: S, draws per example.
      shared: one set of draws for the whole batch instead of one per example.
    """
    _check_draws(draws, 1)

    def draw(key, objective, B):
        return objective.sample_noise(key, B, draws=draws, shared=shared)

    return plain(_name("monte_carlo", draws, shared), Sampling(draw))


@checked()
def antithetic(draws: int = 2, *, shared: bool = False) -> Estimator:
    """Draw in pairs, a draw and its mirror image: every odd function of the noise cancels.

    Every draw is distributed as the noise, so the estimate is unbiased for any sampling of
    points. J. M. Hammersley and K. W. Morton, "A new Monte Carlo technique: antithetic variates",
    1956.

    Args:
      draws: S, draws per example, an even number.
      shared: one set of draws for the whole batch instead of one per example.
    """
    _check_draws(draws, 2)

    def draw(key, objective, B):
        reflect = objective.noise.reflect
        if reflect is None:
            raise _lacking(objective, "a mirror image", "Use monte_carlo or symmetric noise.")
        half = objective.sample_noise(key, B, draws=draws // 2, shared=shared)
        mirrored = jax.vmap(jax.vmap(reflect))(half)
        return jax.tree.map(lambda e, m: jnp.concatenate([e, m]), half, mirrored)

    return plain(_name("antithetic", draws, shared), Sampling(draw, balanced=True))


@checked()
def quasi_monte_carlo(draws: int = 8, *, shared: bool = False) -> Estimator:
    """Draw Sobol points, randomised for each example separately: draws that keep their distance.

    The first m = log₂ S binary digits of point s come from the Sobol sequence, xor a random shift
    drawn for each example and dimension; the later digits are random. Each draw is distributed as
    the noise, so the estimate is unbiased, and each elementary interval holds one of the S draws of
    an example. A. B. Owen, "Monte Carlo variance of scrambled net quadrature", 1997. The points
    come from `scipy.stats.qmc`.

    Args:
      draws: S, draws per example, a power of two.
      shared: one set of draws for the whole batch instead of one per example.
    """
    _check_draws(draws, 1)
    if draws & (draws - 1):  # more than one bit set
        raise invalid(
            "draws",
            expected="a power of two, at which Sobol points are balanced",
            got=draws,
            advice=f"Use draws={1 << draws.bit_length()}.",
        )

    def draw(key, objective, B):
        noise = objective.noise
        if noise.from_uniform is None:
            raise _lacking(objective, "a quantile function", "Use monte_carlo or antithetic.")
        shift_key, digits_key = jax.random.split(key)
        points = jnp.asarray(_sobol(draws, noise.size))[:, None]  # a constant of the compiled code
        shape = (1 if shared else B, noise.size)
        shift = jax.random.randint(shift_key, shape, 0, draws)
        digits = jax.random.uniform(digits_key, (draws, *shape))
        u = ((points ^ shift) + digits) / draws  # xor maps elementary intervals to each other
        least = jnp.finfo(u.dtype).eps / 2  # quantiles at 0 and 1 are infinite
        return noise.from_uniform(jnp.clip(u, least, 1 - least))

    return plain(_name("quasi_monte_carlo", draws, shared), Sampling(draw, balanced=True))


@lru_cache
def _sobol(draws: int, dim: int) -> Int[np.ndarray, "S D"]:
    """The first S Sobol points, in units of 1/S."""
    from scipy.stats import qmc  # slow to import

    points = qmc.Sobol(dim, scramble=False).random_base2(draws.bit_length() - 1)
    return np.asarray(points * draws, np.int32)


def _name(factory: str, draws: int, shared: bool) -> str:
    return f"{factory}({draws}{', shared=True' if shared else ''})"


def _lacking(objective: Objective, feature: str, advice: str) -> ValueError:
    return invalid(
        "objective.noise",
        expected=f"noise with {feature}",
        got=f"{objective.noise.name} noise without one",
        advice=advice,
    )


def _check_draws(draws: int, multiple: int) -> None:
    if isinstance(draws, bool) or not isinstance(draws, int) or draws < 1 or draws % multiple:
        raise invalid(
            "draws",
            expected=f"a positive multiple of {multiple}",
            got=draws,
            advice=f"Use draws={multiple}.",
        )
