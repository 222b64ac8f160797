"""The bias of learning from a batch before correcting the batch, as the paper does.

Coefficients that have learned from a batch depend on its draws, and their correction no longer
has mean zero. With coefficients from before, G̃ has the mean of Ĝ exactly; so the bias of the
paper's order is the mean of its G̃ minus the mean of the other order's G̃ on the same draws.
"""

from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import pandas as pd
from jax import lax
from jaxtyping import Array, Float

from quell_paper.config import BOTH_ORDERS, LEARN_FIRST, Plan, Variate
from quell_paper.jobs import Job, cached, tidy, variate_job
from quell_paper.problems import PROBLEMS
from quell_paper.static import learner, lessons_at
from quell_paper.training import over_seeds, streams, trained
from quell_paper.variance import Samples, sampler, variance_columns
from quell_paper.variates import correct, flat, update


def jobs(plan: Plan) -> list[Job]:
    """The jobs, one per network and scale: linear basis, squared difference, main learning rate."""
    stages, learned_for = plan.static.frozen_after, plan.order_bias.learned_for
    size = plan.order_bias.sampling
    corrections = len(learned_for) * size.batches * size.draws
    return [
        variate_job(
            "orders",
            plan,
            Variate("linear", "squared_difference", hidden, scale),
            plan.main_learning_rate,
            _run,
            steps=len(stages) * (max(learned_for) + corrections),
            frozen_after=stages,
            learned_for=learned_for,
            sampling=asdict(size),
        )
        for scale in plan.order_bias.scales
        for hidden in plan.order_bias.networks
    ]


def _run(plan: Plan, variate: Variate, rate: float) -> pd.DataFrame:
    keys = streams(plan)
    start, learn = learner(plan.model, variate)
    sample = sampler(plan.model, plan.order_bias.sampling)
    tables = []
    for stage in plan.static.frozen_after:
        params = trained(plan)[stage]
        samples, lessons = sample(keys.fresh, params), lessons_at(plan, stage)
        state = start(keys.coefficients, params)
        for begin, end in pairwise((0, *plan.order_bias.learned_for)):
            state = learn(state, lessons, rate, begin, end)
            measured = _measurer(plan.model, variate, rate)(state, params, samples)
            for order, columns in zip(BOTH_ORDERS, measured):
                where = {"frozen_after": stage, "coefficient_steps": end, "order": order}
                tables.append(tidy({"seed": plan.seed_range}, **columns).assign(**where))
    return pd.concat(tables, ignore_index=True)


@cached
def _measurer(model: str, variate: Variate, rate: float) -> Callable[..., list[dict[str, Any]]]:
    """`measure(state, params, samples)`: the columns of both orders, for every seed.

    Each sample is corrected twice: by the coefficients as they stand, and by the coefficients
    after one step of learning from this very sample.
    """
    problem = PROBLEMS[model]()
    papers = replace(variate, order=LEARN_FIRST)

    def measure(state, params, samples: Samples) -> list[dict[str, Any]]:
        def one_batch(sample):
            _, batch, noise, gradient = sample

            def one_draw(sample):
                eps, g = sample
                before = correct(problem, variate.unlearned, g, state, params, eps, batch)
                after = update(problem, papers, rate, g, state, params, eps, batch)[0]
                return before, after

            return lax.map(one_draw, (noise, gradient))

        before, after = lax.map(one_batch, tuple(samples))  # one by one: a state per draw is large
        plain = samples.gradient
        return [_columns(plain, before, plain), _columns(plain, after, before)]

    return jax.jit(over_seeds(model, measure))


def _columns(plain, controlled, same_mean) -> dict[str, Any]:
    """The columns of one order; the mean of `same_mean` is the mean of Ĝ.

    `bias` and `gradient` are unbiased estimates of ‖E[G̃] − E[Ĝ]‖² and ‖E[Ĝ]‖², so both may be
    negative; `z` is the mean squared z score of the bias, about 1 without bias.
    """
    G, G_controlled, G_same = (
        jax.vmap(jax.vmap(flat))(gradient) for gradient in (plain, controlled, same_mean)
    )
    bias, z = squared_mean(G_controlled - G_same)
    gradient, _ = squared_mean(G)
    return {"bias": bias, "z": z, "gradient": gradient, **variance_columns(plain, controlled)}


def squared_mean(d: Float[Array, "M K P"]) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """An unbiased estimate of ‖E[d]‖², and the mean over P of the squared z score of the mean.

    The M batches are independent, the K draws of a batch are not: they are averaged first.
    """
    by_batch = d.mean(1)
    M = by_batch.shape[0]
    mean, error = by_batch.mean(0), by_batch.var(0, ddof=1) / M
    # E[mean²] exceeds E[d]² by the variance of the mean, which `error` estimates.
    return jnp.sum(mean**2 - error), jnp.mean(mean**2 / error, where=error > 0)
