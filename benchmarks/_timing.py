"""The command line and the JSON file that all benchmarks share."""

import argparse
from pathlib import Path

from quell.diagnostics.records import as_json, save_json, versions


def parser(description: str | None) -> argparse.ArgumentParser:
    """The command line: where to save, how many rounds."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--out", type=Path, default=Path("out/benchmarks"), help="where JSON goes")
    made.add_argument("--rounds", type=int, default=15, help="turns of each competitor")
    return made


def save(path: Path, results: dict, *packages: str) -> None:
    """Write the results as JSON, together with the versions."""
    save_json(path, as_json({"versions": versions(*packages), **results}))
    print(f"\nsaved {path}")
