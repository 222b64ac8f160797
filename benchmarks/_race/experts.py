"""What an expert would do instead: L-BFGS over all the data, and NumPyro's own SVI."""

import time
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jax.flatten_util import ravel_pytree

from _race import bounds
from _race.contestants import Setting, tuned, with_setting
from _race.problems import Problem
from _race.runs import MARKS
from quell.gaussian import packed
from quell.training.loop import run_keys


class Path(NamedTuple):
    """Params on the way.

    Attributes:
      seconds: the time of each.
      params: leaves `[T, ...]`.
      cold: seconds of compilation before the start.
      steps: the number of iterations of each.
    """

    seconds: list[float]
    params: Any
    cold: float
    steps: list[int]


def lbfgs(problem: Problem, draws: int | None, seconds: float, seed: int) -> Path | None:
    """L-BFGS in float64 on all the data: on the exact bound, or on fixed draws (`draws` of them).

    The draws are shared by all rows where they are draws of weights, as in deterministic ADVI
    (Giordano, Ingram and Broderick, 2024), and each row's own otherwise.
    """
    objective, bound = problem.objective, problem.bound
    if draws is None and bound.value is None:
        return None
    start = problem.init(run_keys(jax.random.key(1000 + seed)).params)
    shared = objective.variational is not None
    noise = None
    if draws is not None:
        noise = objective.sample_noise(
            jax.random.key(seed), objective.num_data, draws=draws, shared=shared
        )
    with jax.enable_x64(True):
        data, noise, start = (jax.tree.map(bounds._double, t) for t in (problem.data, noise, start))
        flat, unravel = ravel_pytree(start)
        small = objective.num_data < bounds.CHUNK // bounds.NODES  # of memory, at once

        def value(flat, data, noise):
            params = unravel(flat)
            if noise is None:
                every = bound.value if small else partial(bounds._by_chunks, bound.value)
                return every(params, data) + bound.prior(params)
            return objective.value(params, noise, data)

        compiled = jax.jit(jax.value_and_grad(value))
        began = time.perf_counter()
        jax.block_until_ready(compiled(flat, data, noise))
        cold = time.perf_counter() - began
        times, kept = [0.0], [np.asarray(flat)]
        began = time.perf_counter()

        def keep(x):
            times.append(time.perf_counter() - began)
            kept.append(x.copy())
            if times[-1] > seconds:
                raise StopIteration

        scipy.optimize.minimize(
            lambda v: [np.asarray(e) for e in compiled(v, data, noise)], np.asarray(flat), jac=True,
            method="L-BFGS-B", callback=keep,
            options={"maxiter": 10_000, "maxfun": 20_000, "ftol": 1e-13, "gtol": 1e-9},
        )  # fmt: skip
        some = np.unique(np.geomspace(1, len(kept), 40).round().astype(int)) - 1
        params = jax.vmap(unravel)(jnp.asarray(np.stack([kept[i] for i in some])))
        params = jax.tree.map(np.asarray, params)
    return Path([times[i] for i in some], params, cold, some.tolist())


class Svi(NamedTuple):
    """NumPyro's SVI on a problem, compiled for every rate and length.

    Attributes:
      advance: `advance(state, count)` takes steps.
      init: `init(key, peak, num_steps)` gives the state of a run whose rate falls by a cosine.
      params: `params(state)` in the form of ours.
      cold: seconds to trace and to compile.
      per_step: seconds of a step.
    """

    advance: Any
    init: Any
    params: Any
    cold: float
    per_step: float


def numpyro_svi(problem: Problem, batch: int) -> Svi:
    """One particle, Adam, and a plate with subsampling, as its manual does."""
    import numpyro
    from numpyro.infer import SVI, Trace_ELBO, autoguide, init_to_value

    arrays = tuple(problem.data.values())
    assert problem.guide is not None
    scale = float(np.exp(start) if (start := _first_scale(problem)) < 0 else start)
    sites = {}

    def program(*arrays):
        return problem.program(*arrays, batch)

    guide = getattr(autoguide, problem.guide)(
        program, init_loc_fn=init_to_value(values=sites), init_scale=scale
    )
    svi = SVI(program, guide, numpyro.optim.optax_to_numpyro(tuned("Adam")), Trace_ELBO())
    began = time.perf_counter()

    @jax.jit
    def advance(state, arrays, count):
        return jax.lax.fori_loop(0, count, lambda i, s: svi.update(s, *arrays)[0], state)

    def init(key, peak, num_steps):
        state = svi.init(key, *arrays)
        step, (params, inner) = state.optim_state
        inner = with_setting(inner, Setting(batch, peak, True), num_steps)
        return state._replace(optim_state=(step, (params, inner)))

    state = init(jax.random.key(0), 0.01, 1000)
    jax.block_until_ready(advance(state, arrays, 1))
    cold = time.perf_counter() - began
    times = []
    for count in (16, 64, 64):
        began = time.perf_counter()
        jax.block_until_ready(advance(state, arrays, count))
        times.append((time.perf_counter() - began) / count)

    def params(state):
        found = svi.get_params(state)
        if problem.guide == "AutoMultivariateNormal":
            return {"mean": found["auto_loc"], "scale": packed(found["auto_scale_tril"])}
        names = [name.removesuffix("_auto_loc") for name in found if name.endswith("_auto_loc")]
        names = sorted(names, key=lambda name: (name != "w0", name != "t", name))
        loc = [jnp.atleast_1d(found[f"{name}_auto_loc"]) for name in names]
        sd = [jnp.atleast_1d(found[f"{name}_auto_scale"]) for name in names]
        return {"mean": jnp.concatenate(loc), "scale": jnp.log(jnp.concatenate(sd))}

    return Svi(lambda state, count: advance(state, arrays, count), init, params, cold, min(times))


def _first_scale(problem: Problem) -> float:
    """The largest entry of our first scale: a standard deviation, or its log if negative."""
    return float(problem.init(jax.random.key(0))["scale"].max())


def numpyro_path(svi: Svi, peak: float, num_steps: int, seed: int, timed: bool) -> Path:
    """A run: its times at the end alone if it is timed, else its params on the way."""
    state = jax.block_until_ready(svi.init(jax.random.key(seed), peak, num_steps))
    steps = np.unique(np.geomspace(max(1, num_steps / 300), num_steps, MARKS).round().astype(int))
    if timed:
        began = time.perf_counter()
        state = jax.block_until_ready(svi.advance(state, num_steps))
        took = time.perf_counter() - began
        return Path((took * steps / num_steps).tolist(), None, svi.cold, steps.tolist())
    kept, step = [], 0
    for mark in steps:
        state = svi.advance(state, int(mark) - step)
        step = int(mark)
        kept.append(jax.tree.map(np.asarray, svi.params(state)))
    params = jax.tree.map(lambda *leaves: np.stack(leaves), *kept)
    return Path((svi.per_step * steps).tolist(), params, svi.cold, steps.tolist())
