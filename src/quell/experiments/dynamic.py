"""Section 5.3: model and coefficients learn together; how much variance is left on the way."""

from dataclasses import asdict

import jax
import numpy as np

from quell.experiments.config import Plan
from quell.experiments.methods import Method, correct, estimator
from quell.experiments.problems import PROBLEMS
from quell.experiments.training import adam, over_seeds, seed_keys, train
from quell.experiments.units import Table, Unit, cost, joined, once, tidy
from quell.experiments.variance import controlled, sampler, variance


def units(plan: Plan) -> list[Unit]:
    """One unit per basis, criterion, network, learning rate and order."""
    dynamic = plan.dynamic
    return [
        _unit(plan, Method(basis, criterion, hidden, order), rate)
        for basis in dynamic.bases
        for criterion in dynamic.criteria
        for hidden in dynamic.networks
        for rate in dynamic.learning_rates
        for order in dynamic.orders
    ]


def _unit(plan: Plan, method: Method, rate: float) -> Unit:
    setting = {
        "model": plan.model,
        "basis": method.basis,
        "criterion": method.criterion,
        "network": method.network,
        "order": method.order,
        "learning_rate": rate,
        "seeds": plan.seeds,
        "batch_size": plan.batch_size,
        "model_learning_rate": plan.learning_rate,
        "measured_after": plan.dynamic.measured_after,
        "sampling": asdict(plan.sampling),
    }
    steps = max(plan.dynamic.measured_after)
    weight = plan.seeds * steps * cost(plan.model, method.basis, method.criterion, method.hidden)
    return Unit("dynamic", setting, lambda: _run(plan, method, rate), weight)


def _run(plan: Plan, method: Method, rate: float) -> Table:
    problem = PROBLEMS[plan.model]()
    estimate = estimator(problem, method, adam(rate))
    sample = sampler(problem, plan.sampling, plan.batch_size)
    tables = []
    run = train(plan, plan.dynamic.measured_after, estimate)
    for steps, carried in zip(plan.dynamic.measured_after, run.stops):
        samples = sample(seed_keys(plan.seeds), carried.params)
        plain, quieter = _measure(plan.model, Method(method.basis, "", method.hidden))(
            carried.estimator_state.control, carried.params, samples
        )
        tables.append(
            tidy(
                {"steps": [steps], "seed": range(plan.seeds)},
                **{f"plain_{part}": np.asarray(v)[None] for part, v in plain._asdict().items()},
                **{
                    f"controlled_{part}": np.asarray(v)[None]
                    for part, v in quieter._asdict().items()
                },
            )
        )
    return joined(tables)


@once
def _measure(model: str, method: Method):
    """`measure(state, params, samples)`: the variances without and with the correction."""
    problem = PROBLEMS[model]()

    def measure(state, params, samples):
        quieter = controlled(
            samples, lambda g, e, b: correct(problem, method, g, state, params, e, b)
        )
        return variance(samples.gradient), variance(quieter)

    return jax.jit(over_seeds(model, measure))
