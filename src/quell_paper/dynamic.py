"""Section 5.3: model and coefficients learn together, and the variance is measured on the way."""

from dataclasses import asdict

import pandas as pd

from quell_paper.config import Plan, Variate
from quell_paper.jobs import Job, tidy, variate_job
from quell_paper.training import seed_keys, train
from quell_paper.variance import measurer, sampler


def jobs(plan: Plan) -> list[Job]:
    """The jobs, one per basis, criterion, network, learning rate and order."""
    dynamic = plan.dynamic
    return [
        variate_job(
            "dynamic",
            plan,
            Variate(basis, criterion, hidden, order),
            rate,
            _run,
            steps=max(dynamic.measured_after),
            order=order,
            measured_after=dynamic.measured_after,
            sampling=asdict(plan.sampling),
        )
        for basis in dynamic.bases
        for criterion in dynamic.criteria
        for hidden in dynamic.networks
        for rate in dynamic.learning_rates
        for order in dynamic.orders
    ]


def _run(plan: Plan, variate: Variate, rate: float) -> pd.DataFrame:
    sample = sampler(plan.model, plan.sampling, plan.batch_size)
    measure = measurer(plan.model, variate.unlearned)
    stops, tables = plan.dynamic.measured_after, []
    for steps, carried in zip(stops, train(plan, stops, variate, rate).stops):
        samples = sample(seed_keys(plan.seeds), carried.params)
        columns = measure(carried.estimator_state, carried.params, samples)
        tables.append(tidy({"seed": range(plan.seeds)}, **columns).assign(steps=steps))
    return pd.concat(tables, ignore_index=True)
