"""The command line: `quell COMMAND`, with one module of `quell.commands` per command."""

import argparse
import sys
from collections.abc import Sequence

from quell.commands import COMMANDS


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, and print errors that a user can mend without a traceback."""
    parser = argparse.ArgumentParser(
        prog="quell", description="Quieter gradients for doubly stochastic objectives."
    )
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        subparser = subparsers.add_parser(command.NAME, help=command.HELP, description=command.HELP)
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.run)
    args = parser.parse_args(argv)
    try:
        return args.run(args)
    except (ValueError, OSError, ImportError) as error:
        print(f"quell: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("quell: interrupted; run the same command again to continue", file=sys.stderr)
        return 130  # by convention 128 + SIGINT


if __name__ == "__main__":
    sys.exit(main())
