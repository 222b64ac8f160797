"""Section 5.4: the bound on the whole data during training, controlled and uncontrolled."""

import pandas as pd

import quell
from quell.training.hooks import Monitors
from quell.types import Step
from quell_paper.config import CLOSED_FORM, PAIRS, PLAIN, Plan, Traces, Variate
from quell_paper.jobs import Job, cached, tidy, variate_job
from quell_paper.problems import PROBLEMS, distinct, exact_nelbo, sampled_nelbo
from quell_paper.training import train


def jobs(plan: Plan) -> list[Job]:
    """The uncontrolled run, the library's own estimators, and one job per variate."""
    traces = plan.traces
    variates = [
        Variate("linear", criterion, hidden, *procedure)
        for procedure in traces.procedures
        for criterion in traces.criteria
        for hidden in traces.networks
    ]
    extra = 100 if traces.nelbo_draws == 0 else 600 * traces.nelbo_draws
    return [
        variate_job(
            "traces",
            plan,
            variate,
            plan.main_learning_rate,
            _run,
            steps=traces.num_steps,
            step_extra=extra / traces.nelbo_every,
            num_steps=traces.num_steps,
            nelbo_draws=traces.nelbo_draws,
            nelbo_every=traces.nelbo_every,
        )
        for variate in (PLAIN, PAIRS, CLOSED_FORM, *variates)
    ]


def _run(plan: Plan, variate: Variate, rate: float) -> pd.DataFrame:
    traces = plan.traces
    run = train(plan, (traces.num_steps,), variate, rate, (_bound(plan.model, traces),))
    steps = range(0, traces.num_steps, traces.nelbo_every)
    return tidy(
        {"seed": plan.seed_range, "step": steps},
        nelbo=run.columns["nelbo"][:, :: traces.nelbo_every],
    )


@cached
def _bound(model: str, traces: Traces) -> Monitors:
    problem, rows = PROBLEMS[model](), distinct(model)

    def bound(step: Step):
        if not traces.nelbo_draws:
            return exact_nelbo(problem.objective, step.params, rows)
        # The key depends on seed and step alone: all variates are measured with the same draws.
        return sampled_nelbo(step.key, problem.objective, step.params, rows, traces.nelbo_draws)

    return quell.monitor(nelbo=bound, every=traces.nelbo_every)
