"""Natural gradients for Gaussian families: steps measured in the standard deviations of q itself.

For q(w) = N(m, LLᵀ), with a = Lᵀg_m and A = tril(Lᵀg_L), its diagonal halved, the inverse Fisher
information turns the gradient (g_m, g_L) into (La, LA) (Tan, 2021). One step of rate ρ is

    L ← L M⁻¹,          MᵀM = I + ρ(A + Aᵀ) to second order, M lower triangular
    m ← m − ρ LLᵀg_m    with the new L

The precision (LLᵀ)⁻¹ is linear in the gradient, so that noise of mean zero leaves it where it is:
without the second order, noise alone narrows q, and a narrow q finds back slowly. The length of a
step in the metric of the Fisher information is ρ (|a|² + |A|² + |diag A|²)^½; half its square is
the divergence between the old and the new q, in nats. The rate of a Gaussian is such that a
gradient of the usual length gives a step of length s, the bound. The usual length is that of the
gradients before this one: a rate that depended on the gradient itself would bias the step.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, Int, PyTree

from quell import _tree
from quell._arguments import checked
from quell._checks import check_whole
from quell._errors import invalid
from quell.gaussian import (
    Block,
    Gaussian,
    full_covariance,
    gaussian_blocks,
    mean_field,
    packed_each,
    tangent,
)

_LEAST = 1e-3  # the share of the first bound that is left at the end, so that a longer run moves
_MEMORY = 10  # gradients behind the usual length
_REACH = 1.5  # a step is never so many times longer than the bound
_SHRINK = 0.8  # a step leaves this share of a precision at least: wide q make wild gradients

Scalar = float | Float[Array, ""] | Callable[[Int[Array, ""]], Float[Array, ""]]


class NaturalGradientState(NamedTuple):
    """The state of `natural_gradient`.

    Attributes:
      step: the number of updates so far `[]`.
      skipped: the number of updates that moved nothing, since a gradient was not finite `[]`.
      usual: the logarithm of the usual length of each Gaussian's gradient, for each block.
      others: the state of the optimiser of all other leaves.
    """

    step: Int[Array, ""]
    skipped: Int[Array, ""]
    usual: tuple[Float[Array, "*n"], ...]
    others: PyTree[Array]


@checked(num_steps=None, axis=None)
def natural_gradient(
    num_steps: int | None,
    *,
    rate: Scalar = 0.2,
    bound: Scalar = 1.0,
    others: optax.GradientTransformation | None = None,
    family: Callable[[int], Gaussian] | None = None,
    axis: int | None = None,
) -> optax.GradientTransformation:
    """An optax optimiser that steps along natural gradients of Gaussian families.

    A block is a dict (or another node) with leaves `mean` `[..., d]` and `scale`, either
    `[..., d(d+1)/2]` as in `quell.full_covariance` or `[..., d]` as in `quell.mean_field`, at any
    depth of the params. A layer of the deep Gaussian process, whose mean is `[d, ...]`, is one too.
    It profits from quiet gradients; docs/natural_gradient.md says where Adam ends nearer.

    Args:
      num_steps: T, the steps over which a bound given as a number falls by a cosine to a thousandth
        of it. None: it does not fall.
      rate: ρ, a number or a schedule. It hardly matters while the bound is active, which is as long
        as there is noise.
      bound: s, the usual length of a step of a Gaussian in its own standard deviations, 1.5 times
        which no step exceeds: the number from which it falls, or a schedule, taken as it is. More
        than 3 can throw a run.
      others: the optimiser of leaves outside the blocks. By default there must be none; within
        `optax.partition` the leaves of other partitions do not count.
      family: `quell.full_covariance` or `quell.mean_field`, for blocks that could be either, which
        are those with d = 1.
      axis: the axis of `mean` that runs over the d weights, −1 or 0, for blocks of as many
        Gaussians as weights, whose shapes leave it open.

    >>> import quell
    >>> params = quell.full_covariance(3).init()
    >>> optimizer = natural_gradient(num_steps=1000)
    >>> optimizer.init(params).step.item()
    0
    """
    _check_arguments(num_steps, rate, bound, family, axis)

    def find(tree):
        return gaussian_blocks(tree, family, axis)

    inner = optax.with_extra_args_support(
        optax.masked(
            optax.identity() if others is None else others, lambda tree: _strays(tree, find)
        )
    )

    def init(params):
        if others is None:
            _refuse_strays(params, find)
        theta, none = jax.tree.leaves(params), jnp.zeros((), int)
        usual = tuple(jnp.zeros_like(theta[b.mean].sum(b.axis)) for b in find(params))
        return NaturalGradientState(none, none, usual, inner.init(params))

    def update(updates, state, params=None, **extra):
        if params is None:
            raise invalid(
                "params",
                expected="the current parameters, whose scales are the metric",
                got="None",
                advice="Call update(grads, state, params).",
            )
        updates, new_others = inner.update(updates, state.others, params, **extra)
        s, rho = _at(bound, state.step), _at(rate, state.step)
        if num_steps is not None and not callable(bound):
            s = s * _cosine(state.step, num_steps)
        grads, treedef = jax.tree.flatten(updates)
        theta = jax.tree.leaves(params)
        taken = state.step - state.skipped
        finite, new, usual = jnp.asarray(True), list(grads), []
        blocks = find(params)
        for block, before in zip(blocks, state.usual):
            i, j = block.mean, block.scale
            step = _full_step if block.full else _mean_field_step
            known = jnp.where(taken > 0, jnp.exp(before), 0)
            rates = partial(_rates, rho, s, known)
            new[i], new[j], length = step(
                theta[i], theta[j], grads[i], grads[j], rates, axis=block.axis
            )
            finite &= jnp.isfinite(length).all()
            logarithm = jnp.log(jnp.maximum(length, jnp.finfo(length.dtype).tiny))
            usual.append(before + (logarithm - before) / jnp.minimum(taken + 1, _MEMORY))
        inside = {i for block in blocks for i in (block.mean, block.scale)}
        for i in set(range(len(grads))) - inside:
            finite &= jnp.isfinite(grads[i]).all()
        new = [jnp.where(finite, one, 0).astype(old.dtype) for one, old in zip(new, grads)]
        kept = _tree.where(finite, (tuple(usual), new_others), (state.usual, state.others))
        skipped = state.skipped + ~finite
        return treedef.unflatten(new), NaturalGradientState(state.step + 1, skipped, *kept)

    return optax.GradientTransformationExtraArgs(init, update)


def _rates(rho, s, usual: Float[Array, "*n"], length: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """The rate of each Gaussian: a step of the usual length is not longer than s, none by far."""
    usual = jnp.where(usual > 0, usual, length)  # of the first step its own
    longest = jnp.maximum(usual, length / _REACH)
    return jnp.where(rho * longest > s, s / longest, rho).astype(length.dtype)


def _full_step(mean, scale, g_mean, g_scale, rates, *, axis):
    """The change of mean and packed factor, and the length of the natural gradient."""
    m, g_m = jnp.moveaxis(mean, axis, -1), jnp.moveaxis(g_mean, axis, -1)
    L, a, below, x = tangent(m, scale, g_m, g_scale)
    length = _length(a, below.reshape(*x.shape[:-1], -1), math.sqrt(2) * x)
    rho = rates(length)[..., None]
    B = rho[..., None] * below
    C = jnp.einsum("...ki,...kj->...ij", B, B)
    root = jnp.sqrt(_kept(2 * rho * x - jnp.diagonal(C, axis1=-2, axis2=-1)))
    eye = jnp.eye(m.shape[-1], dtype=L.dtype)
    M = jnp.tril(B - C, -1) / root[..., None] + root[..., None] * eye
    new = jnp.swapaxes(solve_triangular(M, jnp.swapaxes(L, -1, -2), trans=1, lower=True), -1, -2)
    change = -rho * jnp.einsum("...ij,...kj,...k->...i", new, new, g_m, optimize="optimal")
    return jnp.moveaxis(change, -1, axis), packed_each(new - L), length


def _mean_field_step(mean, scale, g_mean, g_scale, rates, *, axis):
    """The same with L diagonal, the exponential of `scale`: A is half the gradient of the log."""
    length = _length(jnp.exp(scale) * g_mean, math.sqrt(0.5) * g_scale)
    rho = rates(length)[..., None]
    change = -0.5 * jnp.log(_kept(rho * g_scale))
    return -rho * jnp.exp(2 * (scale + change)) * g_mean, change, length


def _kept(change: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
    """The share of a precision that a relative change leaves: 1 + change, but never too little."""
    return jnp.maximum(1 + change, _SHRINK)


def _length(*parts: Float[Array, "*n _"]) -> Float[Array, "*n"]:
    """The square root of the sum of all squares along the last axis, which do not overflow."""
    every = jnp.concatenate(parts, -1)
    largest = jnp.abs(every).max(-1)
    unit = jnp.where(largest > 0, largest, 1)
    return unit * jnp.sqrt(((every / unit[..., None]) ** 2).sum(-1))


def _at(value: Scalar, step: Int[Array, ""]) -> Any:
    return value(step) if callable(value) else value


def _cosine(step: Int[Array, ""], num_steps: Any) -> Float[Array, ""]:
    """The share of the bound after some of the steps: from one to `_LEAST`, and no less."""
    done = jnp.minimum(step / num_steps, 1)
    return _LEAST + (1 - _LEAST) * 0.5 * (1 + jnp.cos(math.pi * done))


def _strays(tree: PyTree[Any], find: Callable[[PyTree[Any]], list[Block]]) -> PyTree[bool]:
    """Whether each leaf lies outside the blocks."""
    inside = {i for block in find(tree) for i in (block.mean, block.scale)}
    leaves, treedef = jax.tree.flatten(tree)
    return treedef.unflatten([i not in inside for i in range(len(leaves))])


def _refuse_strays(params: PyTree[Any], find: Callable[[PyTree[Any]], list[Block]]) -> None:
    paths = jax.tree_util.tree_flatten_with_path(_strays(params, find))[0]
    strays = [f"params{jax.tree_util.keystr(path)}" for path, stray in paths if stray]
    if strays:
        raise invalid(
            "params",
            expected="leaves mean and scale of Gaussian families alone",
            got=", ".join(strays[:3]) + (", ..." if len(strays) > 3 else ""),
            advice="Pass others=optax.adam(1e-2) for these leaves, or use optax.partition.",
        )


def _check_arguments(num_steps: Any, rate: Any, bound: Any, family: Any, axis: Any) -> None:
    """Refuse bad numbers; `optax.inject_hyperparams` passes traced ones, which cannot be read."""
    if num_steps is not None and not isinstance(num_steps, jax.Array):
        check_whole("num_steps", num_steps, 1, advice="Give the number of steps of the run.")
    for name, value, example in (("rate", rate, 0.2), ("bound", bound, 1.0)):
        number = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
        if not (number or callable(value) or isinstance(value, jax.Array)):
            raise invalid(
                name,
                expected="a positive number or a schedule",
                got=repr(value),
                advice=f"Try {name}={example}.",
            )
    if family not in (None, full_covariance, mean_field):
        raise invalid(
            "family",
            expected="quell.full_covariance or quell.mean_field",
            got=repr(family),
            advice="Leave it out unless d = 1.",
        )
    if not (axis is None or (isinstance(axis, int) and axis in (-1, 0))):
        raise invalid(
            "axis", expected="-1 or 0", got=repr(axis), advice="Leave it out unless asked."
        )
