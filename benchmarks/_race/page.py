"""The results of the race: one JSON and one figure per problem, and the tables of docs/race.md."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from _race.problems import Problem
from quell.diagnostics.records import as_json, versions
from quell.plotting._style import COLOURS, GREY, new_figure, saved, styled

PARTS = {"prices": "time", "advice": "time", "noise": "gaps", "limit": "gaps"}
LINES = {"Adam": "--", "natural": "-"}
EXPERT_LINES = {"L-BFGS, exact bound": "-", "L-BFGS, 8 draws": ":", "L-BFGS, 32 draws": "-."}


def gather(name: str, problem: Problem, optimum: float | None, out: Path, docs: Path) -> None:
    """The finished jobs of a problem as docs/race/NAME.json, its figure, and the page."""
    found = {
        _contestant(path): json.loads(path.read_text())
        for path in sorted((out / name / "gaps").glob("*.json"))
        if path.stem not in PARTS
    }
    if not found:
        return
    results = {who: _results(document) for who, document in found.items()}
    # Where the optimum is unknown, the best that half of a contestant's seeds reach: a single seed
    # may fall into a valley that no other finds.
    medians = [np.nanmin(np.median(r["values"], 0)) for each in results.values() for r in each]
    best = float(np.nanmin(medians)) if optimum is None else optimum
    document = {
        "title": problem.title,
        "exact": optimum is not None,
        "best": best,
        "targets": list(problem.targets),
        "contestants": {
            who: _summary(found[who], results[who], best, problem.targets) for who in found
        },
        "versions": versions("numpyro", "scipy"),
    }
    for part, phase in PARTS.items():
        file = out / name / phase / f"{part}.json"
        document[part] = json.loads(file.read_text()) if file.exists() else None
    path = docs / "race" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(as_json(_rounded(document)), indent=1, allow_nan=False) + "\n")
    draw(document, docs / "figures" / f"race-{name}.png")


def _contestant(path: Path) -> str:
    """The name behind a file of `jobs`."""
    return path.stem.replace("--", ", ").replace("_", " ")


def _results(document: dict) -> list[dict]:
    """One entry per raced setting: seconds and values `[seeds, T]`."""
    if "results" in document:
        return [
            r | {"seconds": np.array(r["seconds"]), "values": np.array(r["values"], float)}
            for r in document["results"]
        ]
    # experts: every run has times of its own, put on one grid
    least = max(1e-4, min(s[min(1, len(s) - 1)] for s in document["seconds"]))
    grid = np.geomspace(least, max(s[-1] for s in document["seconds"]) + 1e-9, 80)
    values = [
        np.array(v)[np.searchsorted(s, grid, "right") - 1]
        for s, v in zip(document["seconds"], document["values"])
    ]
    settings = {k: document[k] for k in ("batch", "peak", "cosine", "num_steps") if k in document}
    return [settings | {"seconds": np.tile(grid, (len(values), 1)), "values": np.array(values)}]


def _summary(document: dict, results: list[dict], best: float, targets) -> dict:
    tuned = [r for r in results if not r.get("untuned")]
    untuned = [r for r in results if r.get("untuned")]
    costs = {k: document[k] for k in ("cold", "per_step", "per_refresh") if k in document}
    return costs | {
        "times": {str(t): _first(tuned, best, t) for t in targets},
        "untuned": {str(t): _first(untuned, best, t) for t in targets} if untuned else None,
        "untuned_end": _band(untuned[0]["values"][:, -1] - best) if untuned else None,
        "end": min((_band(r["values"][:, -1] - best) for r in tuned), key=lambda b: b[0]),
        "curves": [_curve(r, best) for r in tuned],
        "replayed": [all(r["same"]) for r in results if "same" in r],
    }


def _first(results: list[dict], best: float, target: float) -> dict | None:
    """The setting that is there first by its median seed, and the band over seeds."""
    found = []
    for r in results:
        times = [crossing(s, v - best, target) for s, v in zip(r["seconds"], r["values"])]
        found.append({"seconds": _band(np.array(times)), "setting": _setting(r)})
    found = [f for f in found if math.isfinite(f["seconds"][0])]
    return min(found, key=lambda f: f["seconds"][0], default=None)


def crossing(seconds: np.ndarray, gaps: np.ndarray, target: float) -> float:
    """The first time at which the gap is at most the target, between two marks on log axes.

    >>> round(crossing(np.array([1.0, 4.0]), np.array([10.0, 0.1]), 1.0), 6)
    2.0
    """
    there = np.flatnonzero(gaps <= target)
    if not len(there):
        return math.inf
    i = int(there[0])
    if i == 0 or not np.isfinite(gaps[i - 1]):
        return float(seconds[i])
    above, below = math.log(gaps[i - 1] / target), math.log(max(gaps[i], 1e-12) / target)
    share = above / (above - below)
    start, end = math.log(max(seconds[i - 1], 1e-6)), math.log(max(seconds[i], 1e-6))
    return math.exp(start + share * (end - start))


def _setting(r: dict) -> dict:
    names = ("batch", "peak", "cosine", "num_steps", "use", "refresh_share")
    return {k: r[k] for k in names if k in r}


def _band(values: np.ndarray) -> list[float]:
    """Median, least and most."""
    values = np.nan_to_num(np.asarray(values, float), nan=np.inf, posinf=np.inf)
    return [float(np.median(values)), float(values.min()), float(values.max())]


def _curve(r: dict, best: float) -> dict:
    gaps = np.nan_to_num(r["values"] - best, nan=np.inf, posinf=np.inf)
    return _setting(r) | {
        "seconds": np.median(r["seconds"], 0).tolist(),
        "median": np.median(gaps, 0).tolist(),
        "least": gaps.min(0).tolist(),
        "most": gaps.max(0).tolist(),
    }


@styled
def draw(document: dict, path: Path) -> None:
    """The gap over time, each contestant in the setting that is first at the middle target."""
    figure, axes = new_figure(1, 1, 7.2, 4.2)
    panel = axes[0, 0]
    estimators = list(dict.fromkeys(w.split(", ")[0] for w in document["contestants"]))
    own = [e for e in estimators if e not in ("L-BFGS", "NumPyro")]
    colours = dict(zip(own, COLOURS))
    for who, summary in document["contestants"].items():
        curve = _shown(summary, document["targets"])
        if curve is None:
            continue
        kind = who.split(", ")[-1]
        colour = colours.get(who.split(", ")[0], GREY)
        line = LINES.get(kind, EXPERT_LINES.get(who, (0, (1, 3))))
        at = np.array(curve["seconds"])
        low = np.maximum([x if x is not None else np.nan for x in curve["least"]], 1e-9)
        panel.plot(at, curve["median"], linestyle=line, color=colour, label=who, lw=1.3)
        panel.fill_between(at, low, curve["most"], color=colour, alpha=0.12, lw=0)
    middle = document["targets"][1]
    tops = document["targets"][0] * 300, document["targets"][-1] / 30
    panel.set(xscale="log", yscale="log", xlabel="seconds of the run", ylabel="nats above the best")
    panel.set_ylim(tops[1], tops[0])
    for target in document["targets"]:
        panel.axhline(target, color=GREY, lw=0.6, ls=":")
    panel.set_title(f"{document['title']}; settings first at {middle:g} nats")
    figure.legend(loc="outside right center", fontsize=7)
    saved(figure, path)


def _shown(summary: dict, targets) -> dict | None:
    for target in (targets[1], targets[0], targets[2]):
        first = summary["times"].get(str(target))
        if first is not None:
            for curve in summary["curves"]:
                if {k: curve.get(k) for k in first["setting"]} == first["setting"]:
                    return curve
    return min(summary["curves"], key=lambda c: c["median"][-1], default=None)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: (v if k == "best" else _rounded(v)) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(v) for v in value]
    return float(f"{value:.5g}") if isinstance(value, float) and math.isfinite(value) else value
