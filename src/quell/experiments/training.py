"""Training for the experiments: the library's loop over all seeds, stopped where asked."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Float, Key, PyTree

from quell._batches import reshuffle
from quell._loop import Carried, Loop, Monitor, RunKeys, compiled_loop, run_keys
from quell.coefficients._adam import adam
from quell.estimators import monte_carlo
from quell.experiments.config import Plan
from quell.experiments.methods import Method, estimator
from quell.experiments.problems import PROBLEMS
from quell.experiments.units import once

_CHUNK = 200  # steps of one call of the loop


class Run(NamedTuple):
    """What training leaves.

    Attributes:
      stops: params and states after each of the asked numbers of steps, leaves `[seeds, ...]`.
      columns: the loop's table, each column `[seeds, T]`.
    """

    stops: list[Carried]
    columns: dict[str, Float[np.ndarray, "seeds T"]]


def train(
    plan: Plan,
    stops: Sequence[int],
    method: Method | None,
    rate: float = 0.0,
    monitors: Mapping[str, Monitor] | None = None,
    monitor_every: int = 1,
) -> Run:
    """Train the plan's model for `max(stops)` steps, for each of its seeds.

    All seeds in one call where states are small, else one after the other (see `over_seeds`).

    Args:
      stops: after how many steps to keep params and states, in ascending order.
      method: the control variate, or None for plain gradients.
      rate: the learning rate of its coefficients.
      monitors: as for `quell.fit`.
      monitor_every: steps from one evaluation of the monitors to the next.
    """
    problem, together = PROBLEMS[plan.model](), _side_by_side(plan.model)
    start = _start(plan.model, *((method.basis, method.hidden) if method else (None, ())))
    watched = tuple((monitors or {}).items())
    loop = _loop(plan, method, min(_CHUNK, max(stops)), watched, monitor_every)

    def run(key):
        keys = run_keys(key)
        carried = start(keys)
        seen, tables, step = [], [], 0
        for stop in stops:
            while step < stop:
                steps = min(loop.length, stop - step)
                carried, table = loop.advance(rate, keys, carried, problem.data, step, steps)
                tables.append(np.asarray(table)[..., :steps, :])
                step += steps
            seen.append(jax.tree.map(jnp.copy, carried))  # the loop consumes what it is given
        return seen, np.concatenate(tables, axis=-2)

    keys = seed_keys(plan.seeds)
    if together:
        seen, table = run(keys)
    else:
        runs = [run(key) for key in keys]
        seen, table = jax.tree.map(lambda *leaves: np.stack(leaves), *runs)
    return Run(seen, {name: table[..., i] for i, name in enumerate(loop.columns)})


@once
def trained(plan: Plan) -> dict[int, PyTree[Array]]:
    """Params at the stages where the static experiment freezes them, plainly trained."""
    stages = plan.static.frozen_after
    run = train(plan, stages, None)
    return {stage: carried.params for stage, carried in zip(stages, run.stops)}


def over_seeds(model: str, function: Callable) -> Callable:
    """`function` of one seed, for all seeds at once; arguments and results gain a leading axis.

    Side by side where states are small; one after the other where one of them fills the cache.
    """
    if _side_by_side(model):
        return jax.vmap(function)
    return lambda *args: jax.lax.map(lambda one: function(*one), args)


def _side_by_side(model: str) -> bool:
    return model == "logistic"


def seed_keys(seeds: int) -> Key[Array, " seeds"]:
    """One key per seed; a seed's results do not depend on how many others there are."""
    return jax.vmap(jax.random.key)(jnp.arange(seeds))


@once
def _loop(
    plan: Plan,
    method: Method | None,
    length: int,
    monitors: tuple[tuple[str, Monitor], ...],
    monitor_every: int,
) -> Loop:
    """The library's loop, compiled once for all learning rates: `advance` takes theirs first."""
    problem, optimizer = PROBLEMS[plan.model](), optax.adam(plan.learning_rate)

    def loop(rate) -> Loop:
        make = monte_carlo() if method is None else estimator(problem, method, adam(rate))
        return compiled_loop(
            make(problem.objective),
            optimizer,
            reshuffle,
            dict(monitors),
            num_data=problem.objective.num_data,
            batch_size=plan.batch_size,
            length=length,
            monitor_every=monitor_every,
            seeds=_side_by_side(plan.model),
        )

    def advance(rate, *args):
        return loop(rate).advance(*args)

    return loop(1.0)._replace(advance=jax.jit(advance, donate_argnums=2))


@once
def _start(model: str, basis: str | None, hidden: tuple[int, ...]):
    """What training starts from, compiled once: learning rates and criteria do not change it."""
    problem = PROBLEMS[model]()
    make = monte_carlo()
    if basis is not None:
        make = estimator(problem, Method(basis, "squared_difference", hidden), adam(1.0))

    def start(keys: RunKeys) -> Carried:
        params = problem.init(keys.params)
        state = make(problem.objective).init(keys.init, params, problem.data)
        carried = Carried(params, optax.adam(1.0).init(params), state)
        return jax.tree.map(lambda leaf: lax.convert_element_type(leaf, leaf.dtype), carried)

    return jax.jit(jax.vmap(start) if _side_by_side(model) else start)
