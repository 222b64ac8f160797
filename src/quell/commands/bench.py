"""`quell bench`: what a step costs and how the cost grows, side by side."""

import argparse
import json
from pathlib import Path

NAME = "bench"
HELP = "time the training loop and every estimator, side by side, and as data and batches grow"
SECTIONS = ("loop", "estimators", "growth", "batch-growth")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be asked for."""
    parser.add_argument(
        "--only", nargs="+", default=SECTIONS, choices=SECTIONS, help="which benchmarks"
    )
    parser.add_argument("--rounds", type=int, default=15, help="turns that each competitor takes")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the JSON goes")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def run(args: argparse.Namespace) -> int:
    """Run the benchmarks one after the other."""
    from quell.experiments.bench import SECTIONS as BENCHMARKS
    from quell.experiments.timing import print_table, save, versions

    results = {}
    for name in args.only:
        section = BENCHMARKS[name](args.rounds)
        results[name] = section.to_json()
        if not args.json:
            print_table(*section)
    if args.json:
        print(json.dumps({"versions": versions(), **results}, indent=2))
    if args.out is not None:
        save(args.out / "bench.json", results)
    return 0
