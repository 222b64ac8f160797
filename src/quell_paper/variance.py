"""Variances of gradients: fresh batches and, for each batch, fresh draws."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from quell._tree import take
from quell.diagnostics.variance import nested_parts
from quell.training.batches import reshuffle
from quell_paper.config import Sampling, Variate
from quell_paper.jobs import cached
from quell_paper.problems import PROBLEMS
from quell_paper.training import over_seeds
from quell_paper.variates import correct, flat

_FRESH = 2  # folded into a seed's key: other draws than those of the lessons


class Samples(NamedTuple):
    """Fresh gradients at fixed params, with their batches and their noise.

    Attributes:
      batch: leaves `[M, B, ...]`.
      noise: leaves `[M, K, 1, B, ...]`.
      gradient: Ĝ, leaves `[M, K, ...]`.
    """

    batch: PyTree[Array]
    noise: PyTree[Array]
    gradient: PyTree[Array]


class Variance(NamedTuple):
    """The variances of a gradient.

    Attributes:
      norm: Var‖G‖, the paper's measure.
      draws: the part of tr Cov[G] that is due to the noise.
      points: the part of tr Cov[G] that is due to the choice of the batch.
    """

    norm: Float[Array, ""]
    draws: Float[Array, ""]
    points: Float[Array, ""]


@cached
def sampler(model: str, size: Sampling, batch_size: int) -> Callable[..., Samples]:
    """`sample(keys, params)`: fresh `Samples` for every seed, compiled once."""
    problem = PROBLEMS[model]()
    objective = problem.objective

    def sample(key, params):
        batch_key, noise_key = jax.random.split(jax.random.fold_in(key, _FRESH))
        indices = reshuffle(batch_key, 0, size.batches, objective.num_data, batch_size)
        batch = take(problem.data, indices)
        noise = objective.noise.sample(noise_key, (size.batches, size.draws, 1, batch_size))
        per_draw = jax.vmap(lambda e, b: objective.gradient(params, e, b), (0, None))
        return Samples(batch, noise, jax.vmap(per_draw)(noise, batch))

    return jax.jit(over_seeds(model, sample))


@cached
def measurer(model: str, variate: Variate) -> Callable[..., dict[str, Any]]:
    """`measure(state, params, samples)`: variances of Ĝ and, on the same samples, of G̃.

    Each variance is a column `[seeds]`; the coefficients come from the control variate's state.
    """
    problem = PROBLEMS[model]()

    def measure(state, params, samples: Samples) -> dict[str, Any]:
        def controlled(gradient, noise, batch):
            return correct(problem, variate, gradient, state, params, noise, batch)

        per_draw = jax.vmap(controlled, (0, 0, None))
        G_controlled = jax.vmap(per_draw)(samples.gradient, samples.noise, samples.batch)
        return variance_columns(samples.gradient, G_controlled)

    return jax.jit(over_seeds(model, measure))


def variance_columns(plain: PyTree[Array], controlled: PyTree[Array]) -> dict[str, Any]:
    """The variances of Ĝ and G̃, leaves `[M, K, ...]`, under their names in tables."""
    return {
        f"{name}_{part}": value
        for name, gradient in (("plain", plain), ("controlled", controlled))
        for part, value in variance(gradient)._asdict().items()
    }


def variance(gradient: PyTree[Array]) -> Variance:
    """Unbiased estimates from gradients with leaves `[M, K, ...]`."""
    G = jax.vmap(jax.vmap(flat))(gradient)
    draws, points = nested_parts(G)
    norm = jnp.add(*nested_parts(jnp.linalg.norm(G, axis=-1)[..., None]))
    return Variance(norm, draws, points)
