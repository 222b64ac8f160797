"""Section 5.3: model and coefficients learn together; how much variance is left on the way."""

from dataclasses import asdict

import numpy as np

from quell.experiments.config import Plan
from quell.experiments.methods import Method
from quell.experiments.problems import PROBLEMS
from quell.experiments.training import seed_keys, train
from quell.experiments.units import Table, Unit, cost, joined, tidy
from quell.experiments.variance import measurer, sampler


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
    sample = sampler(problem, plan.sampling, plan.batch_size)
    tables = []
    run = train(plan, plan.dynamic.measured_after, method, rate)
    for steps, carried in zip(plan.dynamic.measured_after, run.stops):
        samples = sample(seed_keys(plan.seeds), carried.params)
        plain, quieter = measurer(plan.model, method.basis, method.hidden)(
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
