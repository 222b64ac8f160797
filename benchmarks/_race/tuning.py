"""Tuning: batch size, rate and schedule of a contestant, by successive halving.

Five stages of runs, each three times as long as the last, up to the problem's longest: every batch
size and rate with a cosine; then the best five, three, two and the best alone. In the third and
fourth stage the best two also run at a third of their rate, which stays; their iterates are used as
they are and averaged. At the edge of the grid the next rate beyond is tried as well. The result is
all runs: each target picks its own.
"""

from collections.abc import Callable, Sequence

import numpy as np

from _race.bounds import Evaluator
from _race.contestants import Setting
from _race.runs import Racer, replayed

STAGES = (1 / 81, 1 / 27, 1 / 9, 1 / 3, 1.0)
SURVIVORS = (5, 3, 2, 1)  # of each stage but the last
STAYING = (1 / 9, 1 / 3)  # stages with rates that stay
LEAST_STEPS = 10
SEEDS = 1


def tune(
    ready: Callable[[int], Racer],
    sizes: Sequence[int],
    peaks: Sequence[float],
    evaluator: Evaluator,
    seconds: float,
) -> dict:
    """Every run of the search: settings, steps, the ranking value on the way, times per step."""
    racers: dict[int, Racer] = {}
    runs: list[dict] = []

    def one(setting: Setting, share: float) -> bool:
        """A run, unless it would be too short."""
        num_steps = int(share * seconds / racers[setting.batch].per_step)
        if num_steps < LEAST_STEPS:
            return False
        last, average, steps, refreshes = [], [], [], []
        for seed in range(SEEDS):
            steps, refreshes, *params, _ = replayed(
                racers[setting.batch], setting, num_steps, 100 + seed
            )
            some = params[:1] if setting.cosine else params  # a cosine needs no average
            found = [np.nan_to_num(evaluator.rough(p)[: len(steps)], nan=1e30) for p in some]
            last.append(np.minimum(found[0], 1e30).tolist())
            average.append(np.minimum(found[-1], 1e30).tolist())
        use = racers[setting.batch]
        took = use.per_step * np.array(steps) + use.per_refresh * np.array(refreshes)
        found = {"seconds": took.tolist(), "last": last, "average": average}
        key = {**setting._asdict(), "num_steps": num_steps, "share": share}
        runs.append(key | {"steps": steps} | found)
        return True

    for batch in sizes:
        racers[batch] = ready(batch)
        if seconds * STAGES[-1] / racers[batch].per_step < LEAST_STEPS:
            del racers[batch]
    settings = [Setting(batch, peak, True) for batch in racers for peak in peaks]
    for share, most in zip(STAGES, (*SURVIVORS, 1)):
        if share in STAYING:
            settings += [Setting(s.batch, s.peak / 3, False) for s in settings[:2] if s.cosine]
        waiting = [setting for setting in settings if not one(setting, share)]
        ranked = sorted((run for run in runs if run["share"] == share and run["cosine"]), key=_end)
        settings = [Setting(run["batch"], run["peak"], True) for run in ranked[:most]]
        if most > 1 and ranked:
            settings += _beyond(settings[0], [Setting(r["batch"], r["peak"], True) for r in ranked])
        settings += [setting for setting in waiting if setting.cosine]  # their turn comes later
    return {
        "per_step": {str(batch): r.per_step for batch, r in racers.items()},
        "per_refresh": {str(batch): r.per_refresh for batch, r in racers.items()},
        "cold": {str(batch): r.cold for batch, r in racers.items()},
        "runs": runs,
    }


def picks(found: dict, targets: list[float]) -> list[dict]:
    """For each target (a ranking value) the run that is there first, by steps × time of a step.

    For a target that none reaches it is the run that ends lowest.
    """
    chosen = []
    for target in targets:
        best, least = None, np.inf
        for run in found["runs"]:
            for use in ("last",) if run["cosine"] else ("last", "average"):
                median = np.median(run[use], 0)
                there = np.flatnonzero(median <= target)
                if not len(there):
                    continue
                seconds = run["seconds"][there[0]]
                if seconds < least:
                    best, least = _described(run, use), seconds
        best = _lowest(found) if best is None else best
        if best not in chosen:
            chosen.append(best)
    return chosen


def _lowest(found: dict) -> dict:
    """The run that ends lowest."""
    uses = [(run, use) for run in found["runs"] for use in ("last", "average")]
    uses = [(run, use) for run, use in uses if use == "last" or not run["cosine"]]
    ends = [np.median(run[use], 0)[-1] for run, use in uses]
    return _described(*uses[int(np.argmin(ends))])


def _described(run: dict, use: str) -> dict:
    return {name: run[name] for name in ("batch", "peak", "cosine", "num_steps")} | {"use": use}


def _end(run: dict) -> float:
    return float(np.median(run["last"], 0)[-1])


def _beyond(best: Setting, settings: list[Setting]) -> list[Setting]:
    """The neighbours of the best rate that are not tried yet, a factor of three apart."""
    found = [best._replace(peak=best.peak * factor) for factor in (3, 1 / 3)]
    tried = [s.peak for s in settings if s.batch == best.batch]
    return [s for s in found if not np.isclose(s.peak, tried, rtol=0.2).any()]
