"""Make the tables and figures of docs/comparison.md: `make comparison`, a quarter of an hour each.

Every problem leaves docs/comparison/NAME.json and docs/figures/comparison_NAME.png. The tables of
the page stand between the marks `<!-- begin NAME -->` and `<!-- end NAME -->`, and are written from
the JSON.
"""

import argparse
import json
import time
from pathlib import Path

import jax

from quell.diagnostics.compare import compare
from quell.diagnostics.records import versions
from quell.estimators import antithetic
from quell_cli.catalogue import estimators, problem

HERE = Path(__file__).parent
PROBLEMS = {
    "titanic": ("logistic", "titanic"),
    "magic": ("logistic", "magic"),
    "airfoil": ("deep-gp", "airfoil"),
    "digits_bnn": ("bnn", "digits"),
    "digits_vae": ("vae", "digits"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(PROBLEMS), choices=[*PROBLEMS])
    parser.add_argument("--estimators", nargs="*", help="which of the catalogue; all by default")
    parser.add_argument("--batch-sizes", nargs="*", type=int, default=(10, 100, 1000))
    parser.add_argument("--steps", type=int, default=1000, help="training before the comparison")
    parser.add_argument("--seconds", type=float, default=60.0, help="to measure each problem for")
    parser.add_argument("--out", type=Path, default=HERE, help="where the page is")
    args = parser.parse_args()
    for name in args.only:
        document = run(name, args)
        folder = args.out / "comparison"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")
        jax.clear_caches()
    page = args.out / "comparison.md"
    if page.exists():
        page.write_text(with_tables(page.read_text(), args.out / "comparison"))


def run(name: str, args: argparse.Namespace) -> dict:
    """Compare on one problem and draw the figure."""
    began = time.monotonic()

    def report(estimator: str, size: int) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {name}: {estimator}, batch {size}", flush=True)

    given = problem(*PROBLEMS[name])
    init_key, compare_key = jax.random.split(jax.random.key(0))
    comparison = compare(
        compare_key,
        given.objective,
        given.init(init_key),
        given.data,
        estimators(given, args.estimators),
        batch_sizes=args.batch_sizes,
        num_steps=args.steps,
        driver=antithetic(),
        seconds=args.seconds,
        report=report,
    )
    print(f"\n{given.name}\n\n{comparison}\n")
    comparison.plot(args.out / "figures" / f"comparison_{name}.png")
    settings = {"seconds": args.seconds, "versions": versions()}
    return {"problem": given.name, **settings, **comparison.to_json()}


def with_tables(text: str, folder: Path) -> str:
    """The page with the table of every problem that has been run put between its marks."""
    for path in sorted(folder.glob("*.json")):
        begin, end = f"<!-- begin {path.stem} -->", f"<!-- end {path.stem} -->"
        if begin in text and end in text:
            before, rest = text.split(begin, 1)
            after = rest.split(end, 1)[1]
            text = f"{before}{begin}\n{table(json.loads(path.read_text()))}\n{end}{after}"
    return text


def table(document: dict) -> str:
    """One line per estimator: remaining variance and efficiency at every batch size, best first."""
    rows = {(row["name"], row["batch_size"]): row for row in document["estimators"]}
    names = list(dict.fromkeys(row["name"] for row in document["estimators"]))
    sizes = sorted({size for _, size in rows})
    head = [
        "estimator",
        *(f"batch size {size}" for size in sizes),
        "efficiency (best baseline = 1)",
    ]
    lines = [head, ["---"] * len(head)]
    for name in names:
        own = [rows[name, size] for size in sizes if (name, size) in rows]
        cells = [_cell(rows.get((name, size)), rows["plain", size]) for size in sizes]
        best = max(row["efficiency_vs_best"] for row in own)
        lines.append([name, *cells, f"{best:.2f}"])
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    missing = {}
    for name, reason in document["unavailable"].items():
        missing.setdefault(_needed(reason), []).append(name)
    shares = [f"{name} {_share(share)}" for name, share in document["ceilings"].items()]
    key = (
        "Remaining variance (plain = 1) of draws, points and total; µs per step; "
        "**efficiency (plain = 1)**."
    )
    facts = f"Remaining variance of draws at best, by basis: {'; '.join(shares)}."
    wants = [f"Not here: {', '.join(names)}. They need {need}." for need, names in missing.items()]
    return "\n\n".join([text, key, facts, *wants])


def _cell(row: dict | None, plain: dict) -> str:
    """Remaining variance of draws, points and total; time; efficiency against plain."""
    if row is None:
        return "–"
    shares = []
    for part in ("draws", "points", "total"):
        whole = plain[f"variance_{part}"]
        share = max(row[f"variance_{part}"], 0.0) / whole if whole > 0 else 0.0
        shares.append(f"{share:.2g}")
    biased = " (biased)" if row["error"] > max(row["variance_total"], 0.0) else ""
    time_us = f"{row['seconds_per_step'] * 1e6:.3g}"
    return f"{', '.join(shares)}{biased}; {time_us}; **{row['efficiency_vs_plain']:.2g}**"


def _needed(reason: str) -> str:
    """The thing that an error expected."""
    return reason.split("expected ", 1)[-1].split(", got", 1)[0].split(": ", 1)[0]


def _share(share: dict | str) -> str:
    return share if isinstance(share, str) else f"{share['value']:.2g}"


if __name__ == "__main__":
    main()
