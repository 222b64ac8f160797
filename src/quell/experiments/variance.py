"""How noisy a gradient is: by the paper's measure, and split into draws and points.

Batches B_m and, for each, draws ε_mk give gradients G_mk. By the law of total variance
tr Cov[G] = E_B tr Cov_ε[G | B] + tr Cov_B[E_ε[G | B]]: the draws' part and the points'.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from quell._batches import reshuffle
from quell.experiments.config import Sampling
from quell.experiments.methods import correct, flat
from quell.experiments.problems import PROBLEMS, Problem
from quell.experiments.training import over_seeds
from quell.experiments.units import once

_FRESH = 2  # folded into a seed's key


class Samples(NamedTuple):
    """Fresh gradients at fixed params, and what they were made from.

    Attributes:
      batch: leaves `[M, B, ...]`.
      noise: leaves `[M, K, 1, B, ...]`.
      gradient: Ĝ, leaves `[M, K, ...]`.
    """

    batch: PyTree[Array]
    noise: PyTree[Array]
    gradient: PyTree[Array]


class Variance(NamedTuple):
    """Variances of a gradient.

    Attributes:
      norm: Var‖G‖, the paper's measure.
      draws: the part of tr Cov[G] that is due to the noise.
      points: the part that is due to the choice of the batch.
    """

    norm: Float[Array, ""]
    draws: Float[Array, ""]
    points: Float[Array, ""]


def sampler(problem: Problem, size: Sampling, batch_size: int):
    """`sample(keys, params)`: fresh `Samples` for every seed, compiled once."""
    return _compiled_sampler(problem.name, size, batch_size)


@once
def _compiled_sampler(model: str, size: Sampling, batch_size: int):
    problem = PROBLEMS[model]()
    objective = problem.objective

    def sample(key, params):
        batch_key, noise_key = jax.random.split(jax.random.fold_in(key, _FRESH))
        first = reshuffle(batch_key, 0, size.batches, objective.num_data, batch_size)
        batch = jax.tree.map(lambda leaf: leaf[first], problem.data)
        noise = objective.noise.sample(noise_key, (size.batches, size.draws, 1, batch_size))
        per_draw = jax.vmap(lambda e, b: objective.gradient(params, e, b), (0, None))
        return Samples(batch, noise, jax.vmap(per_draw)(noise, batch))

    return jax.jit(over_seeds(model, sample))


@once
def measurer(model: str, basis: str, hidden: tuple[int, ...]):
    """`measure(state, params, samples)`: variances of Ĝ and, on the same samples, of G̃.

    For every seed, with the coefficients as they stand in the control variate's state.
    """
    problem = PROBLEMS[model]()

    def measure(state, params, samples: Samples) -> tuple[Variance, Variance]:
        one = lambda g, e, b: correct(problem, basis, hidden, g, state, params, e, b)  # noqa: E731
        quieter = jax.vmap(jax.vmap(one, (0, 0, None)))(
            samples.gradient, samples.noise, samples.batch
        )
        return variance(samples.gradient), variance(quieter)

    return jax.jit(over_seeds(model, measure))


def variance(gradient: PyTree[Array]) -> Variance:
    """Unbiased estimates from gradients with leaves `[M, K, ...]`."""
    G = jax.vmap(jax.vmap(flat))(gradient)
    draws, points = total_variance(G)
    norm = jnp.add(*total_variance(jnp.linalg.norm(G, axis=-1)[..., None]))
    return Variance(norm, draws, points)


def total_variance(G: Float[Array, "M K P"]) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The two parts of tr Cov[G]: within batches, and between them without what is within."""
    K = G.shape[1]
    within = G.var(axis=1, ddof=1).mean(0).sum()
    between = G.mean(1).var(axis=0, ddof=1).sum() - within / K
    return within, between
