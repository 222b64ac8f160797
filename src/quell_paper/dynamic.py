"""Section 5.3: model and coefficients learn together, and the variance is measured on the way."""

from dataclasses import asdict

import pandas as pd

from quell_paper.config import CLOSED_FORM, LITERAL, PAIRS, Plan, Variate
from quell_paper.jobs import Job, tidy, variate_job
from quell_paper.training import streams, train
from quell_paper.variance import estimator_measurer, measurer, sampler


def jobs(plan: Plan) -> list[Job]:
    """The jobs, one per basis, criterion, network, procedure and learning rate; and the others."""
    dynamic, main = plan.dynamic, plan.main_learning_rate
    settings = [
        (Variate("linear", criterion, hidden, *procedure), rate)
        for criterion in dynamic.criteria
        for hidden in dynamic.networks
        for procedure in dynamic.procedures
        for rate in (dynamic.learning_rates if procedure == LITERAL else ()) or (main,)
    ]
    settings += [
        (Variate(basis, "squared_difference", hidden, *LITERAL), main)
        for basis in dynamic.other_bases
        for hidden in dynamic.networks
    ]
    settings += [(PAIRS, main), (CLOSED_FORM, main)]
    return [
        variate_job(
            "dynamic",
            plan,
            variate,
            rate,
            _run,
            steps=max(dynamic.measured_after),
            measured_after=dynamic.measured_after,
            sampling=asdict(plan.sampling),
        )
        for variate, rate in settings
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
