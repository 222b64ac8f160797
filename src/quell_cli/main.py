"""The command line: `quell COMMAND`, with one module of `quell_cli` per command."""

import argparse
import importlib
import sys
from collections.abc import Sequence
from importlib import metadata

from quell_cli import COMMANDS


class _Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line."""

    def error(self, message):
        self.exit(2, f"quell: {message}. Try {self.prog} --help.\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, and print errors that a user can mend in one line without a traceback."""
    parser = _Parser(
        prog="quell", description="Quieter gradients for doubly stochastic objectives."
    )
    parser.add_argument("--version", action="version", version=f"quell {metadata.version('quell')}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for name in COMMANDS:
        command = importlib.import_module(f"quell_cli.{name}")
        subparser = subparsers.add_parser(command.NAME, help=command.HELP, description=command.HELP)
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.run)
    args = parser.parse_args(argv)
    try:
        return args.run(args)
    except (ValueError, OSError, ImportError) as error:
        print("quell:", " ".join(str(error).split()), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("quell: interrupted; run the same command again to continue", file=sys.stderr)
        return 130  # by convention 128 + SIGINT


if __name__ == "__main__":
    sys.exit(main())
