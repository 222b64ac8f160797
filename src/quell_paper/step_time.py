"""Table 1: the time of a training step, dispatched one by one and in a compiled loop."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pandas as pd

from quell.diagnostics.timing import in_turns
from quell.estimators._types import batch_of
from quell.training.batches import reshuffle
from quell.training.loop import compiled_loop, run_keys
from quell_paper.config import BATCH_SIZE, LITERAL, PLAIN, Plan, Variate
from quell_paper.jobs import Job, tidy
from quell_paper.problems import PROBLEMS
from quell_paper.variates import started

_LOOP = 20  # steps in one call of the compiled loop


def jobs(plan: Plan) -> list[Job]:
    """The job, in which variants take turns, so that other work on the machine slows all alike."""
    setting = {
        "model": plan.model,
        "learning_rate": plan.main_learning_rate,
        "batch_size": BATCH_SIZE,
        **asdict(plan.step_time),
    }
    step = {"logistic": 2e3, "deep-gp": 1e4}[plan.model]
    weight = step * plan.step_time.repetitions * (plan.step_time.runs + _LOOP)
    return [Job("table-1", setting, lambda: _run(plan), weight, alone=True)]


def _run(plan: Plan) -> pd.DataFrame:
    config = plan.step_time
    variates = {("none", "plain"): PLAIN} | {
        (criterion, "amortised" if hidden else "context-free"): Variate(
            "linear", criterion, hidden, *LITERAL
        )
        for hidden in config.networks
        for criterion in config.criteria
    }
    calls: dict[Any, Callable] = {}
    for name, variate in variates.items():
        calls[*name, "dispatched"], calls[*name, "loop"] = _ways(plan, variate)
    with ThreadPoolExecutor(2) as pool:  # the first calls compile; timed calls come after
        list(pool.map(lambda call: call(), calls.values()))
    steps = {name: config.runs if name[-1] == "dispatched" else _LOOP for name in calls}
    turns = {name: _turn(call, steps[name]) for name, call in calls.items()}
    tables = []
    for (criterion, variant, way), times in in_turns(turns, rounds=config.repetitions).items():
        rounds = tidy({"repetition": range(config.repetitions)}, milliseconds=times)
        tables.append(rounds.assign(criterion=criterion, variant=variant, way=way))
    return pd.concat(tables, ignore_index=True)


def _turn(call: Callable[[], Any], steps: int) -> Callable[[int], float]:
    """`turn(round)`: milliseconds per step of one call, until its results are ready."""

    def turn(_):
        began = time.perf_counter()
        jax.block_until_ready(call())
        return 1e3 * (time.perf_counter() - began) / steps

    return turn


def _ways(plan: Plan, variate: Variate) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Two calls: `runs` dispatched steps, and a compiled loop of `_LOOP` steps."""
    problem, optimizer = PROBLEMS[plan.model](), optax.adam(plan.learning_rate)
    objective, data = problem.objective, problem.data
    estimator = started(plan.model, variate, plan.main_learning_rate)
    loop = compiled_loop(
        estimator, objective, optimizer, reshuffle, batch_size=BATCH_SIZE, length=_LOOP
    )
    init_key, loop_key, batch_key, noise_key = jax.random.split(jax.random.key(0), 4)
    carried = loop.start(run_keys(loop_key), problem.init(init_key))

    @jax.jit
    def step(carried, t):
        params, optimizer_state, state, _ = carried
        batch = batch_of(data, reshuffle(batch_key, t, 1, objective.num_data, BATCH_SIZE)[0])
        step_key = jax.random.fold_in(noise_key, t)
        estimate = estimator.estimate(step_key, objective, params, batch, state)
        updates, optimizer_state = optimizer.update(estimate.gradient, optimizer_state, params)
        moved = optax.apply_updates(params, updates)
        return carried._replace(
            params=moved, optimizer_state=optimizer_state, estimator_state=estimate.state
        )

    # Each way keeps its own copy, because the loop consumes its argument.
    states = {"loop": carried, "single": jax.tree.map(jnp.copy, carried)}

    def dispatched():
        for t in range(plan.step_time.runs):
            states["single"] = step(states["single"], t)
        return states["single"]

    def looped():
        states["loop"], table = loop.advance(run_keys(loop_key), states["loop"], data, 0, _LOOP)
        return states["loop"], table

    return dispatched, looped
