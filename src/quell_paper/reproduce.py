"""The whole reproduction: plan, run the missing jobs, and write tables, figures and report.

A claim that the seeds do not decide takes more of them, in batches, up to the looks of its plan;
the level of every interval accounts for all looks (`Results.level`).
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from quell_paper import dynamic, illustration, order_bias, static, step_time, store, traces
from quell_paper.claims import judge
from quell_paper.config import EXPERIMENTS, PAPER, QUICK, Illustration, Plan
from quell_paper.jobs import Job
from quell_paper.report import Outcome, publish
from quell_paper.results import collected
from quell_paper.run import run

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


def all_jobs(plans: dict[str, Plan], experiments: Sequence[str]) -> list[Job]:
    """The jobs of some experiments for one batch of seeds of each plan."""
    jobs = illustration.jobs(Illustration()) if "figure-1" in experiments else []
    for name, make in _JOBS.items():
        for plan in plans.values():
            if name in experiments and name in plan.experiments:
                jobs += make(plan)
    return jobs


def reproduce(
    plans: dict[str, Plan],
    out: Path,
    *,
    experiments: Sequence[str] = EXPERIMENTS,
    command: str = "quell reproduce",
    minutes: float = math.inf,
) -> Outcome:
    """Run the missing jobs of some experiments, and write all results into `out`.

    The jobs of undecided claims then run again with the next batch of seeds, until every claim is
    decided or the plans allow no further look.

    Args:
      plans: the plan of each model.
      out: a directory, made if it is missing. Jobs whose records it holds are not run again.
      experiments: the names of the experiments.
      command: the command that the report names as its origin.
      minutes: the time after which no further job begins; the report names the jobs that are left.

    Returns:
      The claims with their verdicts, and the sentence on the library's own estimator.
    """
    store.write_file(out / ".writable", "")  # better an error now than after the first job
    (out / ".writable").unlink()
    until, jobs = time.monotonic() + 60 * minutes, all_jobs(plans, experiments)
    results = collected(jobs, run(jobs, out, until), plans)
    for look in range(1, max(plan.looks for plan in plans.values())):
        wanted = frozenset().union(*(claim.undecided_jobs for claim in judge(results)))
        batches = [
            {name: replace(plan, batch=batch) for name, plan in plans.items() if look < plan.looks}
            for batch in range(1, look + 1)  # a part may be undecided only now
        ]
        known = {(job.identity, job.setting.get("first_seed")) for job in jobs}
        more = [
            job
            for batch in batches
            for job in all_jobs(batch, experiments)
            if job.identity in wanted and (job.identity, job.setting.get("first_seed")) not in known
        ]
        if more:
            jobs += more
            results = collected(jobs, run(jobs, out, until), plans)
    return publish(results, out, command)
