"""Section 5.4: the bound on the whole data while training, controlled and uncontrolled."""

from quell._loop import Step
from quell.experiments.config import Plan
from quell.experiments.methods import Method
from quell.experiments.problems import PROBLEMS
from quell.experiments.training import train
from quell.experiments.units import Table, Unit, cost, tidy

_PLAIN = Method("linear", "none", (), "none")


def units(plan: Plan) -> list[Unit]:
    """The uncontrolled run, and one unit per criterion, network and order."""
    traces = plan.traces
    methods = [
        Method("linear", criterion, hidden, order)
        for order in traces.orders
        for criterion in traces.criteria
        for hidden in traces.networks
    ]
    return [_unit(plan, method) for method in (_PLAIN, *methods)]


def _unit(plan: Plan, method: Method) -> Unit:
    traces = plan.traces
    setting = {
        "model": plan.model,
        "basis": method.basis,
        "criterion": method.criterion,
        "network": "plain" if method == _PLAIN else method.network,
        "order": method.order,
        "learning_rate": plan.main_learning_rate,
        "seeds": plan.seeds,
        "batch_size": plan.batch_size,
        "model_learning_rate": plan.learning_rate,
        "num_steps": traces.num_steps,
        "nelbo_draws": traces.nelbo_draws,
        "nelbo_every": traces.nelbo_every,
    }
    step = cost(plan.model, method.basis, method.criterion, method.hidden)
    bound = {"logistic": 100, "deep-gp": 6_000}[plan.model] / traces.nelbo_every
    weight = plan.seeds * traces.num_steps * (step + bound)
    return Unit("traces", setting, lambda: _run(plan, method), weight)


def _run(plan: Plan, method: Method) -> Table:
    problem, traces = PROBLEMS[plan.model](), plan.traces

    def nelbo(step: Step):
        # The key depends on seed and step alone: all methods are measured with the same draws.
        return problem.nelbo(step.key, step.params, traces.nelbo_draws)

    every = traces.nelbo_every
    controlled = None if method == _PLAIN else method
    rate = plan.main_learning_rate
    run = train(plan, (traces.num_steps,), controlled, rate, {"nelbo": nelbo}, every)
    return tidy(
        {"seed": range(plan.seeds), "step": range(0, traces.num_steps, every)},
        nelbo=run.columns["nelbo"][:, ::every],
    )
