"""What the closed form is worth: variance × time against plain and antithetic at any batch size.

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
from quell import bases, coefficients, contexts, criteria, estimators
from quell._measure import (
    ceilings,
    full_gradient,
    learned_state,
    noisiness,
    seconds_per_step,
    stepper,
)
from quell.experiments.field import contest

KEY = jax.random.key(0)
ADAM = optax.adam(1e-2)
RATES = (3e-3, 1e-2, 3e-2)
BASELINES = {"plain": estimators.monte_carlo(), "antithetic": estimators.antithetic()}
PROBLEMS = {
    "titanic": ("logistic", "titanic", (10, 30, 100, 300, 1000)),
    "magic": ("logistic", "magic", (10, 30, 100, 300, 1000)),
    "airfoil": ("deep-gp", "airfoil", (10, 30, 100, 300, 1000)),
    "spambase": ("logistic", "spambase", (10, 100, 1000)),
    "digits-bnn": ("bnn", "digits", (10, 100)),
    "digits-vae": ("vae", "digits", (10, 100)),
}


def candidates(problem, params):
    """The closed form with functions of the draws that pay, and on the points alone."""
    arguments = (KEY, problem.objective, params, problem.data)
    leaves = estimators.noisy_leaves(*arguments, estimators.antithetic())
    both = estimators.closed_form(*arguments, context=problem.context, leaves=leaves)
    points = estimators.closed_form(
        *arguments, context=problem.context, leaves=leaves, basis=bases.none()
    )
    return {"closed-form": both, "closed-form-points": points}


def recommended(problem, params, sizes, seconds):
    """What `quell.recommend` says at every batch size."""
    found = {}
    for size in sizes:
        found[size] = quell.recommend(
            problem.objective, problem.data, params, key=KEY, batch_size=size, seconds=seconds,
            context=problem.context,
        )  # fmt: skip
        print(f"\n{problem.name}\n{found[size]}", flush=True)
    return found


def efficiency(name, num_steps, seconds, sizes=None):
    """One problem: every estimator at every batch size after a training of so many steps."""
    model, data, all_sizes = PROBLEMS[name]
    problem = contest(model, data)
    params = problem.init(KEY)
    ours = candidates(problem, params)
    sizes = sizes or all_sizes
    advice = recommended(problem, params, sizes[:: len(sizes) - 1 or 1], seconds / 4)
    found = quell.compare(
        KEY,
        problem.objective,
        {pick.name: pick.estimator for pick in advice.values()} | ours,
        params,
        problem.data,
        baselines=BASELINES,
        driver=ours["closed-form-points"],
        batch_sizes=sizes,
        num_steps=num_steps,
        seconds=seconds,
    )
    print(f"\n{problem.name}\n{found}", flush=True)
    return found.to_json() | {"summary": summary(found, ours, advice)}


def summary(found, ours, advice):
    """The best of ours against the best of theirs, what is left of the variance, and the advice."""
    cost = {(row.name, row.batch_size): row.error * row.seconds_per_step for row in found.rows}
    variance = {(row.name, row.batch_size): row.variance_total.value for row in found.rows}
    points = {(row.name, row.batch_size): row.variance_points.value for row in found.rows}
    ours = [at for at in cost if at[0] in ours]
    best = min(ours, key=lambda at: cost[at])
    least = min(size for _, size in cost)
    at_least = min((at for at in ours if at[1] == least), key=lambda at: cost[at])
    of = {
        "best": f"{best[0]}, batch {best[1]}",
        "over best plain": min(c for at, c in cost.items() if at[0] == "plain") / cost[best],
        "over best antithetic": min(c for at, c in cost.items() if at[0] == "antithetic")
        / cost[best],
        f"over plain at batch {least}": cost["plain", least] / cost[at_least],
        f"variance left at batch {least}": variance[at_least] / variance["plain", least],
        f"points' variance left at batch {least}": points[at_least] / points["plain", least],
    }
    gained = {(row.name, row.batch_size): row.efficiency_vs_plain for row in found.rows}
    for size, pick in advice.items():
        of[f"recommended at batch {size}"] = pick.name
        of[f"its efficiency over plain at batch {size}"] = gained[pick.name, size]
    print(
        "  "
        + "; ".join(f"{k}: {v if isinstance(v, str) else format(v, '.3g')}" for k, v in of.items())
    )
    return of


def static_draws(seed, frozen_after=1000, learning=1000, batch_size=10, seconds=5.0):
    """Draws alone, linear basis: the share of their variance left at a model that stands still."""
    problem = contest("logistic", "titanic")
    objective, data = problem.objective, problem.data
    key = jax.random.key(seed)
    params = quell.fit(
        objective, data, params=problem.init, optimizer=ADAM, num_steps=frozen_after,
        batch_size=batch_size, key=key,
    ).params  # fmt: skip
    control = quell.control_variate(
        bases.linear(),
        coefficients.least_squares(draws=contexts.adaptive()),
        criteria.partial_gradients,
        noise=objective.noise,
        context=problem.context(data),
        key=key,
    )
    plain = BASELINES["plain"]
    makers = {
        "plain": plain,
        "ours": estimators.controlled(plain, control, context=problem.context),
    }
    reference = full_gradient(key, objective, params, data, seconds=0.5)
    draws = {}
    for name, make in makers.items():
        estimator = make(objective)
        loop = stepper(estimator, params, data, batch_size)
        state = estimator.init(key, params, data)
        state = learned_state(key, loop, state, steps=learning, seconds=1e9)
        found = noisiness(
            key, estimator, params, data, batch_size=batch_size, state=state,
            reference=reference, seconds=seconds,
        )  # fmt: skip
        draws[name] = found.parts.draws_given_points.value
    best = ceilings(key, objective, params, data, bases={"linear": bases.linear()}, seconds=seconds)
    return draws["ours"] / draws["plain"], best["linear"].value


def static(seeds=5):
    """The static experiment over several seeds: what is left, and what is left at best."""
    found = [static_draws(seed) for seed in range(seeds)]
    left, best = zip(*found)
    print("\nstatic, linear basis, draws only: share of the draws' variance left, and at best")
    for seed, (ours, least) in enumerate(found):
        print(f"  seed {seed}: {ours:.4f}, {least:.4f}")
    middle = float(np.median(left)), float(np.median(best))
    print(f"  median: {middle[0]:.4f}, {middle[1]:.4f}", flush=True)
    return {"draws_left": left, "best": best, "median": middle[0], "median_best": middle[1]}


def time_to_target(sizes=(10, 100, 1000), num_seeds=5, num_steps=1000, every=10):
    """Seconds of training until the bound on titanic is within one nat of its optimum.

    Steps are the median over seeds of when the bound, estimated with the same draws each time, is
    first there.
    """
    problem = contest("logistic", "titanic")
    objective, data, params = problem.objective, problem.data, problem.init(KEY)
    makers = BASELINES | candidates(problem, params)
    precise = estimators.antithetic(4)(objective)
    state = precise.init(KEY, params, data)

    def bound(params):
        return precise.estimate(KEY, params, data, state)[1]

    steps = 20_000
    end = quell.fit(
        objective, data, params=params, num_steps=steps, batch_size=100, key=KEY,
        optimizer=optax.adam(optax.cosine_decay_schedule(1e-2, steps)),
        estimator=makers["closed-form"],
    ).params  # fmt: skip
    optimum = float(bound(end))
    at = list(product(makers, sizes))
    made = {name: make(objective) for name, make in makers.items()}
    took = seconds_per_step(
        KEY,
        {(name, size): stepper(made[name], params, data, size, ADAM) for name, size in at},
        {(name, size): made[name].init(KEY, params, data) for name, size in at},
        seconds=2.0 * len(at),
    )
    runs = []
    for (name, size), rate in product(at, RATES):
        found = quell.fit(
            objective, data, params=problem.init, num_steps=num_steps, batch_size=size,
            optimizer=optax.adam(rate), key=jax.random.split(KEY, num_seeds),
            estimator=makers[name], monitors={"bound": lambda step: bound(step.params)},
            monitor_every=every,
        )  # fmt: skip
        there = found.history.monitors["bound"][:, ::every] <= optimum + 1
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
    for name in makers:
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
