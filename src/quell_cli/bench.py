"""`quell bench`: the cost of a step, and its growth with data and batches."""

import argparse
import json
from pathlib import Path
from typing import Any

from quell_cli._options import make_writable, whole

NAME = "bench"
HELP = "time a step of every estimator, side by side, and as data and batches grow"
# Written out, so that `quell --help` needs no JAX.
SECTIONS = ("estimators", "growth", "batch-growth")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options: the benchmarks, their rounds and the output."""
    parser.add_argument(
        "--only", nargs="+", default=list(SECTIONS), choices=list(SECTIONS), help="benchmarks"
    )
    parser.add_argument("--rounds", type=whole(1), default=15, help="turns of each competitor")
    parser.add_argument("--out", type=Path, metavar="DIR", help="directory of the JSON")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def run(args: argparse.Namespace) -> int:
    """Run the benchmarks one after the other."""
    make_writable(args.out)
    from quell.diagnostics.records import save_json, versions
    from quell_cli import benchmarks

    document: dict[str, Any] = {"versions": versions()}
    for name in args.only:
        section = benchmarks.SECTIONS[name](args.rounds)
        document[name] = section.to_json()
        if not args.json:
            print(section)
    if args.json:
        print(json.dumps(document, indent=2))
    if args.out is not None:
        save_json(args.out / "bench.json", document)
    return 0
