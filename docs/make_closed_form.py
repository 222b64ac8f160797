"""Make the figure of docs/closed_form.md and the numbers beside it: `make closed-form`.

Left: what the closed form leaves of the variance of the same sampling without it, along trainings
that it drives itself, on every problem of docs/comparison.md. Right: the bound on titanic as in the
paper's figure, as a difference to plain training, beside the paper's own method. Leaves
docs/closed_form.json; a part that is not asked for stays as it was there.
"""

import argparse
import json
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np
import optax

import quell
from quell import bases, coefficients, criteria, estimators
from quell.experiments.field import contest
from quell.experiments.timing import versions
from quell.plotting._style import COLOURS, styled

HERE = Path(__file__).parent
ADAM = optax.adam(1e-2)
PROBLEMS = {
    "logistic, titanic": ("logistic", "titanic", 256),
    "logistic, magic": ("logistic", "magic", 256),
    "deep GP, airfoil": ("deep-gp", "airfoil", 256),
    "network, digits": ("bnn", "digits", 32),
    "autoencoder, digits": ("vae", "digits", 32),
}
TRACES = "traces"
EVERY = 25


def safety(name: str, num_steps: int) -> dict:
    """The variance against that of the same pairs without control, every few steps."""
    model, data, samples = PROBLEMS[name]
    problem, key = contest(model, data), jax.random.key(0)
    params = problem.init(key)
    make = estimators.closed_form(
        key, problem.objective, params, problem.data, context=problem.context
    )
    ratio = quell.variance_ratio(
        problem.objective, make, problem.data,
        batch_size=10, samples=samples, against=estimators.antithetic(),
    )  # fmt: skip
    run = quell.fit(
        problem.objective, problem.data, params=params, optimizer=ADAM, num_steps=num_steps,
        batch_size=10, key=key, estimator=make, monitors={"ratio": ratio}, monitor_every=EVERY,
    )  # fmt: skip
    seen = run.history.monitors["ratio"]
    steps = np.flatnonzero(np.isfinite(seen))
    found = {"steps": steps.tolist(), "ratio": seen[steps].tolist()}
    print(f"{name}: at worst {seen[steps].max():.3f}, at the end {seen[steps][-1]:.3f}", flush=True)
    return found


def traces(num_steps: int, seeds: int) -> dict:
    """The bound on titanic along training, for every estimator and seed."""
    problem, key = contest("logistic", "titanic"), jax.random.key(0)
    objective, data = problem.objective, problem.data
    noise = objective.sample_noise(key, objective.num_data, samples=100)
    amortised = quell.control_variate(
        bases.linear(), coefficients.recognition_network(optimizer=ADAM),
        criteria.squared_difference,
        noise=objective.noise, context=problem.context(data), key=key,
    )  # fmt: skip
    plain = estimators.monte_carlo()
    makers = {
        "plain": plain,
        "paper, amortised": estimators.controlled(plain, amortised, context=problem.context),
        "antithetic": estimators.antithetic(),
        "closed form": estimators.closed_form(
            key, objective, problem.init(key), data, context=problem.context
        ),
    }
    keys = jax.vmap(jax.random.key)(np.arange(seeds))
    found = {}
    for name, make in makers.items():
        run = quell.fit(
            objective, data, params=problem.init(key), optimizer=ADAM, num_steps=num_steps,
            batch_size=10, key=keys, estimator=make, monitor_every=EVERY,
            monitors={"bound": lambda step: objective.value(step.params, noise, data)},
        )  # fmt: skip
        bound = run.history.monitors["bound"]
        found["steps"] = np.flatnonzero(np.isfinite(bound[0])).tolist()
        found[name] = bound[:, found["steps"]].tolist()
        print(f"{name}: bound {bound[:, found['steps'][-1]].mean():.2f} at the end", flush=True)
    return found


@styled
def draw(document: dict, path: Path) -> None:
    """Both panels."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.4, 3.2), layout="constrained")
    for colour, (name, found) in zip(COLOURS, document["safety"].items()):
        left.plot(found["steps"], found["ratio"], color=colour, lw=1.3)
        end = found["steps"][-1] + 20, np.median(found["ratio"][-8:])
        left.annotate(name, end, color=colour, fontsize=7.5, va="center", annotation_clip=False)
    left.axhline(1, color="#767676", lw=0.8)
    left.set(yscale="log", xlabel="step", ylabel="variance against the same pairs alone")
    found = document[TRACES]
    plain = np.array(found["plain"])
    for colour, name in zip(COLOURS, ("paper, amortised", "antithetic", "closed form")):
        difference = np.array(found[name]) - plain
        middle, error = difference.mean(0), 1.96 * difference.std(0) / np.sqrt(len(difference))
        right.plot(found["steps"], middle, color=colour, label=name, lw=1.3)
        right.fill_between(found["steps"], middle - error, middle + error, color=colour, alpha=0.2)
    right.axhline(0, color="#767676", lw=0.8)
    right.set(xlabel="step", ylabel="−ELBO less that of plain training, nats")
    right.set_yscale("symlog", linthresh=1)
    right.legend(fontsize=7.5)
    figure.savefig(path, dpi=160)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the figure of docs/closed_form.md.")
    parts = [*PROBLEMS, TRACES]
    parser.add_argument("--only", nargs="*", default=parts, choices=parts)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--trace-steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=HERE)
    args = parser.parse_args()
    path = args.out / "closed_form.json"
    document = json.loads(path.read_text()) if path.exists() else {"safety": {}}
    document["versions"] = versions()
    (args.out / "figures").mkdir(parents=True, exist_ok=True)
    for part in args.only:
        if part == TRACES:
            document[TRACES] = traces(args.trace_steps, args.seeds)
        else:
            document["safety"][part] = safety(part, args.steps)
        path.write_text(json.dumps(document) + "\n")
    draw(document, args.out / "figures" / "closed_form.png")


if __name__ == "__main__":
    main()
