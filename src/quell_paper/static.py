"""Section 5.2: the model is frozen, the coefficients learn, and the variance is measured."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import jax
import numpy as np
import pandas as pd
from jax import lax
from jaxtyping import Array, Float, Int, PyTree

from quell._jit import quick_jit
from quell._tree import take
from quell.training.batches import reshuffle
from quell_paper.config import BATCH_SIZE, EXTREMES, Plan, Variate
from quell_paper.jobs import Job, cached, tidy, variate_job
from quell_paper.problems import PROBLEMS
from quell_paper.training import over_seeds, streams, trained
from quell_paper.variance import Samples, measurer, sampler
from quell_paper.variates import control, update


def jobs(plan: Plan) -> list[Job]:
    """The jobs, one per network, scale and learning rate, and per other basis and criterion."""
    static, main = plan.static, ("linear", "squared_difference")
    cases = [(main, hidden, setting) for setting in static.settings for hidden in static.networks]
    cases += [(kind, n, static.settings[0]) for kind in static.others for n in EXTREMES]
    jobs = []
    for kind, hidden, (scale, rate) in cases:
        stages = static.stages(kind == main, hidden, (scale, rate))
        jobs.append(
            variate_job(
                "static",
                plan,
                Variate(*kind, hidden, scale),
                rate,
                partial(_run, stages),
                steps=len(stages) * max(static.measured_after),
                frozen_after=stages,
                measured_after=static.measured_after,
                sampling=asdict(plan.sampling),
            )
        )
    return jobs


def _run(stages: Sequence[int], plan: Plan, variate: Variate, rate: float) -> pd.DataFrame:
    start, learn = learner(plan.model, variate)
    measure = measurer(plan.model, variate.unlearned)
    steps, tables = plan.static.measured_after, []
    for stage in stages:
        lessons = lessons_at(plan, stage)
        state = start(streams(plan).coefficients, lessons.params)
        measured = []
        for begin, end in pairwise((0, *steps)):
            state = learn(state, lessons, rate, begin, end)
            measured.append(measure(state, lessons.params, lessons.samples))
        columns = jax.tree.map(lambda *leaves: np.stack(leaves, axis=1), *measured)
        table = tidy({"seed": plan.seed_range, "coefficient_steps": steps}, **columns)
        table.insert(0, "frozen_after", stage)
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


class Lessons(NamedTuple):
    """The batches from which coefficients learn at a frozen model: the same for every variate.

    Attributes:
      params: the frozen parameters, leaves `[seeds, ...]`.
      indices: the batch of every step, `[seeds, T, B]`.
      noise: the draws of each batch, leaves `[seeds, T, 1, B, ...]`.
      gradient: Ĝ, leaves `[seeds, T, ...]`.
      samples: fresh gradients for measuring, with a leading axis `[seeds]`.
    """

    params: PyTree[Array]
    indices: Int[Array, "seeds T B"]
    noise: PyTree[Array]
    gradient: PyTree[Array]
    samples: Samples


@cached
def lessons_at(plan: Plan, stage: int) -> Lessons:
    """The lessons at the params after `stage` steps of training."""
    keys, params = streams(plan), trained(plan)[stage]
    indices, noise, gradient = _teacher(plan.model, max(plan.static.measured_after))(
        keys.lessons, params
    )
    samples = sampler(plan.model, plan.sampling)(keys.fresh, params)
    return Lessons(params, indices, noise, gradient, samples)


@cached
def _teacher(model: str, steps: int) -> Callable:
    """`teach(keys, params)`: batches, draws and gradients for every step."""
    problem = PROBLEMS[model]()
    objective = problem.objective

    def teach(key, params):
        batch_key, noise_key = jax.random.split(key)
        indices = reshuffle(batch_key, 0, steps, objective.num_data, BATCH_SIZE)
        noise = objective.noise.sample(noise_key, (steps, 1, BATCH_SIZE))

        def gradient(step):
            indices, noise = step
            return objective.gradient(params, noise, take(problem.data, indices))

        return indices, noise, lax.map(gradient, (indices, noise))

    return quick_jit(over_seeds(model, teach))


@cached
def learner(model: str, variate: Variate) -> tuple[Callable, Callable]:
    """Two compiled functions over all seeds: `start`, and `learn` from some lessons.

    Both serve every stage and every learning rate, which is an argument to save compilations.
    """
    problem = PROBLEMS[model]()

    def learn(state, lessons: Lessons, rate: Float[Array, ""], begin, end):
        def step(i, state):
            batch = take(problem.data, lessons.indices[i])
            noise, gradient = jax.tree.map(lambda leaf: leaf[i], (lessons.noise, lessons.gradient))
            params = lessons.params
            return update(problem, variate, rate, gradient, state, params, noise, batch)[1]

        return lax.fori_loop(begin, end, step, state)

    def learn_all(state, lessons, rate, begin, end):
        one = lambda state, lessons: learn(state, lessons, rate, begin, end)  # noqa: E731
        return over_seeds(model, one)(state, lessons)

    return _start(model, variate.unlearned), jax.jit(learn_all, donate_argnums=0)


@cached
def _start(model: str, variate: Variate) -> Callable:
    """`start(keys, params)`: coefficients before the first lesson."""
    problem = PROBLEMS[model]()

    def start(key, params):
        return control(problem, variate, 1.0, params, key).init(params)

    return quick_jit(over_seeds(model, start))
