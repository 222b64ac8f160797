"""Write the tables of docs/race.md from docs/race/*.json, which `benchmarks/race.py` leaves.

python docs/make_race.py
"""

import json
import math
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ORDER = (  # the problems of `benchmarks/race.py`
    "magic", "million", "titanic", "airfoil", "airfoil_short", "spambase", "poisson",
    "poisson_mean_field", "crossed", "digits", "digits_local", "protein",
)  # fmt: skip
NEVER = "–"


def main() -> None:
    results = {path.stem: json.loads(path.read_text()) for path in HERE.glob("race/*.json")}
    results = {name: results[name] for name in ORDER if name in results}
    page = (HERE / "race.md").read_text()
    page = between(page, "bars", bars(results))
    page = between(page, "untuned", untuned(results))
    missing = [name for name in ORDER if name not in results]
    words = f"Set up, and not raced yet: {', '.join(missing)}.\n" if missing else ""
    tables = "\n".join(problem(n, d) for n, d in results.items())
    page = between(page, "problems", tables + "\n" + words)
    (HERE / "race.md").write_text(page)


def between(page: str, mark: str, text: str) -> str:
    """The page with the text between two marks."""
    begin, end = f"<!-- begin {mark} -->", f"<!-- end {mark} -->"
    return page[: page.index(begin) + len(begin)] + "\n" + text + "\n" + page[page.index(end) :]


def problem(name: str, document: dict) -> str:
    """The table and the figure of a problem."""
    targets = [str(t) for t in document["targets"]]
    to = [f"{float(t):g} nats" for t in targets]
    head = ["contestant", *to, "ends at", "setting", "µs a step", "refreshes"]
    rows = []
    for who, summary in sorted(document["contestants"].items(), key=lambda i: _rank(i[1], targets)):
        setting = _setting_of(summary, targets)
        step = (summary.get("per_step") or {}).get(str(setting.get("batch")))
        share = setting.get("refresh_share")
        rows.append(
            [who, *(_seconds(summary["times"][t]) for t in targets), _number(summary["end"][0]),
             _words(setting), NEVER if step is None else f"{step * 1e6:.0f}",
             f"{100 * share:.0f} %" if share else ""]
        )  # fmt: skip
    how = "by quadrature" if document["exact"] else "with fixed draws; the least median of five"
    lines = [
        f"### {document['title']}",
        "",
        f"Best bound {document['best']:,.2f} nats ({how}).",
        "",
    ]
    lines += table(head, rows)
    advice = document.get("advice")
    if advice:
        words = f"{advice['estimator']}, batch size {advice['batch']}"
        lines += ["", f"`quell.recommend` from the start picks {words}."]
    return "\n".join([*lines, "", f"![Gap over time](figures/race-{name}.png)", ""])


def untuned(results: dict) -> str:
    """Constant Adam at 1e-2, batches of 100: nats above the best at the end of the time."""
    who = ("plain", "pairs", "8 draws", "SVRG", "network", "closed form")
    rows = []
    for document in results.values():
        cells = [document["title"]]
        for estimator in who:
            summary = document["contestants"].get(f"{estimator}, Adam") or {}
            first = (summary.get("untuned") or {}).get(str(document["targets"][1]))
            end = summary.get("untuned_end")
            cells.append(NEVER if end is None else f"{_seconds(first)}; {_number(end[0])}")
        rows.append(cells)
    return "\n".join(table(["problem", *who], rows))


def bars(results: dict) -> str:
    """What the race had to show, and what it showed."""
    rows = [*_prices(results), *_noise(results), *_ratios(results)]
    rows += [*_airfoil(results), *_advice(results), *_limits(results)]
    return "\n".join(table(["", "bar", "measured", ""], rows))


def _prices(results: dict):
    for name, batch in (("magic", "30"), ("magic", "100"), ("airfoil", "100")):
        ratio = _at(results, name, "prices", "step", batch, "ratio")
        yield _bar(
            f"closed-form step, {name}, batch {batch}", "≤ 1.25 × pairs", ratio, 1.25, "{:.2f} ×"
        )
    for name in results:
        for epochs, most in (("1", 0.5), ("10", 0.2)):
            share = _at(results, name, "prices", "refresh_share", epochs)
            if share is not None:
                yield _bar(
                    f"refreshes, epochs: {epochs}, {name}", f"≤ {most:.0%}", share, most, "{:.0%}"
                )
    for name in results:
        cold = _at(results, name, "prices", "cold")
        if cold:
            ratio = cold["closed form"] / cold["plain"]
            words = f"{{:.1f}} × ({cold['closed form']:.1f} s, plain {cold['plain']:.1f} s)"
            yield _bar(f"cold start, {name}", "≤ 2 × plain", ratio, 2, words)


def _noise(results: dict):
    for name, most in (("magic", 0.03), ("million", 0.05), ("airfoil", 0.15), ("protein", 0.1)):
        for row in _at(results, name, "noise", "noise_left") or []:
            worst = max(row["tenths"][1:])
            what = f"noise left of pairs', {name}, {row['optimiser']}, batch {row['batch']}"
            yield _bar(what, f"≤ {most:g}", worst, most, "{:.3f}")


def _ratios(results: dict):
    ours = ("closed form",)
    for name, target, against, least in (
        ("magic", 1.0, ("pairs, Adam",), 6),
        ("magic", 1.0, ("plain, Adam",), 30),
        ("magic", 1.0, ("L-BFGS, exact bound",), 4),
        ("million", 1.5, ("pairs, Adam", "pairs, natural"), 5),
        ("million", 1.5, ("L-BFGS, exact bound", "L-BFGS, 8 draws", "L-BFGS, 32 draws"), 10),
        ("titanic", 0.1, ("pairs, Adam",), 1),
        ("titanic", 0.1, ("plain, Adam",), 2),
    ):
        if name not in results:
            continue
        document = results[name]
        best = _best(document, target, ours)
        other = min(_time(document, who, target) for who in against)
        what = f"{name}, {target:g} nats: closed form against {' or '.join(against)}"
        if not math.isfinite(other):  # the other never arrived in its longest run
            longest = max(_longest(document, who) for who in against)
            ratio = longest / best if math.isfinite(best) and longest else None
            words = f"more than {{:.1f}} × ({_clock(best)}, not in {_clock(longest)})"
        else:
            ratio = other / best if math.isfinite(best) else None
            words = f"{{:.1f}} × ({_clock(best)}, {_clock(other)})"
        yield _bar(what, f"≥ {least} ×", ratio, least, words, most=False)


def _airfoil(results: dict):
    """The deep GP on airfoil, to a bound of 1,607 nats, by the median runs."""
    document = results.get("airfoil")
    if document is None:
        return
    curves = {who: summary["curves"] for who, summary in document["contestants"].items()}

    def first(names: list[str]) -> float:
        gap = 1607 - document["best"]
        times = [
            seconds
            for who in names
            for curve in curves[who]
            for seconds, median in zip(curve["seconds"], curve["median"])
            if median is not None and median <= gap
        ]
        return min(times, default=math.inf)

    ours = [who for who in curves if who.startswith("closed form")]
    best = first(ours)
    for who, least in (("pairs, Adam", 5), ("plain, Adam", 8)):
        if who not in curves:
            continue
        other = first([who])
        never = not math.isfinite(other)
        other = _longest(document, who) if never else other
        words = (
            f"{'more than ' * never}{{:.1f}} × ({_clock(best)}, {'not in ' * never}{_clock(other)})"
        )
        what = f"airfoil, to 1,607 nats: closed form against {who}"
        yield _bar(what, f"≥ {least} ×", other / best, least, words, most=False)
    end = document["best"] + min(document["contestants"][who]["end"][0] for who in ours)
    yield _bar("airfoil, where the closed form ends", "≤ 1,593", end, 1593, "{:,.1f}")


def _advice(results: dict):
    """The estimator that `recommend` picks against the better of plain and pairs, under Adam."""
    known = {"monte_carlo(1)": "plain", "antithetic(2)": "pairs", "closed_form()": "closed form"}
    for name, document in results.items():
        advice = document.get("advice")
        if not advice or advice["estimator"] not in known:
            continue
        target = document["targets"][1]
        ours = _time(document, f"{known[advice['estimator']]}, Adam", target)
        other = min(_time(document, f"{who}, Adam", target) for who in ("plain", "pairs"))
        what = f"{name}, {target:g} nats, Adam: recommended {known[advice['estimator']]}"
        what += " against the better of plain and pairs"
        if not math.isfinite(min(ours, other)):
            yield [what, "≤ 1.1 ×", "none of them arrived", ""]
            continue
        ratio = ours / other if math.isfinite(ours) else None
        words = f"{{:.2f}} × ({_clock(ours)}, {_clock(other)})"
        yield _bar(what, "≤ 1.1 ×", ratio, 1.1, words)


def _limits(results: dict):
    for name in results:
        found = _at(results, name, "limit", "limit") or {}
        for who, row in found.items():
            for steps in ("1000", "10000"):
                ratio = row[steps]["ratio"]
                held = "held" if 0.7 <= ratio <= 3 else "missed"
                what = f"{name}, {who}: gap after {int(steps):,} steps over ν/T, with replacement"
                yield [what, "0.7 to 3", f"{ratio:.2f} (ν {row['nu']:.3g})", held]


def _bar(what: str, bar: str, value: Any, edge: float, words: str, most: bool = True) -> list[str]:
    if value is None:
        return [what, bar, "not measured", ""]
    held = value <= edge if most else value >= edge
    missed = "open" if words.startswith("more than") else "missed"  # a bound on the ratio alone
    return [what, bar, words.format(value), "held" if held else missed]


def _best(document: dict, target: float, estimators) -> float:
    """The first time of some estimators, under either optimiser."""
    named = [w for w in document["contestants"] if w.split(", ")[0] in estimators]
    return min((_time(document, who, target) for who in named), default=math.inf)


def _longest(document: dict, who: str) -> float:
    """The end of a contestant's longest run."""
    summary = document["contestants"].get(who) or {"curves": []}
    return max((curve["seconds"][-1] for curve in summary["curves"]), default=0.0)


def _time(document: dict, who: str, target: float) -> float:
    first = (document["contestants"].get(who) or {"times": {}})["times"].get(str(target))
    return math.inf if first is None else first["seconds"][0]


def _rank(summary: dict, targets: list[str]):
    times = [(summary["times"][t] or {"seconds": [math.inf]})["seconds"][0] for t in targets]
    return times[1], times[0], times[2], summary["end"][0] or math.inf


def _setting_of(summary: dict, targets: list[str]) -> dict:
    for t in (targets[1], targets[0], targets[2]):
        if summary["times"][t] is not None:
            return summary["times"][t]["setting"]
    return summary["curves"][0]


def _words(setting: dict) -> str:
    if "batch" not in setting:
        return "all the data"
    use = "cosine" if setting["cosine"] else {"average": "averaged"}.get(setting["use"], "constant")
    return f"{setting['batch']:,}, {setting['peak']:.2g}, {use}, {setting['num_steps']:,} steps"


def _seconds(first: Any) -> str:
    if first is None:
        return NEVER
    median, low, high = first["seconds"]
    return f"{_clock(median)} ({_clock(low)} to {_clock(high)})"


def _clock(seconds: float | None) -> str:
    if seconds is None or not math.isfinite(seconds):
        return "never"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _number(value: float | None) -> str:
    if value is None:
        return NEVER
    return f"{value:,.0f}" if 1e3 <= abs(value) < 1e6 else f"{value:.3g}"


def _at(results: dict, *path: str) -> Any:
    found: Any = results
    for part in path:
        found = (found or {}).get(part)
    return found


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows)]


if __name__ == "__main__":
    main()
