"""The whole reproduction: plan, run the missing jobs, and write tables, figures and report."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from quell_paper import dynamic, illustration, order_bias, static, step_time, store, traces
from quell_paper.config import EXPERIMENTS, PAPER, QUICK, Illustration, Plan
from quell_paper.jobs import Job
from quell_paper.report import publish
from quell_paper.results import collected
from quell_paper.run import run
from quell_paper.verdicts import Claim

_JOBS: dict[str, Callable[[Plan], list[Job]]] = {
    "static": static.jobs,
    "dynamic": dynamic.jobs,
    "orders": order_bias.jobs,
    "traces": traces.jobs,
    "table-1": step_time.jobs,
}


def plans(models: Sequence[str], *, quick: bool, seeds: int | None) -> dict[str, Plan]:
    """The plan of each model, with another number of seeds if one is given."""
    base = QUICK if quick else PAPER
    return {model: replace(base[model], seeds=seeds or base[model].seeds) for model in models}


def reproduce(
    plans: dict[str, Plan],
    out: Path,
    *,
    experiments: Sequence[str] = EXPERIMENTS,
    command: str = "quell reproduce",
) -> list[Claim]:
    """Run the missing jobs of some experiments, and write all results into `out`.

    Args:
      plans: the plan of each model.
      out: a directory, made if it is missing. Jobs whose records it holds are not run again.
      experiments: the names of the experiments.
      command: the command that the report names as its origin.

    Returns:
      The claims with their verdicts.
    """
    jobs = illustration.jobs(Illustration()) if "figure-1" in experiments else []
    for experiment in experiments:
        if experiment != "figure-1":
            jobs += [job for plan in plans.values() for job in _JOBS[experiment](plan)]
    store.write_file(out / ".writable", "")  # better an error now than after the first job
    (out / ".writable").unlink()
    return publish(collected(run(jobs, out), plans), out, command)
