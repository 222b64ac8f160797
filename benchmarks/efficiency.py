"""The worth of the closed form: variance × time against plain and antithetic, any batch size.

The model is trained with the closed form at the smallest batch size, as it would be in use; then
all estimators are compared at the same parameters.
"""

import argparse
from itertools import product
from pathlib import Path

import _timing
import jax
import numpy as np
import optax

import quell
from quell import bases, coefficients, contexts, criteria
from quell.diagnostics.ceilings import ceilings
from quell.diagnostics.metric import fisher_metric
from quell.diagnostics.reference import full_gradient
from quell.diagnostics.stepper import state_after_steps, stepper
from quell.diagnostics.timing import seconds_per_step
from quell.diagnostics.variance import variance_components
from quell_cli.catalogue import estimators, problem

KEY = jax.random.key(0)
ADAM = optax.adam(1e-2)
RATES = (3e-3, 1e-2, 3e-2)
BASELINES = {"plain": quell.monte_carlo(), "antithetic": quell.antithetic()}
OURS = ("closed-form", "closed-form-points")
PROBLEMS = {
    "titanic": ("logistic", "titanic", (10, 30, 100, 300, 1000)),
    "magic": ("logistic", "magic", (10, 30, 100, 300, 1000)),
    "airfoil": ("deep-gp", "airfoil", (10, 30, 100, 300, 1000)),
    "spambase": ("logistic", "spambase", (10, 100, 1000)),
    "digits-bnn": ("bnn", "digits", (10, 100)),
    "digits-vae": ("vae", "digits", (10, 100)),
}


def recommended(given, params, sizes, seconds):
    """The advice of `quell.recommend` at every batch size."""
    found = {}
    for size in sizes:
        found[size] = quell.recommend(
            KEY, given.objective, params, given.data, batch_size=size, seconds=seconds
        )
        print(f"\n{given.name}\n{found[size]}", flush=True)
    return found


def efficiency(name, num_steps, seconds, sizes=None):
    """One problem: every estimator at every batch size after a training of `num_steps` steps."""
    model, data, all_sizes = PROBLEMS[name]
    given = problem(model, data)
    params = given.init(KEY)
    ours = estimators(given, OURS)
    sizes = sizes or all_sizes
    advice = recommended(given, params, sizes[:: len(sizes) - 1 or 1], seconds / 4)
    found = quell.compare(
        KEY,
        given.objective,
        params,
        given.data,
        {pick.name: pick.estimator for pick in advice.values()} | ours,
        baselines=BASELINES,
        driver=ours["closed-form-points"],
        batch_sizes=sizes,
        num_steps=num_steps,
        seconds=seconds,
    )
    print(f"\n{given.name}\n{found}", flush=True)
    return found.to_json() | {"summary": summary(found, advice)}


def summary(found, advice):
    """The best of ours against the best baselines, the remaining variance, and the advice."""
    cost = {(row.name, row.batch_size): row.error * row.seconds_per_step for row in found.rows}
    variance = {(row.name, row.batch_size): row.variance_total.value for row in found.rows}
    points = {(row.name, row.batch_size): row.variance_points.value for row in found.rows}
    ours = [at for at in cost if at[0] in OURS]
    best = min(ours, key=lambda at: cost[at])
    least = min(size for _, size in cost)
    at_least = min((at for at in ours if at[1] == least), key=lambda at: cost[at])
    of = {
        "best": f"{best[0]}, batch {best[1]}",
        "over best plain": min(c for at, c in cost.items() if at[0] == "plain") / cost[best],
        "over best antithetic": min(c for at, c in cost.items() if at[0] == "antithetic")
        / cost[best],
        f"over plain, batch size {least}": cost["plain", least] / cost[at_least],
        f"remaining variance (plain = 1), batch size {least}": variance[at_least]
        / variance["plain", least],
        f"remaining variance of points (plain = 1), batch size {least}": points[at_least]
        / points["plain", least],
    }
    gained = {(row.name, row.batch_size): row.efficiency_vs_plain for row in found.rows}
    for size, pick in advice.items():
        of[f"recommended, batch size {size}"] = pick.name
        of[f"its efficiency (plain = 1), batch size {size}"] = gained[pick.name, size]
    print(
        "  "
        + "; ".join(f"{k}: {v if isinstance(v, str) else format(v, '.3g')}" for k, v in of.items())
    )
    return of


def static_draws(seed, frozen_after=1000, learning=1000, batch_size=10, seconds=5.0):
    """Draws alone, linear basis: the remaining share of their variance at a frozen model."""
    given, key = problem("logistic", "titanic"), jax.random.key(seed)
    params = quell.fit(
        key, given.objective, given.init, given.data, ADAM,
        num_steps=frozen_after, batch_size=batch_size,
    ).params  # fmt: skip
    model = coefficients.least_squares(contexts.standardised(given.select))
    compared = {
        "plain": BASELINES["plain"],
        "ours": quell.controlled(model, criterion=criteria.partial_gradients),
    }
    at = (given.objective, params, given.data)
    reference = full_gradient(key, *at, seconds=0.5)
    draws = {}
    for name, estimator in compared.items():
        started = estimator.start(key, *at)
        loop = stepper(*at, started, batch_size)
        state = started.init(key, params)
        state = state_after_steps(key, loop, state, steps=learning, seconds=1e9).state
        found = variance_components(
            key, *at, started, batch_size=batch_size, state=state,
            metric=fisher_metric(given.objective, params), reference=reference, seconds=seconds,
        )  # fmt: skip
        draws[name] = found.parts.draws_given_points.value
    best = ceilings(key, *at, bases={"linear": bases.linear()}, seconds=seconds)
    return draws["ours"] / draws["plain"], best["linear"].value


def static(seeds=5):
    """The static experiment over several seeds: the remaining variance, and that at best."""
    found = [static_draws(seed) for seed in range(seeds)]
    remaining, best = zip(*found)
    print(
        "\nstatic, linear basis, draws only: remaining variance of draws (plain = 1), and at best"
    )
    for seed, (ours, least) in enumerate(found):
        print(f"  seed {seed}: {ours:.4f}, {least:.4f}")
    middle = float(np.median(remaining)), float(np.median(best))
    print(f"  median: {middle[0]:.4f}, {middle[1]:.4f}", flush=True)
    return {"remaining": remaining, "best": best, "median": middle[0], "median_best": middle[1]}


def time_to_target(sizes=(10, 100, 1000), num_seeds=5, num_steps=1000, every=10):
    """Seconds of training until the bound on titanic is within one nat of its optimum.

    Steps are the median over seeds of when the bound, estimated with the same draws each time, is
    first there.
    """
    given = problem("logistic", "titanic")
    objective, data, params = given.objective, given.data, given.init(KEY)
    everyone = BASELINES | estimators(given, OURS)
    noise = objective.sample_noise(KEY, objective.num_data, draws=2)
    noise = np.concatenate([noise, -noise])

    def bound(params):
        return objective.value(params, noise, data)

    steps = 20_000
    end = quell.fit(
        KEY, objective, params, data, optax.adam(optax.cosine_decay_schedule(1e-2, steps)),
        num_steps=steps, batch_size=100, estimator=everyone["closed-form"],
    ).params  # fmt: skip
    optimum = float(bound(end))
    at = list(product(everyone, sizes))
    started = {
        name: estimator.start(KEY, objective, params, data) for name, estimator in everyone.items()
    }
    took = seconds_per_step(
        KEY,
        {
            (name, size): stepper(objective, params, data, started[name], size, ADAM)
            for name, size in at
        },
        {(name, size): started[name].init(KEY, params) for name, size in at},
        seconds=2.0 * len(at),
    )
    runs = []
    for (name, size), rate in product(at, RATES):
        found = quell.fit(
            jax.random.split(KEY, num_seeds), objective, given.init, data, optax.adam(rate),
            num_steps=num_steps, batch_size=size, estimator=everyone[name],
            hooks=[quell.monitor(bound=lambda step: bound(step.params), every=every)],
        )  # fmt: skip
        there = found.history["bound"][:, ::every] <= optimum + 1
        first = np.where(there.any(1), there.argmax(1) * every, np.inf)
        count = float(np.median(first))
        runs.append(
            {"name": name, "batch_size": size, "rate": rate,
             "steps": count if np.isfinite(count) else None,
             "seconds": count * took[name, size] if np.isfinite(count) else None}
        )  # fmt: skip
        print(f"  {name}, batch {size}, rate {rate}: {count:.0f} steps", flush=True)
    print(f"\ntime to within one nat of {optimum:.2f}, at the best batch size and rate")
    best = {}
    for name in everyone:
        arrived = [run for run in runs if run["name"] == name and run["seconds"] is not None]
        best[name] = min(arrived, key=lambda run: run["seconds"], default=None)
        print(f"  {name}: {best[name] or 'never'}", flush=True)
    return {"optimum": optimum, "best": best, "runs": runs}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[*PROBLEMS, "static", "target"])
    parser.add_argument("--seconds", type=float, default=60.0, help="of measuring, per problem")
    parser.add_argument("--out", type=Path, default=Path("out/benchmarks"), help="where JSON goes")
    args = parser.parse_args()
    results = {}
    for name in args.only:
        if name == "static":
            results[name] = static()
        elif name == "target":
            results[name] = time_to_target()
        else:
            results[name] = efficiency(name, 1000, args.seconds)
            if name == "titanic":
                results["titanic at 200 steps"] = efficiency(name, 200, args.seconds / 4, (10,))
        _timing.save(args.out / "efficiency.json", results)


if __name__ == "__main__":
    main()
