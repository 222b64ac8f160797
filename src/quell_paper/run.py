"""The runner: it runs jobs side by side, stores their records and shows the remaining time."""

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from quell_paper import store
from quell_paper.jobs import Job
from quell_paper.store import Record

_WORKERS = 2  # compilation uses one core: two jobs keep two cores busy
_COMPILATION = 3e6  # time to compile a job, in microseconds like its weight


def run(jobs: Sequence[Job], out: Path, until: float = math.inf) -> list[Record | None]:
    """Find the records of all jobs in `out`, or make them; in the order of the jobs.

    Jobs are independent and run two at a time, each compiled for all of its seeds. Jobs that
    measure time run alone, at the end.

    Args:
      until: the time by `time.monotonic` after which no further job begins; the jobs that are left
        have None for a record.
    """
    store.sweep(out)
    records: dict[int, Record] = {}
    complaints = []
    for i, job in enumerate(jobs):
        record, complaint = store.read(out, job.experiment, job.setting)
        if record is not None:
            records[i] = record
        if complaint is not None:
            complaints.append(f"{complaint}: the job runs again")
    # What tells most comes first: an early look shows most, and the rest may be cut off.
    missing = [i for i in range(len(jobs)) if i not in records]
    missing.sort(key=lambda i: jobs[i].rank)
    with _bar() as bar:
        say = partial(bar.console.print, markup=False, highlight=False, soft_wrap=True)
        if records:
            say(f"{len(records)} of {len(jobs)} jobs were done before")
        for complaint in complaints:
            say(complaint)
        report = _reporter([jobs[i] for i in missing], bar, say)
        for alone, workers in ((False, _WORKERS), (True, 1)):
            chosen = [i for i in missing if jobs[i].alone == alone]
            for i, record in _finished(jobs, chosen, workers, out, until, say):
                if record is not None:
                    records[i] = record
                    report(jobs[i], record.seconds)
        if left := len(jobs) - len(records):
            say(f"{left} of {len(jobs)} jobs are left for another time")
    return [records.get(i) for i in range(len(jobs))]


def _finished(
    jobs: Sequence[Job],
    indices: Sequence[int],
    workers: int,
    out: Path,
    until: float,
    say: Callable,
) -> Iterator[tuple[int, Record | None]]:
    """Run jobs on threads (compiled code releases Python's lock) and yield each when it ends.

    After an error or an interruption no further job begins; running jobs end and are stored.
    """
    with ThreadPoolExecutor(workers) as pool:
        futures = {pool.submit(_made, jobs[i], out, until): i for i in indices}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except KeyboardInterrupt:
            say("interrupted: the running jobs end first, so that their results are kept")
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _made(job: Job, out: Path, until: float) -> Record | None:
    if time.monotonic() > until:
        return None
    begin = time.perf_counter()
    table = job.run()
    return store.write(out, job.experiment, job.setting, table, time.perf_counter() - begin)


def _bar() -> Progress:
    """A bar on a terminal; elsewhere it is disabled, and `_reporter` prints lines."""
    columns = (BarColumn(20), TextColumn("{task.fields[status]}"), TextColumn("{task.description}"))
    return Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty())


def _reporter(jobs: Sequence[Job], bar: Progress, say: Callable) -> Callable[[Job, float], None]:
    """`report(job, seconds)`, which shows a finished job and the estimate of the remaining time."""
    begin, done, finished = time.perf_counter(), 0, 0.0
    total = sum(job.weight + _COMPILATION for job in jobs)
    task = bar.add_task("compiling", total=total, status=f"0/{len(jobs)}")

    def report(job: Job, seconds: float) -> None:
        nonlocal done, finished
        done, finished = done + 1, finished + job.weight + _COMPILATION
        remaining = readable((time.perf_counter() - begin) * (total - finished) / finished)
        # Until each worker has finished a job, half of the work done is not counted.
        rest = f"about {remaining} left" if done >= _WORKERS else "still compiling"
        count = f"{done}/{len(jobs)}"
        bar.update(task, completed=finished, description=job.label, status=f"{count}, {rest}")
        if bar.disable:
            say(f"[{count}] {job.label}: {seconds:.1f} s; {rest}")

    return report


def readable(seconds: float) -> str:
    """A duration for people.

    >>> readable(42), readable(3 * 60 + 20), readable(5000)
    ('42 s', '3 min 20 s', '1 h 23 min')
    """
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"
