"""Learn before applying, as the paper does, or after: the bias of the one, and what both claim.

Coefficients that have learned from a batch depend on its draws, and a correction by them is no
longer of mean zero. With coefficients from before, G̃ has the mean of Ĝ exactly; so the bias of
the paper's order is the mean of its G̃ minus that of the other order on the same samples.
"""

from dataclasses import asdict, replace
from itertools import pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from quell.coefficients._adam import adam
from quell.experiments.config import Plan
from quell.experiments.methods import Method, control, correct, flat
from quell.experiments.problems import PROBLEMS
from quell.experiments.static import lessons_at, student
from quell.experiments.training import over_seeds, seed_keys, trained
from quell.experiments.units import Table, Unit, cost, joined, once, tidy
from quell.experiments.variance import Samples, Variance, sampler, variance

ORDERS = ("apply_then_learn", "learn_then_apply")


class Measured(NamedTuple):
    """One order at one state of the coefficients.

    Attributes:
      bias: an unbiased estimate of ‖E[G̃] − E[Ĝ]‖², so it may be negative.
      z: mean over parameters of the squared z score of that difference; about 1 without bias.
      gradient: the same estimate of ‖E[Ĝ]‖².
      plain: variances of Ĝ.
      controlled: variances of G̃.
    """

    bias: Float[Array, ""]
    z: Float[Array, ""]
    gradient: Float[Array, ""]
    plain: Variance
    controlled: Variance


def units(plan: Plan) -> list[Unit]:
    """One unit per criterion and network; linear basis, main learning rate."""
    orders = plan.orders
    return [
        _unit(plan, Method("linear", criterion, hidden))
        for criterion in orders.criteria
        for hidden in orders.networks
    ]


def _unit(plan: Plan, method: Method) -> Unit:
    setting = {
        "model": plan.model,
        "basis": method.basis,
        "criterion": method.criterion,
        "network": method.network,
        "learning_rate": plan.main_learning_rate,
        "seeds": plan.seeds,
        "batch_size": plan.batch_size,
        "model_learning_rate": plan.learning_rate,
        "frozen_after": plan.static.frozen_after,
        "learned_for": plan.orders.learned_for,
        "sampling": asdict(plan.orders.sampling),
    }
    size = plan.orders.sampling
    steps = max(plan.orders.learned_for)
    steps += len(plan.orders.learned_for) * size.batches * size.draws
    steps *= len(plan.static.frozen_after) * plan.seeds
    weight = steps * cost(plan.model, method.basis, method.criterion, method.hidden)
    return Unit("orders", setting, lambda: _run(plan, method), weight)


def _run(plan: Plan, method: Method) -> Table:
    keys, steps = seed_keys(plan.seeds), plan.orders.learned_for
    start, learn, _ = student(plan, method)
    sample = sampler(PROBLEMS[plan.model](), plan.orders.sampling, plan.batch_size)
    tables = []
    for stage in plan.static.frozen_after:
        params = trained(plan)[stage]
        samples, lessons = sample(keys, params), lessons_at(plan, stage)
        state = start(keys, params)
        for begin, end in pairwise((0, *steps)):
            state = learn(state, lessons, plan.main_learning_rate, begin, end)
            measured = _measurer(plan, method)(state, params, samples)
            tables += [
                {"frozen_after": [stage] * plan.seeds}
                | {"coefficient_steps": [end] * plan.seeds, "order": [order] * plan.seeds}
                | _columns(one)
                for order, one in zip(ORDERS, measured)
            ]
    return joined(tables)


def _columns(measured: Measured) -> Table:
    """A row for every seed."""
    values = {name: getattr(measured, name) for name in ("bias", "z", "gradient")}
    for name in ("plain", "controlled"):
        values |= {f"{name}_{k}": v for k, v in getattr(measured, name)._asdict().items()}
    return tidy(
        {"seed": range(measured.bias.size)}, **{k: np.asarray(v) for k, v in values.items()}
    )


@once
def _measurer(plan: Plan, method: Method):
    """`measure(state, params, samples)`: both orders, for every seed.

    Each sample is corrected twice: by the coefficients as they stand, and by what one step of
    learning from this very sample makes of them.
    """
    problem = PROBLEMS[plan.model]()
    optimizer = adam(plan.main_learning_rate)
    papers = control(problem, replace(method, order="learn_then_apply"), optimizer)

    def measure(state, params, samples: Samples) -> list[Measured]:
        def one_batch(sample):
            batch, noise, gradient = sample
            context = problem.context(batch)

            def one_draw(sample):
                eps, g = sample
                extra = {}
                if papers.criterion.per_example:
                    rows = problem.objective.per_example_gradients(params, eps, batch)
                    extra["per_example"] = rows
                before = correct(problem, method.basis, method.hidden, g, state, params, eps, batch)
                after = papers.update(g, state, params, noise=eps, context=context, **extra)[0]
                return before, after

            return lax.map(one_draw, (noise, gradient))

        before, after = lax.map(one_batch, tuple(samples))
        plain = samples.gradient
        return [_measured(plain, before, plain), _measured(plain, after, before)]

    return jax.jit(over_seeds(plan.model, measure))


def _measured(plain, controlled, same_mean) -> Measured:
    """The bias of `controlled` against gradients that have the mean of Ĝ, on the same samples."""
    G, G_controlled, G_same = (
        jax.vmap(jax.vmap(flat))(gradient) for gradient in (plain, controlled, same_mean)
    )
    bias, z = squared_mean(G_controlled - G_same)
    gradient, _ = squared_mean(G)
    return Measured(bias, z, gradient, variance(plain), variance(controlled))


def squared_mean(d: Float[Array, "M K P"]) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """An unbiased estimate of ‖E[d]‖², and the mean over P of the squared z score of the mean.

    The M batches are independent, the K draws of one are not: they are averaged first.
    """
    by_batch = d.mean(1)
    M = by_batch.shape[0]
    mean, error = by_batch.mean(0), by_batch.var(0, ddof=1) / M
    return jnp.sum(mean**2 - error), jnp.mean(mean**2 / error, where=error > 0)
