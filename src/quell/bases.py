"""Bases w(ε): functions of the noise whose mean is zero.

A basis is evaluated on one draw of one example. A basis may look at the parameters and at the
example too: given both, its mean must still be zero.
"""

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PyTree

from quell._arguments import BASIS, checked
from quell._checks import check_traces
from quell._errors import invalid
from quell.noise import Noise

__all__ = ["concatenate", "custom", "hermite", "linear", "polynomial"]


class Basis(NamedTuple):
    """Functions w(ε) of the noise, each of mean zero.

    Attributes:
      apply: `apply(noise, draw, params, example)` gives w `[D]` for one draw of one example, where
        `noise` is the distribution of the draw.
    """

    apply: Callable[[Noise, PyTree[Array], PyTree[Array], PyTree[Array]], Float[Array, " D"]]


def linear() -> Basis:
    """The basis w(ε) = z, the standardised noise itself."""
    return polynomial(1)


@checked()
def polynomial(order: int) -> Basis:
    """The basis w(ε) = [zᵏ − E[zᵏ]] for k = 1, …, order, component by component.

    Order 2 is the paper's quadratic. The powers fit any noise whose moments are known.
    """

    def apply(noise, draw, params, example):
        z = noise.standardise(draw)
        return jnp.concatenate([z**k - jnp.asarray(noise.moment(k), z.dtype) for k in powers])

    powers = range(1, order + 1)
    return Basis(apply)


@checked()
def hermite(order: int, *, cross: bool = False, odd: bool = True) -> Basis:
    """The orthonormal Hermite polynomials of degree 1, …, order, for Gaussian noise.

    Args:
      order: the highest total degree.
      cross: whether to add products across dimensions, such as z₁z₂: every multi-index of total
        degree at most `order`, which is binomial(D + order, order) − 1 functions.
      odd: whether to keep the functions of odd total degree, which antithetic pairs cancel.
    """
    if not odd and order < 2:
        raise invalid(
            "order", expected="at least 2 without odd degrees", got=order, advice="Use 2."
        )

    def apply(noise, draw, params, example):
        if noise.name != "normal":
            raise invalid(
                "basis",
                expected="a basis for the noise in use",
                got=f"hermite, which is for normal noise, with {noise.name} noise",
                advice="Use quell.bases.polynomial, which takes any noise with known moments.",
            )
        z = noise.standardise(draw)
        degrees = _hermite_degrees(z, order)  # by recurrence, shared by all products
        if not cross:
            return jnp.concatenate([degrees[k] for k in kept])
        indices = [index for total in kept for index in _multi_indices(z.size, total)]
        return jnp.stack([math.prod(degrees[k][i] for i, k in index) for index in indices])

    kept = [k for k in range(1, order + 1) if odd or k % 2 == 0]
    return Basis(apply)


@checked(bases=BASIS)
def concatenate(*bases: Basis) -> Basis:
    """All functions of several bases, one after the other (the paper's Remark 1)."""
    if not bases:
        raise invalid("bases", expected="at least one basis", got="none", advice="Pass one.")

    def apply(noise, draw, params, example):
        return jnp.concatenate([basis.apply(noise, draw, params, example) for basis in bases])

    return Basis(apply)


@checked()
def custom(
    fn: Callable[[PyTree[Array], PyTree[Array], PyTree[Array]], Float[Array, " D"]],
    mean: ArrayLike | Callable[[PyTree[Array], PyTree[Array]], Float[Array, " D"]],
) -> Basis:
    """The basis w(ε) = fn(ε, params, example) − mean, for any function whose mean is known.

    Args:
      fn: maps one draw, the parameters and one example to a vector `[D]`.
      mean: E[fn], an array or a function `mean(params, example)`.

    >>> wave = custom(lambda draw, params, example: jnp.cos(draw), mean=math.exp(-0.5))
    """

    def apply(noise, draw, params, example):
        check_traces("fn", "fn(draw, params, example)", fn, draw, params, example)
        value = jnp.atleast_1d(fn(draw, params, example))
        if value.ndim != 1:
            raise invalid(
                "fn",
                expected="one vector of functions for one draw",
                got=f"shape {value.shape}",
                advice="Flatten the result of fn to one vector.",
            )
        return value - (mean(params, example) if callable(mean) else jnp.asarray(mean, value.dtype))

    return Basis(apply)


def no_basis() -> Basis:
    """A basis without functions, with which only points are controlled and draws are not."""
    return Basis(lambda noise, draw, params, example: noise.standardise(draw)[:0])


def _hermite_degrees(z: Float[Array, " D"], order: int) -> list[Float[Array, " D"]]:
    """He₀(z), …, He_order(z), each divided by √k! so that its variance is one."""
    he = [jnp.ones_like(z), z]
    for k in range(1, order):
        he.append(z * he[k] - k * he[k - 1])  # Heₖ₊₁ = z Heₖ − k Heₖ₋₁
    return [value / math.sqrt(math.factorial(k)) for k, value in enumerate(he)]


def _multi_indices(D: int, total: int) -> list[list[tuple[int, int]]]:
    """Every multi-index of the given total degree, as its nonzero (dimension, degree) pairs."""
    return [
        [(i, chosen.count(i)) for i in sorted(set(chosen))]
        for chosen in itertools.combinations_with_replacement(range(D), total)
    ]
