"""`quell compare`: the estimators of the catalogue side by side on a model and a data set."""

import argparse
import json
import sys
import time
from pathlib import Path

from quell_cli._options import make_writable, names, number, positive, sizes, whole

NAME = "compare"
HELP = "compare gradient estimators on a model: variance, time and efficiency"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options: the problem, the estimators, the time and the output."""
    parser.add_argument("--model", default="logistic", help="logistic, deep-gp, bnn or vae")
    parser.add_argument(
        "--data", metavar="NAME|FILE.csv", help="a data set; by default the usual data of the model"
    )
    parser.add_argument("--target", metavar="COLUMN", help="the target column of a CSV file")
    parser.add_argument(
        "--estimators", type=names, metavar="A,B,…", help="names of estimators; all by default"
    )
    parser.add_argument(
        "--batch-sizes", type=sizes, default=(10, 100, 1000), metavar="10,100", help="batch sizes"
    )
    parser.add_argument(
        "--steps", type=whole(0), default=1000, help="training steps before comparing"
    )
    parser.add_argument(
        "--seconds",
        type=positive,
        default=60.0,
        help="time to take, training and compilation included",
    )
    parser.add_argument("--objective", type=number, help="also measure the time to this objective")
    parser.add_argument("--seed", type=whole(0), default=0, help="seed of all randomness")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where table, figure and JSON go")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")


def run(args: argparse.Namespace) -> int:
    """Compare estimators, print the table and save the results."""
    import jax

    from quell.diagnostics.compare import compare
    from quell.diagnostics.records import save_json
    from quell_cli.catalogue import estimators, problem

    began = time.monotonic()

    def report(name: str, size: int) -> None:
        took = f"{time.monotonic() - began:6.1f} s"
        print(f"{took}  compiling and measuring {name}, batch {size}", file=sys.stderr)

    make_writable(args.out)
    given = problem(args.model, args.data, args.target)
    chosen = estimators(given, args.estimators)
    init_key, compare_key = jax.random.split(jax.random.key(args.seed))
    try:
        comparison = compare(
            compare_key,
            given.objective,
            given.init(init_key),
            given.data,
            chosen,
            batch_sizes=args.batch_sizes,
            num_steps=args.steps,
            seconds=args.seconds,
            target=args.objective,
            report=report,
        )
    except KeyboardInterrupt:  # later on, it ends the measurement and keeps what there is
        print("quell compare: interrupted before anything was measured", file=sys.stderr)
        return 130  # by convention 128 + SIGINT
    document = {"problem": given.name, **comparison.to_json()}
    if args.json:
        print(json.dumps(document, indent=2, allow_nan=False))
    else:
        print(f"{given.name}\n\n{comparison}")
    if args.out is not None:
        save_json(args.out / "comparison.json", document)
        (args.out / "comparison.txt").write_text(f"{given.name}\n\n{comparison}\n")
        comparison.plot(args.out / "frontier.png")
    return 0
