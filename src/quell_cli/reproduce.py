"""`quell reproduce`: the experiments of the paper, its figures, its table and its claims."""

import argparse
import math
import shutil
import sys
from pathlib import Path
from typing import Any

from quell_cli._options import make_writable, not_negative, whole

NAME = "reproduce"
HELP = "run the paper's experiments, and write figures, tables and report.html"
# Written out, so that `quell --help` needs neither the laboratory nor its tools.
EXPERIMENTS = ("figure-1", "static", "dynamic", "orders", "traces", "table-1")
MODELS = ("logistic", "deep-gp", "deep-gp-1")
NEXT = "{quell} compare --model logistic   (all estimators on one problem)"
NEXT_QUICK = "{quell} reproduce all --out out/full   (the full run), or " + NEXT


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options: the experiments, their size, and the directory of the results."""
    parser.add_argument(
        "experiment", nargs="?", default="all", choices=(*EXPERIMENTS, "all"), help="default: all"
    )
    parser.add_argument("--model", default="all", choices=(*MODELS, "all"), help="default: all")
    parser.add_argument(
        "--seeds", type=whole(1), help="independent runs in a batch (default: 10, 5)"
    )
    parser.add_argument("--quick", action="store_true", help="few seeds and short runs: minutes")
    parser.add_argument(
        "--minutes",
        type=not_negative,
        default=math.inf,
        help="no further job begins after this time; the report names the jobs that are left",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("out"), help="directory; finished jobs are kept"
    )


def run(args: argparse.Namespace) -> int:
    """Run the experiments; print a line for each claim, then what was found and what to do next."""
    make_writable(args.out)
    try:
        from quell_paper.reproduce import plans, reproduce
    except ModuleNotFoundError as error:
        raise ImportError(
            f"quell reproduce needs {error.name}. Install it: pip install 'quell[paper]'"
        ) from error

    outcome = reproduce(
        plans(MODELS if args.model == "all" else (args.model,), quick=args.quick, seeds=args.seeds),
        args.out,
        experiments=EXPERIMENTS if args.experiment == "all" else (args.experiment,),
        command=_command(args),
        minutes=args.minutes,
    )
    print(*told(outcome, args.out, args.quick), sep="\n")
    return 0


def told(outcome: Any, out: Path, quick: bool) -> list[str]:
    """The lines for the terminal: the claims, then the result, the report and the next command."""
    lines = [f"{'':>2}  {'this run':<18}  {'full run':<18}  claim"]
    for claim in outcome.claims:
        if claim.parts:
            full = outcome.full.get(str(claim.id), {}).get("all", "not run")
            lines.append(f"{claim.id:>2}  {claim.verdict:<18}  {full:<18}  {claim.text}")
    # The program as it was called, if the shell would not find it by its name.
    quell = "quell" if shutil.which("quell") else sys.argv[0]
    following = (NEXT_QUICK if quick else NEXT).format(quell=quell)
    return [
        *lines,
        f"Found: {outcome.found}",
        f"Report: {out / 'report.html'}",
        f"Next: {following}",
    ]


def _command(args: argparse.Namespace) -> str:
    words = ["quell reproduce", args.experiment, "--model", args.model]
    words += ["--seeds", str(args.seeds)] if args.seeds is not None else []
    return " ".join(words + (["--quick"] if args.quick else []))
