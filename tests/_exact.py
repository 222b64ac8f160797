"""Exact expectations by quadrature and enumeration; tolerances, all in one place."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

import quell

EXACT = 1e-10  # float64, expectations by quadrature
SAME64 = 1e-12  # float64, two ways to compute one number
SAME32 = 1e-5  # float32, the same
STANDARD_ERRORS = 5.0  # for averages of draws


def rule(noise: quell.noise.Noise, order: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes `[order]` and weights for one component of ε, exact for degree ≤ 2·order − 1."""
    if noise.name == "normal":
        x, p = np.polynomial.hermite_e.hermegauss(order)
    elif noise.name == "uniform":
        x, p = np.polynomial.legendre.leggauss(order)
    elif noise.name == "laplace":
        half, p = np.polynomial.laguerre.laggauss(order)
        x, p = np.concatenate([-half, half]), np.concatenate([p, p])
    elif noise.name == "from_moments":  # the tests use an exponential
        x, p = np.polynomial.laguerre.laggauss(order)
    return x, p / p.sum()


def nodes(noise: quell.noise.Noise, order: int, count: int = 1):
    """Every combination of `count` draws: ε `[Q, count, D]` and weights `[Q]`.

    The noise is one vector; Gaussian noise with a mean and a covariance is reached from its own
    standardised draws.
    """
    x, p = rule(noise, order)
    combos = np.array(list(itertools.product(range(len(x)), repeat=count * noise.size)))
    eps = jnp.asarray(x[combos].reshape(-1, count, noise.size))
    if noise.name == "normal":
        eps = unstandardise(noise, eps)
    return eps, jnp.asarray(p[combos].prod(-1))


def unstandardise(noise, z):
    """ε = μ + L z, read off the standardisation: z = L⁻¹(ε − μ)."""
    z0 = noise.standardise(jnp.zeros(noise.size))
    inverse = jax.jacobian(noise.standardise)(jnp.zeros(noise.size))
    return (z - z0) @ jnp.linalg.inv(inverse).T


def expectation(values, weights):
    """Σ_q weights_q values_q, leaf by leaf."""
    return jax.tree.map(lambda v: jnp.tensordot(weights, v, 1), values)


def over_batches_and_draws(gradients, eps, weights, num_data, size):
    """Exact means of `gradients(draw, index)`, a pair: over all mini-batches, and of the first."""

    @jax.jit
    def of_batch(index):
        pair = jax.vmap(lambda draw: gradients(draw, index))(eps)
        return [expectation(side, weights) for side in pair]

    found = [of_batch(index) for index in mini_batches(num_data, size)]
    every = [jax.tree.map(lambda *leaves: sum(leaves) / len(found), *side) for side in zip(*found)]
    return every, found[0]


def max_error(a, b) -> float:
    """The largest difference of two pytrees, relative to the size of the second (at least 1)."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(float(jnp.abs(x - y).max() / jnp.maximum(1.0, jnp.abs(y).max())) for x, y in pairs)


def mini_batches(num_data: int, size: int) -> np.ndarray:
    """Every subset of `size` rows: `[batches, size]`."""
    return np.array(list(itertools.combinations(range(num_data), size)))


def agrees(samples, expected) -> bool:
    """Whether the mean over the first axis lies within a few standard errors of `expected`."""
    samples = np.asarray(samples, np.float64)
    error = samples.std(0, ddof=1) / np.sqrt(len(samples))
    return bool((np.abs(samples.mean(0) - expected) <= STANDARD_ERRORS * error + 1e-7).all())


def total_variance(samples) -> float:
    """The trace of the covariance of pytrees stacked along the first axis."""
    return sum(float(leaf.var(0).sum()) for leaf in jax.tree.leaves(samples))
