"""Variances of gradients: fresh batches and, for each batch, fresh draws."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, PyTree

from quell._jit import quick_jit
from quell._tree import take
from quell.diagnostics.variance import nested_parts
from quell.estimators._types import batch_of
from quell.training.batches import reshuffle
from quell_paper.config import BATCH_SIZE, Sampling, Variate
from quell_paper.jobs import cached
from quell_paper.problems import PROBLEMS
from quell_paper.training import over_seeds
from quell_paper.variates import correct, flat, started


class Samples(NamedTuple):
    """Fresh gradients at fixed params, with their batches and their noise.

    Attributes:
      indices: the rows of the batches, `[M, B]`.
      batch: leaves `[M, B, ...]`.
      noise: leaves `[M, K, 1, B, ...]`.
      gradient: Ĝ, leaves `[M, K, ...]`.
    """

    indices: Int[Array, "M B"]
    batch: PyTree[Array]
    noise: PyTree[Array]
    gradient: PyTree[Array]


class Variance(NamedTuple):
    """The variances of a gradient.

    Attributes:
      norm: Var‖G‖, the paper's measure.
      draws: the part of tr Cov[G] that is due to the noise.
      points: the part of tr Cov[G] that is due to the choice of the batch.
      by_entry: the draws' part of each entry of the gradient, `[P]`.
    """

    norm: Float[Array, ""]
    draws: Float[Array, ""]
    points: Float[Array, ""]
    by_entry: Float[Array, " P"]


@cached
def sampler(model: str, size: Sampling) -> Callable[..., Samples]:
    """`sample(keys, params)`: fresh `Samples` for every seed, compiled once."""
    problem = PROBLEMS[model]()
    objective = problem.objective

    def sample(key, params):
        batch_key, noise_key = jax.random.split(key)
        indices = reshuffle(batch_key, 0, size.batches, objective.num_data, BATCH_SIZE)
        batch = take(problem.data, indices)
        noise = objective.noise.sample(noise_key, (size.batches, size.draws, 1, BATCH_SIZE))
        per_draw = jax.vmap(lambda e, b: objective.gradient(params, e, b), (0, None))
        return Samples(indices, batch, noise, jax.vmap(per_draw)(noise, batch))

    return quick_jit(over_seeds(model, sample))


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


@cached
def estimator_measurer(model: str, variate: Variate) -> Callable[..., dict[str, Any]]:
    """`measure(keys, state, params, samples)`: as `measurer`, for an estimator with its own draws.

    The batches are those of the samples.
    """
    problem = PROBLEMS[model]()
    estimate = started(model, variate).estimate

    def measure(key, state, params, samples: Samples) -> dict[str, Any]:
        M, K = jax.tree.leaves(samples.gradient)[0].shape[:2]

        def one(indices, key):
            batch = batch_of(problem.data, indices)
            return estimate(key, problem.objective, params, batch, state).gradient

        per_draw = jax.vmap(one, (None, 0))
        keys = jax.random.split(key, (M, K))
        G = lax.map(lambda pair: per_draw(*pair), (samples.indices, keys))
        return variance_columns(samples.gradient, G)

    return quick_jit(over_seeds(model, measure))


def variance_columns(plain: PyTree[Array], controlled: PyTree[Array]) -> dict[str, Any]:
    """The variances of Ĝ and G̃, leaves `[M, K, ...]`, under their names in tables.

    `noisier` is the share of the gradient's entries whose draws' part control makes larger.
    """
    before, after = variance(plain), variance(controlled)
    columns = {
        f"{name}_{part}": getattr(found, part)
        for name, found in (("plain", before), ("controlled", after))
        for part in ("norm", "draws", "points")
    }
    return columns | {"noisier": jnp.mean(after.by_entry > before.by_entry)}


def variance(gradient: PyTree[Array]) -> Variance:
    """Unbiased estimates from gradients with leaves `[M, K, ...]`."""
    G = jax.vmap(jax.vmap(flat))(gradient)
    draws, points = nested_parts(G)
    norm = jnp.add(*nested_parts(jnp.linalg.norm(G, axis=-1)[..., None]))
    return Variance(norm, draws, points, G.var(axis=1, ddof=1).mean(0))
