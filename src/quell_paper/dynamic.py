"""Section 5.3: model and coefficients learn together, and the variance is measured on the way."""

from dataclasses import asdict

import pandas as pd

from quell_paper.config import CLOSED_FORM, LITERAL, PAIRS, Plan, Variate
from quell_paper.jobs import Job, tidy, variate_job
from quell_paper.training import streams, train
from quell_paper.variance import estimator_measurer, measurer, sampler


def jobs(plan: Plan) -> list[Job]:
    """The jobs: one per basis, criterion, network and procedure, and the other estimators."""
    dynamic = plan.dynamic
    variates = [
        Variate("linear", criterion, hidden, *procedure)
        for criterion in dynamic.criteria
        for hidden in dynamic.networks
        for procedure in dynamic.procedures
    ]
    variates += [
        Variate(basis, "squared_difference", hidden, *LITERAL)
        for basis in dynamic.other_bases
        for hidden in dynamic.networks
    ]
    return [
        variate_job(
            "dynamic",
            plan,
            variate,
            plan.main_learning_rate,
            _run,
            steps=max(dynamic.measured_after),
            measured_after=dynamic.measured_after,
            sampling=asdict(plan.sampling),
        )
        for variate in (*variates, PAIRS, CLOSED_FORM)
    ]


def _run(plan: Plan, variate: Variate, rate: float) -> pd.DataFrame:
    keys = streams(plan)
    stops, tables = plan.dynamic.measured_after, []
    for steps, (params, _, state, _) in zip(stops, train(plan, stops, variate, rate).stops):
        samples = sampler(plan.model, plan.sampling)(keys.fresh, params)
        if variate.other:
            measure = estimator_measurer(plan.model, variate)
            columns = measure(keys.estimator, state, params, samples)
        else:
            columns = measurer(plan.model, variate.unlearned)(state, params, samples)
        tables.append(tidy({"seed": plan.seed_range}, **columns).assign(steps=steps))
    return pd.concat(tables, ignore_index=True)
