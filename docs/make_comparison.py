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

from quell._compare import compare
from quell.estimators import antithetic
from quell.experiments.field import chosen, contest
from quell.experiments.timing import versions

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
    parser.add_argument("--estimators", nargs="*", help="which of the field; all by default")
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

    problem = contest(*PROBLEMS[name])
    init_key, field_key, compare_key = jax.random.split(jax.random.key(0), 3)
    comparison = compare(
        compare_key,
        problem.objective,
        chosen(field_key, problem, args.estimators),
        problem.init(init_key),
        problem.data,
        batch_sizes=args.batch_sizes,
        num_steps=args.steps,
        driver=antithetic(),
        seconds=args.seconds,
        report=report,
    )
    print(f"\n{problem.name}\n\n{comparison}\n")
    comparison.plot(args.out / "figures" / f"comparison_{name}.png")
    settings = {"seconds": args.seconds, "versions": versions()}
    return {"problem": problem.name, **settings, **comparison.to_json()}


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
    """One line per estimator: variance left and efficiency at every batch size, the best first."""
    rows = {(row["name"], row["batch_size"]): row for row in document["estimators"]}
    names = list(dict.fromkeys(row["name"] for row in document["estimators"]))
    sizes = sorted({size for _, size in rows})
    head = ["estimator", *(f"batch {size}: draws, points, total; µs; ×" for size in sizes), "×best"]
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
    facts = f"Best any variate could leave of the draws, by basis: {'; '.join(shares)}."
    wants = [f"Not here: {', '.join(names)}. They need {need}." for need, names in missing.items()]
    return "\n\n".join([text, facts, *wants])


def _cell(row: dict | None, plain: dict) -> str:
    """Shares of plain's draws, points and total; time; efficiency against plain."""
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
    """What an error expected."""
    return reason.split("expected ", 1)[-1].split(", got", 1)[0].split(": ", 1)[0]


def _share(share: dict | str) -> str:
    return share if isinstance(share, str) else f"{share['value']:.2g}"


if __name__ == "__main__":
    main()
