"""The bound in float64: by quadrature where the model allows, otherwise with many fixed draws.

Every evaluator has two sides. `full` is the negative ELBO on all of the data. `rough` ranks the
runs of the tuning: where the optimum θ* is known it is the gap on a subset of the rows, minus its
linear part at θ*, whose sum over all rows is zero; the rest is quadratic, and few rows tell it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.optimize
from jax.flatten_util import ravel_pytree

import quell
from quell.gaussian import cholesky, packed, whitened_kl

NODES = 16
CHUNK = 2**20  # the most terms of a sum at once
ROUGH = 4096  # rows


class Bound(NamedTuple):
    """The ways to evaluate one problem.

    Attributes:
      value: `value(params, data)`, the negative ELBO without noise, or None. A sum over rows and
        the KL divergence.
      draws: beside `value` None: draws per row of the full evaluation.
      rough_rows, rough_draws: the same for the ranking.
      model: another model with the same bound, whose draws are less noisy.
      prior: `prior(params)`, the part of `value` that is no sum over rows.
      aligned: `aligned(params, optimum)`, the same distribution nearest to the optimum's params.
    """

    value: Callable | None
    draws: int = 0
    rough_rows: int = ROUGH
    rough_draws: int = 0
    model: Any = None
    prior: Callable = lambda params: 0.0
    aligned: Callable = lambda params, optimum: params


def by_draws(draws: int, rough_rows: int, rough_draws: int, model: Any = None) -> Bound:
    """The objective with fixed paired draws."""
    return Bound(None, draws, rough_rows, rough_draws, model)


def logistic(z, sd, y):
    """E[softplus(z + sd ε)] − y z by quadrature."""
    at, weight = np.polynomial.hermite_e.hermegauss(NODES)
    weight = weight / weight.sum()
    return jax.nn.softplus(z[:, None] + sd[:, None] * at) @ weight - y * z


def poisson(z, sd, y):
    """E[exp(z + sd ε)] − y z + log y!, exactly."""
    return jnp.exp(z + 0.5 * sd**2) - y * z + jax.scipy.special.gammaln(y + 1)


def linear(expected: Callable, family: Callable) -> Bound:
    """A model of wᵀx: its expected loss is a function of the mean and deviation of wᵀx."""
    full = family is quell.full_covariance

    def prior(params):
        if full:
            return whitened_kl(params["mean"], params["scale"])
        return family(params["mean"].shape[0]).kl(params)

    def value(params, data):
        x = data["x"]
        if full:
            factor = cholesky(params["scale"], x.shape[1])
            sd = jnp.sqrt(((x @ factor) ** 2).sum(1))
        else:
            sd = jnp.sqrt(x**2 @ jnp.exp(2 * params["scale"]))
        return expected(x @ params["mean"], sd, data["y"]).sum()

    def aligned(params, optimum):
        if not full:
            return params
        d = params["mean"].shape[0]  # the sign of a column of L is free
        L, best = cholesky(params["scale"], d), cholesky(optimum["scale"], d)
        signs = jnp.sign(jnp.diagonal(L)) * jnp.sign(jnp.diagonal(best))
        return params | {"scale": packed(L * jnp.where(signs == 0, 1, signs))}

    return Bound(value, prior=prior, aligned=aligned)


def crossed(levels: tuple[int, ...], nodes: tuple[int, int] = (6, 12)) -> Bound:
    """Two crossed factors with logits: given both spreads the logit is Gaussian."""
    few, few_weights = np.polynomial.hermite_e.hermegauss(nodes[0])
    many, weights = np.polynomial.hermite_e.hermegauss(nodes[1])
    few_weights, weights = few_weights / few_weights.sum(), weights / weights.sum()
    starts = np.array([3, 3 + levels[0]])

    def value(params, data):
        m, s = params["mean"], jnp.exp(params["scale"])
        at = starts + data["levels"]
        effect, spread = m[at], s[at]  # [N, 2]
        tau = jnp.exp(m[1:3] + s[1:3] * few[:, None])  # [few, 2]
        u, v = jnp.meshgrid(tau[:, 0], tau[:, 1], indexing="ij")
        both = jnp.outer(few_weights, few_weights)

        def one_row(effect, spread, y):
            z = m[0] + u * effect[0] + v * effect[1]
            sd = jnp.sqrt(s[0] ** 2 + (u * spread[0]) ** 2 + (v * spread[1]) ** 2)
            softplus = jax.nn.softplus(z[..., None] + sd[..., None] * many) @ weights
            return (both * (softplus - y * z)).sum()

        return jax.vmap(one_row)(effect, spread, data["y"]).sum()

    size = 3 + sum(levels)
    return Bound(value, prior=quell.mean_field(size).kl, rough_rows=2048)


class Evaluator(NamedTuple):
    """The compiled bound of a problem.

    Attributes:
      full: `full(stacked)`, the bound of params with a leading axis, `[T]` in float64.
      rough: the same for the ranking; a gap if the optimum is known.
      optimum: the least bound, or None.
      best: its params.
    """

    full: Callable[[Any], np.ndarray]
    rough: Callable[[Any], np.ndarray]
    optimum: float | None
    best: Any


def evaluator(problem: Any, found: Any = None) -> Evaluator:
    """The evaluator of a problem; `found` are params of the optimum from an earlier call."""
    with jax.enable_x64(True):
        data = jax.tree.map(_double, problem.data)
        if problem.bound.value is None:
            return _from_draws(problem, data)
        return _exact(problem, data, found)


def _exact(problem, data, found) -> Evaluator:
    value, prior, aligned = problem.bound.value, problem.bound.prior, problem.bound.aligned
    N = problem.objective.num_data
    order = np.random.default_rng(1).permutation(N)

    def full(params, data):
        return _by_chunks(value, params, data) + prior(params)

    if found is None:
        found = _optimum(full, problem, data)
    best = jax.tree.map(_double, found)

    def gap(some):
        """The gap from some rows, without its linear part at the optimum."""
        few, scale = jax.tree.map(lambda y: y[order[:some]], data), N / min(N, some)

        def share(p, few):
            return scale * _by_chunks(value, p, few) + prior(p)

        least, slope = jax.jit(jax.value_and_grad(share))(best, few)

        def above(params, few):
            params = aligned(params, best)
            moved = jax.tree.map(lambda g, p, b: (g * (p - b)).sum(), slope, params, best)
            return share(params, few) - least - sum(jax.tree.leaves(moved))

        return _mapped(above, few)

    optimum = float(jax.jit(full)(best, data))
    judge = _mapped(full, data)
    if problem.judged < N:
        nearly = gap(problem.judged)
        judge = lambda stacked: optimum + nearly(stacked)  # noqa: E731
    return Evaluator(judge, gap(problem.bound.rough_rows), optimum, found)


def _optimum(full, problem, data):
    """The params of the least bound: on some rows at first, then on all."""
    N = problem.objective.num_data
    start = jax.tree.map(_double, problem.init(jax.random.key(0)))
    sub = np.random.default_rng(2).permutation(N)[:20_000]
    few, share = jax.tree.map(lambda y: y[sub], data), N / min(N, 20_000)
    value, prior = problem.bound.value, problem.bound.prior
    flat, unravel = ravel_pytree(start)

    @jax.jit
    def on_few(flat, few):
        return jax.value_and_grad(lambda v: share * value(unravel(v), few) + prior(unravel(v)))(
            flat
        )

    def minimised(function, flat, data, steps):
        return scipy.optimize.minimize(
            lambda v: [np.asarray(e, float) for e in function(v, data)], flat, jac=True,
            method="L-BFGS-B",
            options={"maxiter": steps, "ftol": 1e-15, "gtol": 1e-9, "maxcor": 30},
        ).x  # fmt: skip

    flat = minimised(on_few, flat, few, 3000)
    params = unravel(jnp.asarray(flat))
    if N > 20_000 or "scale" in params:
        step = jax.jit(jax.value_and_grad(full))
        if params["scale"].shape != params["mean"].shape:  # natural steps are nearly Newton's
            optimizer = quell.natural_gradient(None, rate=1.0, bound=100.0)
            state = optimizer.init(params)
            for _ in range(6):
                updates, state = optimizer.update(step(params, data)[1], state, params)
                params = optax.apply_updates(params, updates)
        else:
            every = jax.jit(jax.value_and_grad(lambda v, data: full(unravel(v), data)))
            params = unravel(jnp.asarray(minimised(every, ravel_pytree(params)[0], data, 300)))
    return jax.tree.map(np.asarray, params)


def _from_draws(problem, data) -> Evaluator:
    N, bound = problem.objective.num_data, problem.bound
    objective = problem.objective if bound.model is None else bound.model.objective(N)
    rows = np.random.default_rng(1).permutation(N)[: min(N, bound.rough_rows)]

    def prepared(rows, draws, seed):
        with jax.enable_x64(False):
            half = objective.sample_noise(jax.random.key(seed), len(rows), draws=draws // 2)
        half = jax.tree.map(lambda e: np.moveaxis(np.asarray(e, np.float64), 0, 1), half)
        noise = jax.tree.map(lambda e: jnp.asarray(np.concatenate([e, -e], 1)), half)
        return {"data": jax.tree.map(lambda y: y[rows], data), "noise": noise}  # [rows, S, ...]

    def losses(params, seen):
        one = jax.vmap(objective.loss, (None, 0, None))
        return jax.vmap(one, (None, 0, 0))(params, seen["noise"], seen["data"]).mean(1).sum()

    def value(params, seen):
        count = jax.tree.leaves(seen)[0].shape[0]
        total = _by_chunks(losses, params, seen, 1024) * (N / count)
        return total + (objective.regulariser(params) if objective.regulariser else 0)

    every = prepared(np.arange(N), bound.draws, 1)
    return Evaluator(
        _mapped(value, every), _mapped(value, prepared(rows, bound.rough_draws, 2)), None, None
    )


def _by_chunks(value, params, data, most: int = CHUNK // NODES):
    """A sum over rows, some at a time."""
    N = jax.tree.leaves(data)[0].shape[0]
    size = min(N, most)
    whole = N - N % size
    parts = jax.tree.map(lambda y: y[:whole].reshape(whole // size, size, *y.shape[1:]), data)
    total = jax.lax.map(jax.checkpoint(lambda part: value(params, part)), parts).sum()
    if whole < N:
        total = total + value(params, jax.tree.map(lambda y: y[whole:], data))
    return total


def _mapped(function, data):
    compiled = jax.jit(lambda stacked, data: jax.lax.map(lambda p: function(p, data), stacked))

    def over(stacked):
        with jax.enable_x64(True):
            return np.asarray(compiled(jax.tree.map(_double, stacked), data))

    return over


def _double(leaf):
    leaf = np.asarray(leaf)
    return jnp.asarray(leaf, jnp.float64) if leaf.dtype.kind == "f" else jnp.asarray(leaf)
