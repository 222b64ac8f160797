"""The jobs of the race: for each problem and phase one file per contestant."""

import json
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import quell
from _race import checks, experts, page
from _race.bounds import Evaluator, evaluator
from _race.contestants import ESTIMATORS, EXPERTS, PEAKS, Setting, names
from _race.files import whole
from _race.problems import PROBLEMS, Problem
from _race.runs import Racer, Run, racer, replayed, seconds_at, timed
from _race.tuning import picks, tune
from quell._tree import number_of_parameters
from quell.training.loop import run_keys

_TERMS = 10**7  # draws × rows of L-BFGS: beyond, an evaluation takes longer than the others' run
UNTUNED = {"batch": 100, "peak": 0.01, "cosine": False, "use": "last"}
_COEFFICIENTS = 2**23  # of the network: beyond, a step takes longer than the others' run


class Plan(NamedTuple):
    """What is asked for: folders, seeds, the share of each run's time, and who takes part."""

    out: Path
    docs: Path
    seeds: int
    pace: float
    contestants: tuple[str, ...]


def contestants(plan: Plan) -> list[str]:
    """All contestants that take part, experts and checks included."""
    first = [*names()[:6], EXPERTS[0], "prices", "noise"]  # the telling ones
    every = [*first, *(who for who in [*names(), *EXPERTS, *CHECKS] if who not in first)]
    return [who for who in every if not plan.contestants or who in plan.contestants]


def job(name: str, contestant: str, phase: str, plan: Plan) -> Any:
    """The document of one job, or None if there is nothing to do."""
    if contestant in CHECKS:
        return CHECKS[contestant](name, phase, plan)
    return (_expert if contestant in EXPERTS else _own)(name, contestant, phase, plan)


def gather(name: str, plan: Plan) -> None:
    """The finished jobs of a problem as JSON and figure; forgets what was compiled for it."""
    store = plan.out / name / "optimum.npz"  # so that nothing is compiled for it
    if (plan.out / name / "gaps").exists():
        least = float(np.load(store)["value"]) if store.exists() else None
        page.gather(name, _problem(name), least, plan.out, plan.docs)
    for kept in (_racer, _evaluator, _problem):
        kept.cache_clear()


def _own(name: str, contestant: str, phase: str, plan: Plan) -> Any:
    """A job of an estimator under an optimiser."""
    problem, (estimator, kind) = _problem(name), contestant.split(", ")
    ready = partial(_racer, name, estimator, kind)
    if estimator in problem.without or not _bearable(problem, estimator):
        return None
    seconds = problem.seconds * plan.pace
    if phase == "tune":
        # Neither SVRG nor the network has anything to gain from all the data in a step.
        less = estimator in ("SVRG", "network")
        sizes = problem.sizes[:-1] if less else problem.sizes
        return tune(ready, sizes, PEAKS[kind], _evaluator(name, plan), seconds)
    if phase == "time":
        found = _read(name, "tune", contestant, plan)
        if found is None or not found["runs"]:
            return None
        chosen = picks(found, ranking_targets(name, plan))
        if kind == "Adam":
            chosen.append(_untuned(problem, found, seconds))
        return _timed(ready, chosen, plan.seeds)
    found = _read(name, "time", contestant, plan)
    return None if found is None else _gaps(ready, found, _evaluator(name, plan))


def _untuned(problem: Problem, found: dict, seconds: float) -> dict:
    """Constant Adam at 1e-2 and batches of 100, for a third of the problem's time."""
    batch = min(UNTUNED["batch"], problem.objective.num_data)
    near = min(found["per_step"], key=lambda size: abs(np.log(int(size) / batch)))
    num_steps = max(10, int(seconds / 3 / found["per_step"][near]))
    return UNTUNED | {"batch": batch, "num_steps": num_steps, "untuned": True}


def _timed(ready: Callable[[int], Racer], chosen: list[dict], seeds: int) -> dict:
    racers, timings = {}, []
    for config in chosen:
        batch = config["batch"]
        racers[batch] = ready(batch)
        setting = Setting(batch, config["peak"], config["cosine"])
        runs = [timed(racers[batch], setting, config["num_steps"], seed) for seed in range(seeds)]
        timings.append(config | {"runs": [run._asdict() for run in runs]})
    return {
        "cold": {str(batch): r.cold for batch, r in racers.items()},
        "per_step": {str(batch): r.per_step for batch, r in racers.items()},
        "per_refresh": {str(batch): r.per_refresh for batch, r in racers.items()},
        "timings": timings,
    }


def _gaps(ready: Callable[[int], Racer], found: dict, judge: Evaluator) -> dict:
    results = []
    for config in found["timings"]:
        batch = config["batch"]
        setting = Setting(batch, config["peak"], config["cosine"])
        values, seconds, steps, same = [], [], [], []
        for seed, run in enumerate(config["runs"]):
            steps, _, last, average, check = replayed(
                ready(batch), setting, config["num_steps"], seed
            )
            chosen = average if config["use"] == "average" else last
            values.append(judge.full(chosen)[: len(steps)].tolist())
            seconds.append(seconds_at(Run(**{"core": 1.0} | run), steps))
            same.append(bool(np.isclose(check, run["check"], rtol=1e-4, atol=1e-4)))
        kept = {key: value for key, value in config.items() if key != "runs"}
        kept["core"] = float(np.median([run.get("core", 1.0) for run in config["runs"]]))
        kept["refresh_share"] = float(np.mean([_refresh_share(run) for run in config["runs"]]))
        results.append(kept | {"steps": steps, "seconds": seconds, "values": values, "same": same})
    costs = {key: found[key] for key in ("cold", "per_step", "per_refresh")}
    return costs | {"results": results}


def _refresh_share(run: dict) -> float:
    return sum(seconds for _, seconds in run["refreshes"]) / run["seconds"][-1]


def _expert(name: str, contestant: str, phase: str, plan: Plan) -> Any:
    """A job of an expert: paths are kept beside the times, and evaluated later."""
    problem, seconds = _problem(name), _problem(name).seconds * plan.pace
    store = plan.out / name / "time" / file_name(contestant, "npz")
    if contestant == "NumPyro":
        return _numpyro(name, phase, plan, problem, store)
    if phase == "tune":
        return None
    draws = None if "exact" in contestant else int(contestant.split()[1])
    if draws and draws * problem.objective.num_data > _TERMS:
        return None
    if phase == "time":
        seeds = 1 if draws is None else plan.seeds  # without draws every run is the same
        most = 5 * seconds if draws is None else seconds
        paths = [experts.lbfgs(problem, draws, most, seed) for seed in range(seeds)]
        if paths[0] is None:
            return None
        _save(store, paths)
        return {
            "cold": {"all": paths[0].cold},
            "seconds": [path.seconds for path in paths],
            "steps": [path.steps for path in paths],
        }
    found = _read(name, "time", contestant, plan)
    return None if found is None else _expert_gaps(name, plan, found, store)


def _numpyro(name: str, phase: str, plan: Plan, problem: Problem, store: Path) -> Any:
    if problem.program is None:
        return None
    seconds = problem.seconds * plan.pace
    if phase == "tune":
        runs = []
        for batch in problem.sizes[:-1][-2:]:
            svi = experts.numpyro_svi(problem, batch)
            for peak in (0.01, 0.03, 0.1):
                for share in (1 / 27, 1 / 9, 1 / 3):
                    steps = max(10, int(share * seconds / svi.per_step))
                    path = experts.numpyro_path(svi, peak, steps, 0, timed=False)
                    rough = _evaluator(name, plan).rough(path.params)
                    last = [np.nan_to_num(rough, nan=1e30).tolist()]
                    run = {"batch": batch, "peak": peak, "cosine": True, "num_steps": steps}
                    seen = {"steps": path.steps, "seconds": path.seconds}
                    runs.append(run | seen | {"last": last, "average": last})
        return {"runs": runs}
    if phase == "time":
        found = _read(name, "tune", "NumPyro", plan)
        if found is None:
            return None
        config = picks(found, ranking_targets(name, plan)[-1:])[0]
        svi, paths = experts.numpyro_svi(problem, config["batch"]), []
        at = config["peak"], config["num_steps"]
        for seed in range(plan.seeds):
            timed_path = experts.numpyro_path(svi, *at, seed, timed=True)
            path = experts.numpyro_path(svi, *at, seed, timed=False)
            paths.append(path._replace(seconds=timed_path.seconds))
        _save(store, paths)
        per_step = paths[0].seconds[-1] / config["num_steps"]
        return config | {
            "cold": {"all": svi.cold},
            "per_step": {str(config["batch"]): per_step},
            "seconds": [path.seconds for path in paths],
            "steps": [path.steps for path in paths],
        }
    found = _read(name, "time", "NumPyro", plan)
    return None if found is None else _expert_gaps(name, plan, found, store)


def _prices(name: str, phase: str, plan: Plan) -> Any:
    problem = _problem(name)
    if phase != "time":
        return None
    batches = tuple(size for size in problem.sizes if size in (10, 30, 100, 300))
    return checks.prices(
        partial(_racer, name), problem, batches, cold=name in ("titanic", "magic", "airfoil")
    )


def _noise_left(name: str, phase: str, plan: Plan) -> Any:
    if phase != "gaps":
        return None
    found = []
    for kind in ("Adam", "natural"):
        tuned = _read(name, "tune", f"closed form, {kind}", plan)
        if tuned is not None:  # a rate that falls, as in use
            tuned["runs"] = [run for run in tuned["runs"] if run["cosine"]]
            config = picks(tuned, ranking_targets(name, plan)[1:2])[0]
            left = checks.noise_left(_racer(name, "closed form", kind, config["batch"]), config)
            found.append({"optimiser": kind} | left)
    return {"noise_left": found} if found else None


def _limit(name: str, phase: str, plan: Plan) -> Any:
    if phase != "gaps" or name not in LIMIT:
        return None
    some = {who: ESTIMATORS[who] for who in ("plain", "pairs", "closed form")}
    return checks.limit(_problem(name), _evaluator(name, plan), LIMIT[name], some)


def _advice(name: str, phase: str, plan: Plan) -> Any:
    """What `recommend` picks, from the start and for the smallest batch size or more."""
    if phase != "time":
        return None
    problem = _problem(name)
    key = jax.random.key(0)
    params = problem.init(run_keys(key).params)
    found = quell.recommend(
        key, problem.objective, params, problem.data, batch_size=problem.sizes[0], seconds=10.0
    )
    named = {"estimator": found.estimator.name, "batch": found.batch_size, "name": found.name}
    return named | {"smallest": problem.sizes[0], "text": str(found)}


CHECKS = {"prices": _prices, "noise": _noise_left, "limit": _limit, "advice": _advice}
LIMIT = {"titanic": 10, "magic": 100}  # batch sizes


def _save(store: Path, paths: list) -> None:
    arrays = {}
    for seed, path in enumerate(paths):
        for i, leaf in enumerate(jax.tree.leaves(path.params)):
            arrays[f"{seed}.{i}"] = np.asarray(leaf)
    with whole(store) as file:
        np.savez(file, **arrays)


def _expert_gaps(name: str, plan: Plan, found: dict, store: Path) -> dict:
    treedef = jax.tree.structure(_problem(name).init(jax.random.key(0)))
    arrays, values = np.load(store), []
    for seed in range(len(found["seconds"])):
        leaves = [arrays[f"{seed}.{i}"] for i in range(treedef.num_leaves)]
        values.append(_evaluator(name, plan).full(treedef.unflatten(leaves)).tolist())
    return found | {"values": values}


def ranking_targets(name: str, plan: Plan) -> list[float]:
    """The targets of a problem as values of the ranking."""
    targets = list(_problem(name).targets)
    if _problem(name).bound.value is not None:
        return targets
    ends = []
    for path in (plan.out / name / "tune").glob("*.json"):
        ends += [np.median(run["last"], 0).min() for run in json.loads(path.read_text())["runs"]]
    return [float(min(ends)) + target for target in targets] if ends else targets


def _bearable(problem: Problem, estimator: str) -> bool:
    if estimator != "network":
        return True
    P = number_of_parameters(problem.init(jax.random.key(0)))
    return problem.objective.noise.size * 129 * P <= _COEFFICIENTS


def file_name(contestant: str, kind: str = "json") -> str:
    """The name of a contestant's files."""
    return f"{contestant.replace(', ', '--').replace(' ', '_')}.{kind}"


def _read(name: str, phase: str, contestant: str, plan: Plan) -> Any:
    path = plan.out / name / phase / file_name(contestant)
    return json.loads(path.read_text()) if path.exists() else None


@cache
def _racer(name: str, estimator: str, kind: str, batch: int) -> Racer:
    return racer(_problem(name), ESTIMATORS[estimator](), kind, batch)


@cache
def _problem(name: str) -> Problem:
    return PROBLEMS[name]()


@cache
def _evaluator(name: str, plan: Plan) -> Evaluator:
    """The evaluator, whose optimum is kept on disk."""
    store = plan.out / name / "optimum.npz"
    found, treedef = None, jax.tree.structure(_problem(name).init(jax.random.key(0)))
    if store.exists():
        arrays = np.load(store)
        found = treedef.unflatten([arrays[str(i)] for i in range(treedef.num_leaves)])
    made = evaluator(_problem(name), found)
    if made.best is not None and found is None:
        leaves = {str(i): leaf for i, leaf in enumerate(jax.tree.leaves(made.best))}
        with whole(store) as file:
            np.savez(file, value=made.optimum, **leaves)
    return made
