"""The race: who has the answer first, by the clock, each at its own best.

Three phases for each contestant on each problem; each leaves a file, and is skipped if that file is
there: `tune` searches batch size, rate and schedule; `time` runs the chosen settings as
`quell.fit` would, with a clock; `gaps` replays these runs and evaluates the bound in float64. Then
the results of the problem are gathered in docs/race. Only `time` needs a quiet machine, and the
times of steps by which `tune` compares batch sizes.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import jax
from _race import jobs
from _race.files import whole
from _race.problems import PROBLEMS

PHASES = ("tune", "time", "gaps")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(PROBLEMS), choices=list(PROBLEMS))
    parser.add_argument("--phases", nargs="*", default=list(PHASES), choices=list(PHASES))
    parser.add_argument("--contestants", nargs="*", help="parts of their names; all by default")
    parser.add_argument("--minutes", type=float, default=90.0, help="no job begins later")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a twentieth of each run, two seeds")
    parser.add_argument("--out", type=Path, default=Path("out/race"), help="one file per job")
    parser.add_argument("--cache", type=Path, help="compiled code; in --out by default")
    parser.add_argument("--docs", type=Path, default=Path(__file__).parents[1] / "docs")
    options = parser.parse_args(arguments)
    # Phases compile the same loops; cold starts are measured apart, without this cache.
    cache = options.cache or options.out / "cache"
    jax.config.update("jax_compilation_cache_dir", str(cache.resolve()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    deadline = time.monotonic() + 60 * options.minutes
    plan = jobs.Plan(
        out=options.out,
        docs=options.docs,
        seeds=2 if options.quick else options.seeds,
        pace=0.05 if options.quick else 1.0,
        contestants=tuple(options.contestants or ()),
    )
    for name in options.only:
        for contestant in jobs.contestants(plan):
            for phase in options.phases:
                path = options.out / name / phase / jobs.file_name(contestant)
                if path.exists() or time.monotonic() > deadline:
                    continue
                began = time.monotonic()
                document = jobs.job(name, contestant, phase, plan)
                if document is None:
                    continue
                with whole(path) as file:
                    file.write(json.dumps(document).encode() + b"\n")
                took = time.monotonic() - began
                print(f"{took:6.1f} s  {path.relative_to(options.out)}", flush=True)
        jobs.gather(name, plan)
        jax.clear_caches()


if __name__ == "__main__":
    main()
