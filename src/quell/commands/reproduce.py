"""`quell reproduce`: the experiments of the paper, its figures, its table and its claims."""

import argparse
import sys
from pathlib import Path

NAME = "reproduce"
HELP = "run the paper's experiments; leaves figures, tables and report.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to run, how much of it, and where it goes."""
    from quell.experiments.config import EXPERIMENTS, PAPER

    seeds = ", ".join(f"{plan.seeds} for {name}" for name, plan in PAPER.items())
    parser.add_argument(
        "experiment", nargs="?", default="all", choices=(*EXPERIMENTS, "all"), help="default: all"
    )
    parser.add_argument("--model", default="all", choices=(*PAPER, "all"), help="default: all")
    parser.add_argument("--seeds", type=int, help=f"independent runs (default: {seeds})")
    parser.add_argument("--quick", action="store_true", help="few seeds, shortened: minutes")
    parser.add_argument(
        "--out", type=Path, default=Path("out"), help="directory; what is there is not run again"
    )


def run(args: argparse.Namespace) -> int:
    """Run, and say in a few lines what came out."""
    from quell._errors import invalid
    from quell.experiments.config import EXPERIMENTS, PAPER
    from quell.experiments.reproduce import plans, reproduce
    from quell.experiments.verdicts import verdict

    if args.seeds is not None and args.seeds < 1:
        raise invalid("--seeds", expected="at least 1", got=args.seeds, advice="Use --seeds 10.")
    models = tuple(PAPER) if args.model == "all" else (args.model,)
    experiments = EXPERIMENTS if args.experiment == "all" else (args.experiment,)
    claims = reproduce(
        plans(models, quick=args.quick, seeds=args.seeds),
        args.out,
        experiments=experiments,
        command=_command(args),
    )
    for claim in claims:
        if claim.parts:
            print(f"{claim.id:>2}  {verdict(claim.holds):<18}  {claim.text}")
    print(f"Wrote {args.out / 'report.html'}", file=sys.stderr)
    return 0


def _command(args: argparse.Namespace) -> str:
    words = ["quell reproduce", args.experiment, "--model", args.model]
    words += ["--seeds", str(args.seeds)] if args.seeds is not None else []
    return " ".join(words + (["--quick"] if args.quick else []))
