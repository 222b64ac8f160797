"""Make the tables of docs/yardstick.md: the limit, reshuffling, the three yardsticks, the verdict.

The problems are those of the race: where quadrature gives the bound, runs end at a gap from the
best, elsewhere at a bound from fixed draws. Every number is measured here. Leaves
docs/yardstick.json, and goes on from there: remove it to start anew. `--quick` takes fewer steps
and seeds.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

import quell
from quell.diagnostics.nats import left_after, noise_limits
from quell.diagnostics.records import versions

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "benchmarks"))

from _race.bounds import evaluator  # noqa: E402
from _race.problems import PROBLEMS  # noqa: E402

BATCH = {"titanic": 10, "million": 300, "protein": 300}  # elsewhere 100
ESTIMATORS = {
    "plain": quell.monte_carlo,
    "pairs": quell.antithetic,
    "closed form": quell.closed_form,
}
RATES = (0.003, 0.01, 0.03)
START = 60  # t of the first step of a rate 2/t


class Raced(NamedTuple):
    """A problem of the race.

    Attributes:
      batch_size: |B|.
      gaps: `gaps(params)`, for params with a leading axis of seeds: nats above the best bound where
        it is known, otherwise the bound itself.
      optimum: the params of the best bound, with a leading axis of one; None if unknown.
    """

    name: str
    batch_size: int
    objective: quell.Objective
    init: Callable
    data: Any
    gaps: Callable[[Any], np.ndarray]
    optimum: Any


@cache
def raced(name: str) -> Raced:
    """A problem of the race, with its evaluator."""
    problem = PROBLEMS[name]()
    judge = evaluator(problem)
    optimum = jax.tree.map(lambda p: np.asarray(p, np.float32)[None], judge.best)

    def gaps(params) -> np.ndarray:
        return judge.full(params) - (judge.optimum or 0.0)

    given = problem.objective, problem.init, problem.data
    return Raced(name, BATCH.get(name, 100), *given, gaps, optimum)


def optimizers(num_steps: int, only) -> dict:
    """Adam with a cosine schedule, and natural gradients of rate 2/t, which attain the limit."""
    made = {f"Adam {r}": optax.adam(optax.cosine_decay_schedule(r, num_steps)) for r in RATES}
    fading = quell.natural_gradient(None, rate=lambda t: 2 / (t + START), bound=1.0)
    made["natural 2/t"] = fading
    if only is None:
        return made
    made["natural"] = quell.natural_gradient(num_steps)
    return {name: made[name] for name in only}


def runs(problem, make, num_steps, batches, seeds, batch_size=None, only=None):
    """Params and gaps at the end of the run of every optimiser."""
    found = {}
    for name, optimizer in optimizers(num_steps, only).items():
        end = quell.fit(
            jax.random.split(jax.random.key(0), seeds), problem.objective, problem.init,
            problem.data, optimizer, num_steps=num_steps,
            batch_size=batch_size or problem.batch_size, estimator=make(), batches=batches,
            hooks=[quell.silent],
        ).params  # fmt: skip
        found[name] = end, problem.gaps(end)
    return found


def best(found) -> str:
    """The optimiser whose median gap is least."""
    return min(found, key=lambda name: float(np.nan_to_num(np.median(found[name][1]), nan=np.inf)))


def measured(problem, make, params, num_steps, batches, seconds, seed=2):
    """The noise at the first of several params."""
    first = jax.tree.map(lambda p: p[0], params)
    return quell.measure(
        jax.random.key(seed), problem.objective, first, problem.data, make(),
        batch_size=problem.batch_size, num_steps=num_steps, batches=batches, seconds=seconds,
    )  # fmt: skip


def limit_rows(problem, lengths, seeds, seconds, known) -> Iterator[dict]:
    """The limit against the best tuned run, with replacement."""
    for estimator, make in ESTIMATORS.items():
        labels = {"problem": problem.name, "estimator": estimator}
        if all(known(**labels, steps=T) for T in lengths):
            continue
        # Rare large gradients of single draws may carry one measurement away: the middle of three.
        every = [
            measured(problem, make, problem.optimum, None, quell.with_replacement, seconds, seed)
            for seed in (2, 3, 4)
        ]
        at = sorted(every, key=lambda found: found.nats.noise.total.value)[1]
        for num_steps in [T for T in lengths if not known(**labels, steps=T)]:
            found = runs(problem, make, num_steps, quell.with_replacement, seeds)
            name = best(found)
            gap, limit = float(np.median(found[name][1])), at.nats.after(num_steps)
            yield {
                "problem": problem.name,
                "estimator": estimator,
                "steps": num_steps,
                "nats": at.nats.noise.total.value,
                "limit": limit,
                "gap": gap,
                "ratio": gap / limit,
                "optimizer": name,
            }


def reshuffling_rows(problem, epochs, seeds, nats, known) -> Iterator[dict]:
    """The gap of pairs, whose noise is that of points, over epochs, by both streams of batches."""
    split = nats.split()
    steps_of_epoch = problem.objective.num_data / problem.batch_size
    for E in [E for E in epochs if not known(epochs=E)]:
        num_steps = round(E * steps_of_epoch)
        gaps = {}
        for batches in (quell.with_replacement, quell.reshuffle):
            found = runs(problem, quell.antithetic, num_steps, batches, seeds)
            gaps[batches.__name__] = float(np.median(found[best(found)][1]))
        share = left_after(*split, num_steps, steps_of_epoch) / left_after(
            *split, num_steps, float("inf")
        )
        replaced, shuffled = gaps["with_replacement"], gaps["reshuffle"]
        row = {"epochs": E, "replaced": replaced, "shuffled": shuffled}
        ideal = tuned_share(E)
        yield {**row, "ratio": shuffled / replaced, "model": share, "ideal": ideal}


def tuned_share(epochs: float, steps_of_epoch: int = 100) -> float:
    """The same ratio, computed: cosine natural steps on a quadratic, at the best rate for each.

    All noise is that of points, at fixed points of the data; the gap starts far above ν/T.
    """
    n, T = steps_of_epoch, round(epochs * steps_of_epoch)
    cosine = 0.5 * (1 + np.cos(np.pi * (np.arange(T) + 0.5) / T))
    gaps = []
    for peak in np.geomspace(1e-4, 0.9, 100):
        rho = peak * cosine
        kept = np.cumprod((1 - rho)[::-1])[::-1]  # of what was there before each step
        w = rho * kept / (1 - rho)
        parts = [w[at : at + n] for at in range(0, T, n)]
        # of an epoch's steps, whose noise adds up to nothing: Cov = −1/(n − 1) of the variance
        shuffled = sum((v**2).sum() - v.sum() ** 2 / n for v in parts) * n / (n - 1)
        gaps.append([kept[0] ** 2 + one for one in ((w**2).sum(), shuffled)])
    replaced, shuffled = np.min(gaps, 0)
    return float(shuffled / replaced)


def yardstick_rows(problem, num_steps, seconds, known) -> Iterator[dict]:
    """Trace, (Σ sd)² and nats of all estimators at the same parameters, plain = 1."""
    if known(problem=problem.name):
        return
    if problem.optimum is not None:
        params = problem.optimum
    else:
        there = runs(problem, quell.antithetic, num_steps, quell.reshuffle, 1, only=["natural"])
        params = there["natural"][0]
    found = {
        name: measured(problem, make, params, num_steps, quell.reshuffle, seconds)
        for name, make in ESTIMATORS.items()
    }
    plain = found["plain"]
    for name, at in found.items():
        ratios = at.ratio_to(plain)
        yield {
            "problem": problem.name,
            "estimator": name,
            "trace": ratios.total.value,
            "summed_sd": at.coordinates.summed_sd / plain.coordinates.summed_sd,
            "nats_ratio": ratios.nats.value,
            "nats": at.nats.noise.total.value,
            "noisier": ratios.noisier,
        }


def verdict_rows(problem, label, cases, num_steps, seeds, seconds, known) -> Iterator[dict]:
    """The verdict at the end of a run, and what a fifth of its noise changes."""
    for estimator, only in cases:
        if known(problem=label, estimator=estimator):
            continue
        make, quieter = ESTIMATORS[estimator], 5 * problem.batch_size
        found = runs(problem, make, num_steps, quell.reshuffle, seeds, only=only)
        name = best(found)
        at = measured(problem, make, found[name][0], num_steps, quell.reshuffle, seconds)
        quiet = runs(problem, make, num_steps, quell.reshuffle, seeds, quieter, only=only)
        before, after = (float(np.median(ends[best(ends)][1])) for ends in (found, quiet))
        yield {
            "problem": label,
            "estimator": estimator,
            "optimizer": name,
            "steps": num_steps,
            "signal": at.nats.signal.value,
            "limit": at.nats.after(num_steps),
            "verdict": "noise" if noise_limits(at.nats, num_steps) else "steps",
            "end": before,
            "quieter": after,
            "words": at.verdict,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--parts", default="limit,reshuffling,yardsticks,verdicts")
    options = parser.parse_args()
    seeds, seconds = (2, 3.0) if options.quick else (options.seeds, options.seconds)
    lengths = (300,) if options.quick else (1000, 10_000)
    record_path = HERE / "yardstick.json"
    record = json.loads(record_path.read_text()) if record_path.exists() else {}

    def keep(part: str, rows: Callable[..., Iterator[dict]], *arguments) -> None:
        """Add the rows that are not there yet, one by one, since a row takes minutes."""
        kept = record.setdefault(part, [])

        def known(**labels):
            return any(labels.items() <= row.items() for row in kept)

        for row in rows(*arguments, known):
            print(part, row, flush=True)
            kept.append(row)
            record["versions"] = versions()
            record_path.write_text(json.dumps(record, indent=1) + "\n")

    parts = options.parts.split(",")
    for name in ("titanic", "magic") if "limit" in parts else ():
        keep("limit", limit_rows, raced(name), lengths, seeds, seconds)
    if "reshuffling" in parts:
        problem = raced("titanic")
        at = measured(problem, quell.antithetic, problem.optimum, 1000, quell.reshuffle, seconds)
        keep("reshuffling", reshuffling_rows, problem, (0.5, 1, 2, 4, 8, 16), seeds, at.nats)
    if "yardsticks" in parts:
        for name in ("titanic", "magic", "airfoil"):
            keep("yardsticks", yardstick_rows, raced(name), 1000, seconds)
    if "verdicts" in parts:
        tuned, slow = ["Adam 0.01", "Adam 0.03"], [("pairs", ["Adam 0.003"])]
        for name in PROBLEMS:
            cases = [("plain", tuned)] * (name in ("titanic", "magic")) + [("pairs", tuned)]
            keep("verdicts", verdict_rows, raced(name), name, cases, 1000, 2, seconds)
        label = "magic, a rate too low"
        keep("verdicts", verdict_rows, raced("magic"), label, slow, 1000, 2, seconds)
    page = HERE / "yardstick.md"
    text = page.read_text()
    for part in record:
        if part in COLUMNS:
            text = with_table(text, part, record[part])
    page.write_text(text)


COLUMNS = {
    "limit": ("problem", "estimator", "steps", "nats", "limit", "gap", "ratio", "optimizer"),
    "reshuffling": ("epochs", "replaced", "shuffled", "ratio", "model", "ideal"),
    "yardsticks": ("problem", "estimator", "trace", "summed_sd", "nats_ratio", "nats", "noisier"),
    "verdicts": (
        "problem", "estimator", "optimizer", "signal", "limit", "verdict", "end", "quieter",
    ),
}  # fmt: skip
"""The columns of each table of the page."""


def with_table(text: str, part: str, rows: list[dict]) -> str:
    """The page with the rows of one table between its marks."""
    begin, end = f"<!-- {part} -->\n", f"<!-- end of {part} -->"
    before, rest = text.split(begin)
    after = rest.split(end)[1]
    header = rest.split("\n")[:2]  # the words of the page
    lines = ["| " + " | ".join(_cell(row[c]) for c in COLUMNS[part]) + " |" for row in rows]
    return before + begin + "\n".join([*header, *lines]) + "\n" + end + after


def _cell(value) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


if __name__ == "__main__":
    main()
