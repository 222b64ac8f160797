"""What the benchmarks share: timing side by side, tables, and their command line."""

import argparse
from pathlib import Path

from quell.experiments.timing import Section as Section
from quell.experiments.timing import Timing as Timing
from quell.experiments.timing import compared as compared
from quell.experiments.timing import print_table as print_table
from quell.experiments.timing import ratio as ratio
from quell.experiments.timing import save as save
from quell.experiments.timing import side_by_side as side_by_side
from quell.experiments.timing import versions as versions


def parser(description: str | None) -> argparse.ArgumentParser:
    """The command line every benchmark shares: where to save, how many rounds."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--out", type=Path, default=Path("out/benchmarks"), help="where JSON goes")
    made.add_argument("--rounds", type=int, default=15, help="turns of each competitor")
    return made
