"""Section 5.2: freeze the model, learn the coefficients, and see how much variance is left."""

from dataclasses import asdict
from itertools import pairwise
from typing import NamedTuple

import jax
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, PyTree

from quell._batches import reshuffle
from quell.coefficients._adam import adam
from quell.experiments.config import Plan
from quell.experiments.methods import Method, control
from quell.experiments.problems import PROBLEMS
from quell.experiments.training import over_seeds, seed_keys, trained
from quell.experiments.units import Table, Unit, cost, joined, once, tidy
from quell.experiments.variance import Samples, measurer, sampler

_LESSONS = 1  # folded into a seed's key


def units(plan: Plan) -> list[Unit]:
    """One unit per basis, criterion, network and learning rate."""
    static = plan.static
    return [
        _unit(plan, Method(basis, criterion, hidden), rate)
        for basis in static.bases
        for criterion in static.criteria
        for hidden in static.networks_for(basis, criterion)
        for rate in static.rates_for(criterion)
    ]


def _unit(plan: Plan, method: Method, rate: float) -> Unit:
    setting = {
        "model": plan.model,
        "basis": method.basis,
        "criterion": method.criterion,
        "network": method.network,
        "learning_rate": rate,
        "seeds": plan.seeds,
        "batch_size": plan.batch_size,
        "model_learning_rate": plan.learning_rate,
        "frozen_after": plan.static.frozen_after,
        "measured_after": plan.static.measured_after,
        "sampling": asdict(plan.sampling),
    }

    steps = len(plan.static.frozen_after) * max(plan.static.measured_after)
    weight = plan.seeds * steps * cost(plan.model, method.basis, method.criterion, method.hidden)
    return Unit("static", setting, lambda: _run(plan, method, rate), weight)


class Lessons(NamedTuple):
    """What coefficients learn from while the model stands still: the same for every method.

    Attributes:
      params: the frozen parameters, leaves `[seeds, ...]`.
      indices: the batch of every step, `[seeds, T, B]`.
      noise: its draws, leaves `[seeds, T, 1, B, ...]`.
      gradient: Ĝ, leaves `[seeds, T, ...]`.
      samples: fresh gradients for measuring, with a leading axis `[seeds]`.
    """

    params: PyTree[Array]
    indices: Int[Array, "seeds T B"]
    noise: PyTree[Array]
    gradient: PyTree[Array]
    samples: Samples


@once
def lessons_at(plan: Plan, stage: int) -> Lessons:
    """Lessons at the params after `stage` steps."""
    problem = PROBLEMS[plan.model]()
    keys = seed_keys(plan.seeds)
    params = trained(plan)[stage]
    indices, noise, gradient = _teacher(plan)(keys, params)
    samples = sampler(problem, plan.sampling, plan.batch_size)(keys, params)
    return Lessons(params, indices, noise, gradient, samples)


@once
def _teacher(plan: Plan):
    """`teach(keys, params)`: batches, draws and gradients for every step."""
    problem = PROBLEMS[plan.model]()
    objective, steps = problem.objective, max(plan.static.measured_after)

    def teach(key, params):
        batch_key, noise_key = jax.random.split(jax.random.fold_in(key, _LESSONS))
        indices = reshuffle(batch_key, 0, steps, objective.num_data, plan.batch_size)
        noise = objective.noise.sample(noise_key, (steps, 1, plan.batch_size))

        def gradient(rows, eps):
            batch = jax.tree.map(lambda leaf: leaf[rows], problem.data)
            return objective.gradient(params, eps, batch)

        return indices, noise, lax.map(lambda step: gradient(*step), (indices, noise))

    return jax.jit(over_seeds(plan.model, teach))


def _run(plan: Plan, method: Method, rate: float) -> Table:
    start, learn, measure = student(plan, method)
    steps = plan.static.measured_after
    tables = []
    for stage in plan.static.frozen_after:
        lessons = lessons_at(plan, stage)
        state = start(seed_keys(plan.seeds), lessons.params)
        measured = []
        for begin, end in pairwise((0, *steps)):
            state = learn(state, lessons, rate, begin, end)
            measured.append(measure(state, lessons.params, lessons.samples))
        plain, quieter = jax.tree.map(lambda *leaves: np.stack(leaves, axis=1), *measured)
        table = tidy(
            {"seed": range(plan.seeds), "coefficient_steps": steps},
            **{f"plain_{part}": value for part, value in plain._asdict().items()},
            **{f"controlled_{part}": value for part, value in quieter._asdict().items()},
        )
        tables.append({"frozen_after": [stage] * len(table["seed"]), **table})
    return joined(tables)


@once
def student(plan: Plan, method: Method):
    """Three compiled functions of all seeds: start, learn from some lessons, measure.

    They serve every stage and every learning rate, which is an argument.
    """
    problem = PROBLEMS[plan.model]()

    def learn(state, lessons: Lessons, rate: Float[Array, ""], begin, end):
        control_variate = control(problem, method, adam(rate))

        def step(i, state):
            batch = jax.tree.map(lambda leaf: leaf[lessons.indices[i]], problem.data)
            noise, gradient = jax.tree.map(lambda leaf: leaf[i], (lessons.noise, lessons.gradient))
            extra = {}
            if control_variate.criterion.per_example:
                extra["per_example"] = problem.objective.per_example_gradients(
                    lessons.params, noise, batch
                )
            context = problem.context(batch)
            return control_variate.update(
                gradient, state, lessons.params, noise=noise, context=context, **extra
            )[1]

        return lax.fori_loop(begin, end, step, state)

    def learn_all(state, lessons, rate, begin, end):
        one = lambda state, lessons: learn(state, lessons, rate, begin, end)  # noqa: E731
        return over_seeds(plan.model, one)(state, lessons)

    return (
        _start(plan.model, method.basis, method.hidden),
        jax.jit(learn_all, donate_argnums=0),
        measurer(plan.model, method.basis, method.hidden),
    )


@once
def _start(model: str, basis: str, hidden: tuple[int, ...]):
    """`start(keys, params)`: coefficients before any lesson, whatever they will learn by."""
    problem, method = PROBLEMS[model](), Method(basis, "squared_difference", hidden)

    def start(key, params):
        return control(problem, method, adam(1.0)).init(params, key=key)

    return jax.jit(over_seeds(model, start))
