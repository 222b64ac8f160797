"""Section 5.4: the bound on the whole data during training, controlled and uncontrolled."""

import pandas as pd

import quell
from quell.types import Step
from quell_paper.config import PLAIN, Plan, Variate
from quell_paper.jobs import Job, tidy, variate_job
from quell_paper.problems import PROBLEMS, distinct, nelbo
from quell_paper.training import train


def jobs(plan: Plan) -> list[Job]:
    """The uncontrolled run, and one job per criterion, network and order."""
    traces = plan.traces
    variates = [
        Variate("linear", criterion, hidden, order)
        for order in traces.orders
        for criterion in traces.criteria
        for hidden in traces.networks
    ]
    return [
        variate_job(
            "traces",
            plan,
            variate,
            plan.main_learning_rate,
            _run,
            steps=traces.num_steps,
            step_extra={"logistic": 100, "deep-gp": 6_000}[plan.model] / traces.nelbo_every,
            order=variate.order,
            num_steps=traces.num_steps,
            nelbo_draws=traces.nelbo_draws,
            nelbo_every=traces.nelbo_every,
        )
        for variate in (PLAIN, *variates)
    ]


def _run(plan: Plan, variate: Variate, rate: float) -> pd.DataFrame:
    problem, rows, traces = PROBLEMS[plan.model](), distinct(plan.model), plan.traces
    every = traces.nelbo_every

    def bound(step: Step):
        # The key depends on seed and step alone: all variates are measured with the same draws.
        return nelbo(step.key, problem.objective, step.params, rows, traces.nelbo_draws)

    monitors = (quell.monitor(nelbo=bound, every=every),)
    run = train(plan, (traces.num_steps,), variate, rate, monitors)
    return tidy(
        {"seed": range(plan.seeds), "step": range(0, traces.num_steps, every)},
        nelbo=run.columns["nelbo"][:, ::every],
    )
