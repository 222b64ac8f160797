"""Gaussian families for a vector of weights, q(w) = N(m, LLᵀ), against the unit Gaussian prior.

Params are a dict: `mean` m `[d]`, and `scale`. With full covariance `scale` is L itself, packed and
unconstrained, since signs cancel in LLᵀ: a few steps of a fixed size then reach a narrow posterior,
while the logarithm of the diagonal would need hundreds.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, PyTree

from quell._arguments import checked
from quell._checks import check_whole
from quell._errors import invalid

Params = dict[str, Array]


class Block(NamedTuple):
    """The place of one Gaussian, or of several alike, among the leaves.

    Attributes:
      mean, scale: the positions of the two leaves.
      axis: the axis of `mean` that runs over the d weights.
      full: whether `scale` is a packed factor, or else the log of standard deviations.
    """

    mean: int
    scale: int
    axis: int
    full: bool


class Gaussian(NamedTuple):
    """A family of Gaussians over d weights.

    Attributes:
      size: d, the number of weights.
      init: `init(mean, scale)` gives params of mean `[d]` and covariance scale² I, or of N(0, I).
      sample: `sample(params, eps)` gives w = m + Lε `[d]` from one standard normal draw `[d]`.
      kl: `kl(params)`, KL[q ‖ N(0, I)].
      entropy: `entropy(params)`, −E[log q(w)].
      log_density: `log_density(params, w)`, log q(w).
      covariance: `covariance(params)`, LLᵀ `[d, d]`.
    """

    size: int
    init: Callable[..., Params]
    sample: Callable[[Params, Float[Array, " d"]], Float[Array, " d"]]
    kl: Callable[[Params], Float[Array, ""]]
    entropy: Callable[[Params], Float[Array, ""]]
    log_density: Callable[[Params, Float[Array, " d"]], Float[Array, ""]]
    covariance: Callable[[Params], Float[Array, "d d"]]


@checked()
def full_covariance(size: int) -> Gaussian:
    """A family with full covariance: `scale` `[d(d+1)/2]` is the packed lower triangle of L."""
    check_whole("size", size, 1, advice="For example data.dim.")
    d = size

    def init(mean=0.0, scale=1.0):
        return {
            "mean": jnp.broadcast_to(jnp.asarray(mean, float), (d,)),
            "scale": packed_identity(d, scale),
        }

    def sample(params, eps):
        return params["mean"] + cholesky(params["scale"], d) @ eps

    def log_density(params, w):
        z = solve_triangular(cholesky(params["scale"], d), w - params["mean"], lower=True)
        return _standard_log_density(z) - _log_diagonal(params["scale"], d).sum()

    def covariance(params):
        L = cholesky(params["scale"], d)
        return L @ L.T

    return Gaussian(
        size=d,
        init=init,
        sample=sample,
        kl=lambda params: whitened_kl(params["mean"], params["scale"]),
        entropy=lambda params: _entropy(_log_diagonal(params["scale"], d)),
        log_density=log_density,
        covariance=covariance,
    )


@checked()
def mean_field(size: int) -> Gaussian:
    """A family with diagonal covariance: `scale` `[d]` is the log of the standard deviations."""
    check_whole("size", size, 1, advice="For example data.dim.")
    d = size

    def init(mean=0.0, scale=1.0):
        return {
            "mean": jnp.broadcast_to(jnp.asarray(mean, float), (d,)),
            "scale": jnp.full(d, math.log(scale)),
        }

    def kl(params):
        m, log_s = params["mean"], params["scale"]
        return (0.5 * (m**2 + jnp.exp(2 * log_s) - 1) - log_s).sum()

    def log_density(params, w):
        z = (w - params["mean"]) * jnp.exp(-params["scale"])
        return _standard_log_density(z) - params["scale"].sum()

    return Gaussian(
        size=d,
        init=init,
        sample=lambda params, eps: params["mean"] + jnp.exp(params["scale"]) * eps,
        kl=kl,
        entropy=lambda params: _entropy(params["scale"]),
        log_density=log_density,
        covariance=lambda params: jnp.diag(jnp.exp(2 * params["scale"])),
    )


def whitened_kl(mean: Float[Array, " d"], scale: Float[Array, " t"]) -> Float[Array, ""]:
    """The divergence KL[N(m, LLᵀ) ‖ N(0, I)] = ½(mᵀm + tr LLᵀ − d) − log det L, L in `scale`."""
    d = mean.shape[-1]
    trace = (cholesky(scale, d) ** 2).sum()
    return 0.5 * ((mean**2).sum() + trace - d) - _log_diagonal(scale, d).sum()


def cholesky(scale: Float[Array, " t"], d: int) -> Float[Array, "d d"]:
    """The factor L from its packed form."""
    return jnp.tril(_square(scale, d))  # the upper triangle holds copies


def packed(L: Float[Array, "d d"]) -> Float[Array, " t"]:
    """The packed form of a factor: the inverse of `cholesky`, by the same two slices."""
    d = L.shape[0]
    flat, most = jnp.tril(L).reshape(-1), d * (d - 1) // 2
    return jnp.concatenate([jnp.zeros(d, L.dtype), flat[:most]]) + flat[most:][::-1]


def tangent(m, scale, g_m, g_scale) -> tuple[Array, Array, Array, Array]:
    """L, and a gradient in units of q: a = Lᵀg_m, A = tril(Lᵀg_L) below its diagonal, half of that.

    Leaves may have leading axes, with one Gaussian for each entry. With F the Fisher information,
    gᵀF⁻¹g = |a|² + |below|² + 2|x|² for the last three (Tan, 2021).
    """
    unpack = jnp.vectorize(lambda one: cholesky(one, m.shape[-1]), signature="(t)->(d,d)")
    L, g_L = unpack(scale), unpack(g_scale)
    a = jnp.einsum("...ji,...j->...i", L, g_m)
    A = jnp.tril(jnp.einsum("...ki,...kj->...ij", L, g_L))
    diagonal = jnp.diagonal(A, axis1=-2, axis2=-1)
    return L, a, A * (1 - jnp.eye(m.shape[-1], dtype=A.dtype)), 0.5 * diagonal


def packed_each(L: Float[Array, "*n d d"]) -> Float[Array, "*n t"]:
    """The packed form of each of several factors."""
    return jnp.vectorize(packed, signature="(d,d)->(t)")(L)


def whitened(blocks: list[Block], params: PyTree[Array], gradient: PyTree[Array]) -> PyTree[Array]:
    """F^(-½)g, a tree like params: the gradient in standard deviations of q.

    Its square is gᵀF⁻¹g, with F the Fisher information of q. Leaves outside the blocks stay.
    """
    theta, new = jax.tree.leaves(params), jax.tree.leaves(gradient)
    for i, j, axis, full in blocks:
        if full:
            m, g_m = jnp.moveaxis(theta[i], axis, -1), jnp.moveaxis(new[i], axis, -1)
            _, a, below, x = tangent(m, theta[j], g_m, new[j])
            new[i] = jnp.moveaxis(a, -1, axis)
            new[j] = packed_each(below + math.sqrt(2) * x[..., None] * jnp.eye(m.shape[-1]))
        else:  # L diagonal, the exponential of `scale`: x is half the gradient of the log
            new[i], new[j] = jnp.exp(theta[j]) * new[i], math.sqrt(0.5) * new[j]
    return jax.tree.unflatten(jax.tree.structure(params), new)


def gaussian_blocks(tree: PyTree[Any], family: Any = None, axis: int | None = None) -> list[Block]:
    """The blocks among the leaves: siblings called mean and scale, whose shapes fit."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    place = {(path[:-1], _name(path)): i for i, (path, _) in enumerate(leaves)}
    found = []
    for (parent, name), i in place.items():
        j = place.get((parent, "scale"))
        if name == "mean" and j is not None:
            where = f"params{jax.tree_util.keystr(parent)}"
            shapes = jnp.shape(leaves[i][1]), jnp.shape(leaves[j][1])
            found.append(Block(i, j, *_reading(where, *shapes, family, axis)))
    return found


def _name(path: tuple[Any, ...]) -> Any:
    """The last key of a path, whatever the node: a dict, a NamedTuple, a dataclass."""
    return getattr(path[-1], "key", getattr(path[-1], "name", None)) if path else None


def _reading(where: str, mean: tuple, scale: tuple, family: Any, axis: int | None):
    """The axis of the weights and whether L is full: the one pair that fits the shapes."""
    axes = [-1] if len(mean) == 1 else [-1, 0] if axis is None else [axis]
    full = [
        (k, True)
        for k in axes
        if mean and scale == ((*mean[:-1], _t(mean[-1])) if k else (*mean[1:], _t(mean[0])))
    ]
    fits = full * (family is not mean_field)
    if mean and scale == mean and family is not full_covariance:
        fits.append((-1, False))
    if len(fits) == 1:
        return fits[0]
    shapes = f"mean {list(mean)} and scale {list(scale)} in {where}"
    if not fits:
        raise invalid(
            "params",
            expected="scale [..., d(d+1)/2] or [..., d] for mean [..., d]",
            got=shapes,
            advice="Take the params of quell.full_covariance or quell.mean_field.",
        )
    remedy = (
        "axis=-1 or axis=0" if len(full) == 2 else "family=quell.mean_field, or full_covariance"
    )
    raise invalid("params", expected="blocks of one reading", got=shapes, advice=f"Pass {remedy}.")


def _t(d: int) -> int:
    return d * (d + 1) // 2


def _log_diagonal(scale: Float[Array, " t"], d: int) -> Float[Array, " d"]:
    """The logarithms log |diag L| from the packed form."""
    return jnp.log(jnp.abs(jnp.where(jnp.eye(d, dtype=bool), _square(scale, d), 0).sum(-1)))


def packed_identity(d: int, scale: float) -> Float[Array, " t"]:
    """The packed form of L = scale I."""
    packed, entries = np.zeros(d * (d + 1) // 2), np.arange(d * (d + 1) // 2)
    packed[np.concatenate([entries[d:], entries[::-1]]).reshape(d, d).diagonal()] = scale
    return jnp.asarray(packed, float)


def _square(scale: Float[Array, " t"], d: int) -> Float[Array, "d d"]:
    """A square whose lower triangle holds each of the d(d+1)/2 entries once.

    The entries from d on, followed by all entries reversed, are d² numbers. Two slices replace a
    gather, whose gradient would be a slow scatter.
    """
    return jnp.concatenate([scale[d:], scale[::-1]]).reshape(d, d)


def _entropy(log_scale: Float[Array, " d"]) -> Float[Array, ""]:
    return log_scale.sum() + 0.5 * log_scale.shape[0] * (1 + math.log(2 * math.pi))


def _standard_log_density(z: Float[Array, " d"]) -> Float[Array, ""]:
    return -0.5 * (z**2).sum() - 0.5 * z.shape[0] * math.log(2 * math.pi)
