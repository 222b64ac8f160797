"""Base noise ε: the distribution of one example's draw, with its sampler and its moments.

A `Noise` is the distribution of the draw ε of one example. Its shape may be a pytree of shapes; the
bases see the draw as one flat vector z of D standardised components.
"""

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Float, Key, PyTree

from quell._arguments import checked, finite_array
from quell._checks import check_number
from quell._errors import invalid
from quell._tree import is_shape, shape_leaves

__all__ = ["from_moments", "laplace", "normal", "uniform"]


class Noise(NamedTuple):
    """The distribution of one example's draw ε.

    Attributes:
      name: the family, for error messages and for bases that only fit one family.
      shape: the shape of one draw, or a pytree of shapes.
      sample: `sample(key, leading)` gives draws with leaves `[*leading, *shape]`.
      standardise: maps one draw to a flat vector z `[D]` of uncorrelated components.
      moment: `moment(k)` gives E[zᵏ], a scalar or one value per component `[D]`.
      reflect: maps a draw to its mirror image of equal density; None without symmetry.
      from_uniform: maps uniforms `[..., D]` on (0, 1) to draws `[..., *shape]`, or None.
    """

    name: str
    shape: PyTree[Any]
    sample: Callable[[Key[Array, ""], tuple[int, ...]], PyTree[Array]]
    standardise: Callable[[PyTree[Array]], Float[Array, " D"]]
    moment: Callable[[int], ArrayLike]
    reflect: Callable[[PyTree[Array]], PyTree[Array]] | None = None
    from_uniform: Callable[[Float[Array, "... D"]], PyTree[Array]] | None = None

    @property
    def size(self) -> int:
        """D, the number of scalars in one draw."""
        return sum(math.prod(s) for s in shape_leaves(self.shape))


@checked(mean=finite_array, covariance=finite_array)
def normal(
    shape: PyTree[Any], mean: ArrayLike | None = None, covariance: ArrayLike | None = None
) -> Noise:
    """Gaussian noise; standard normal unless `mean` or `covariance` is given.

    With a mean μ or covariance Σ = LLᵀ (for one vector of noise), ε = μ + L z, z ~ N(0, I). Bases
    work on z, so every basis for standard normal noise serves any Gaussian.

    >>> normal(3).size, normal({"weights": (2, 4), "bias": 1}).size
    (3, 9)
    """
    shape = _as_shape(shape)
    if mean is None and covariance is None:
        return _independent(
            "normal", shape, jax.random.normal, _normal_moment, jax.scipy.stats.norm.ppf
        )
    if not is_shape(shape) or len(shape) != 1:
        raise invalid(
            "shape",
            expected="one vector, such as normal(3), when mean or covariance is given",
            got=shape,
            advice="Standardise the noise inside the loss instead, or ravel it to one vector.",
        )
    (D,) = shape
    mu = jnp.zeros(D) if mean is None else jnp.asarray(mean, float)
    sigma = jnp.eye(D) if covariance is None else jnp.asarray(covariance, float)
    if mu.shape != (D,) or sigma.shape != (D, D):
        raise invalid(
            "mean, covariance",
            expected=f"shapes ({D},) and ({D}, {D})",
            got=f"{mu.shape} and {sigma.shape}",
            advice="Give one mean per dimension and a full covariance matrix.",
        )
    L = jnp.linalg.cholesky(sigma)
    if not bool(jnp.isfinite(L).all()):
        raise invalid(
            "covariance",
            expected="a positive definite matrix",
            got=covariance,
            advice="Add a small multiple of the identity.",
        )

    def transform(z):
        return mu + z @ L.T

    return Noise(
        name="normal",
        shape=shape,
        sample=lambda key, leading: transform(jax.random.normal(key, (*leading, D))),
        standardise=lambda eps: jax.scipy.linalg.solve_triangular(L, eps - mu, lower=True),
        moment=_normal_moment,
        reflect=lambda eps: 2 * mu - eps,
        from_uniform=lambda u: transform(jax.scipy.stats.norm.ppf(u)),
    )


@checked(low=check_number, high=check_number)
def uniform(shape: PyTree[Any], low: float = -1.0, high: float = 1.0) -> Noise:
    """Uniform noise on [low, high]; standardised to unit variance."""
    if not low < high:
        raise invalid("low, high", expected="low < high", got=(low, high), advice="Swap the two.")
    centre, half = (low + high) / 2, (high - low) / 2
    unit = half / math.sqrt(3)  # the standard deviation of a uniform

    def draw(key, shape):
        return jax.random.uniform(key, shape, minval=low, maxval=high)

    def moment(k):
        return 0.0 if k % 2 else 3.0 ** (k / 2) / (k + 1)

    return _independent(
        "uniform", shape, draw, moment, lambda u: low + (high - low) * u, centre, unit
    )


@checked()
def laplace(shape: PyTree[Any], loc: float = 0.0, scale: float = 1.0) -> Noise:
    """Laplace noise; standardised to unit variance."""
    if not scale > 0:
        raise invalid("scale", expected="a positive number", got=scale, advice="Use scale > 0.")
    unit = scale * math.sqrt(2)  # the standard deviation

    def draw(key, shape):
        return loc + scale * jax.random.laplace(key, shape)

    def moment(k):
        return 0.0 if k % 2 else math.factorial(k) / 2.0 ** (k / 2)

    def quantile(u):
        return loc - scale * jnp.sign(u - 0.5) * jnp.log1p(-2 * jnp.abs(u - 0.5))

    return _independent("laplace", shape, draw, moment, quantile, loc, unit)


@checked()
def from_moments(
    shape: PyTree[Any],
    sample: Callable[[Key[Array, ""], tuple[int, ...]], Array],
    moments: Sequence[ArrayLike],
) -> Noise:
    """Noise of any distribution with independent components and known raw moments E[εᵏ], k ≥ 1.

    `sample(key, shape)` draws an array of the given shape. A basis that needs a moment beyond the
    given moments raises an error.

    >>> exponential = from_moments(2, jax.random.exponential, moments=[1.0, 2.0, 6.0, 24.0])
    >>> exponential.moment(3)
    6.0
    """

    def moment(k):
        if k > len(moments):
            raise invalid(
                "moments",
                expected=f"the moment of order {k}",
                got=f"{len(moments)} moments",
                advice="Give more moments to from_moments, or use a basis of lower order.",
            )
        return moments[k - 1]

    noise = _independent("from_moments", shape, sample, moment, None)
    return noise._replace(reflect=None)  # moments do not tell symmetry


def _as_shape(shape: PyTree[Any]) -> PyTree[Any]:
    """The shape with every int as a one-tuple; anything else is refused."""

    def one(node):
        if not is_shape(node):
            raise invalid(
                "shape",
                expected="an int, a tuple of ints, or a pytree of tuples",
                got=repr(node),
                advice="For example normal(3) or normal({'weights': (2, 4), 'bias': 1}).",
            )
        return (node,) if isinstance(node, int) else node

    return jax.tree.map(one, shape, is_leaf=is_shape)


def _normal_moment(k: int) -> float:
    return 0.0 if k % 2 else float(math.prod(range(k - 1, 0, -2)))  # (k − 1)!!


def _independent(name, shape, draw, moment, quantile, centre=0.0, unit=1.0) -> Noise:
    """Noise of independent components with one distribution, given by its draw and moments."""
    shape = _as_shape(shape)
    leaves, treedef = jax.tree.flatten(shape, is_leaf=is_shape)
    sizes = [math.prod(s) for s in leaves]

    def sample(key, leading):
        keys = [key] if len(leaves) == 1 else jax.random.split(key, len(leaves))
        return treedef.unflatten([draw(k, (*leading, *s)) for k, s in zip(keys, leaves)])

    def standardise(eps):
        return (ravel_pytree(eps)[0] - centre) / unit

    def from_uniform(u):
        ends = list(accumulate(sizes))[:-1]
        parts = jnp.split(quantile(u), ends, axis=-1)
        return treedef.unflatten([p.reshape(*u.shape[:-1], *s) for p, s in zip(parts, leaves)])

    return Noise(
        name=name,
        shape=shape,
        sample=sample,
        standardise=standardise,
        moment=moment,
        reflect=lambda eps: jax.tree.map(lambda e: 2 * centre - e, eps),
        from_uniform=None if quantile is None else from_uniform,
    )
