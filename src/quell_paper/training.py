"""Training in the experiments: the library's loop over all seeds, with stops on the way."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Float, Key, PyTree

from quell._jit import quick_jit
from quell._tree import strongly_typed
from quell.training.batches import reshuffle
from quell.training.hooks import Monitors
from quell.training.loop import Carried, Loop, RunKeys, compiled_loop, run_keys
from quell_paper.config import BATCH_SIZE, PLAIN, Plan, Variate
from quell_paper.jobs import cached
from quell_paper.problems import PROBLEMS
from quell_paper.variates import started

_CHUNK = 200  # steps of one call of the loop


class Run(NamedTuple):
    """The result of training.

    Attributes:
      stops: params and states at each stop, leaves `[seeds, ...]`.
      columns: the table of the loop, each column `[seeds, T]`.
    """

    stops: list[Carried]
    columns: dict[str, Float[np.ndarray, "seeds T"]]


def train(
    plan: Plan,
    stops: Sequence[int],
    variate: Variate,
    rate: float = 0.0,
    monitors: tuple[Monitors, ...] = (),
) -> Run:
    """Train the plan's model for `max(stops)` steps, for each of its seeds.

    Args:
      stops: the numbers of steps after which params and states are kept, in ascending order.
      variate: the control variate, or `PLAIN`.
      rate: the learning rate of the coefficients.
      monitors: hooks made by `quell.monitor`.
    """
    problem = PROBLEMS[plan.model]()
    start = _start(plan.model, variate.unlearned)
    loop = _loop(plan.model, plan.learning_rate, variate, min(_CHUNK, max(stops)), monitors)

    def run(key):
        keys = run_keys(key)
        carried = start(keys)
        kept, tables, step = [], [], 0
        for stop in stops:
            while step < stop:
                carried = loop.refresh(keys, carried, problem.data, step)
                steps = min(loop.length, stop - step, loop.next_visit(step) - step)
                carried, table = loop.advance(rate, keys, carried, problem.data, step, steps)
                tables.append(np.asarray(table)[..., :steps, :])
                step += steps
            kept.append(jax.tree.map(jnp.copy, carried))  # the loop consumes its argument
        return kept, np.concatenate(tables, axis=-2)

    keys = streams(plan).run
    if _side_by_side(plan.model):
        kept, table = run(keys)
    else:
        kept, table = jax.tree.map(lambda *leaves: np.stack(leaves), *map(run, keys))
    return Run(kept, {name: table[..., i] for i, name in enumerate(loop.columns)})


@cached
def trained(plan: Plan) -> dict[int, PyTree[Array]]:
    """The params after plain training, at the stages at which they are frozen."""
    stages = plan.static.frozen_after
    run = train(plan, stages, PLAIN)
    return {stage: carried.params for stage, carried in zip(stages, run.stops)}


def over_seeds(model: str, function: Callable) -> Callable:
    """Map a function of one seed over all seeds; arguments and results gain a leading axis.

    Seeds run side by side if states are small, and one after the other if one state fills the
    processor's cache.
    """
    if _side_by_side(model):
        return jax.vmap(function)
    return lambda *args: lax.map(lambda one: function(*one), args)


def _side_by_side(model: str) -> bool:
    return model == "logistic"


class Streams(NamedTuple):
    """Keys of independent streams for each seed of a plan, `[seeds]`.

    Attributes:
      run: training.
      coefficients: the first coefficients at a frozen model.
      lessons: the batches and draws from which coefficients learn at a frozen model.
      fresh: the batches and draws on which variances are measured.
      estimator: draws that an estimator takes by itself while it is measured.
    """

    run: Key[Array, " seeds"]
    coefficients: Key[Array, " seeds"]
    lessons: Key[Array, " seeds"]
    fresh: Key[Array, " seeds"]
    estimator: Key[Array, " seeds"]


def streams(plan: Plan) -> Streams:
    """The keys of the plan's seeds; a seed's results do not depend on the number of seeds."""
    seeds = jnp.asarray(plan.seed_range)
    # one split for all streams: keys that are folded in may coincide with keys that are split off
    keys = jax.vmap(lambda seed: jax.random.split(jax.random.key(seed), len(Streams._fields)))
    return Streams(*keys(seeds).T)


@cached
def _loop(
    model: str, model_rate: float, variate: Variate, length: int, monitors: tuple[Monitors, ...]
) -> Loop:
    """The library's loop, compiled once for all learning rates: `advance` takes the rate first."""
    # The rate is a tracer, so that the loop has to be made inside the outer jit.
    problem = PROBLEMS[model]()

    def loop(rate) -> Loop:
        return compiled_loop(
            started(model, variate, rate),
            problem.objective,
            optax.adam(model_rate),
            reshuffle,
            monitors,
            batch_size=BATCH_SIZE,
            length=length,
            seeds=_side_by_side(model),
        )

    def advance(rate, *args):
        return loop(rate).advance(*args)

    return loop(1.0)._replace(advance=jax.jit(advance, donate_argnums=2))


@cached
def _start(model: str, variate: Variate) -> Callable[[RunKeys], Carried]:
    """The start of training with an `unlearned` variate."""
    problem = PROBLEMS[model]()

    def start(keys: RunKeys) -> Carried:
        params = problem.init(keys.params)
        state = started(model, variate).init(keys.init, params)
        return strongly_typed(Carried(params, optax.adam(1.0).init(params), state))

    return quick_jit(jax.vmap(start) if _side_by_side(model) else start)
