"""Make the figure of docs/closed_form.md and the numbers beside it: `make closed-form`.

Left: the variance of the closed form over that of the same sampling without it, along trainings
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
from quell.diagnostics.records import versions
from quell.plotting._style import COLOURS, styled
from quell_cli.catalogue import estimators, problem

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
    model, data, gradients = PROBLEMS[name]
    given, key = problem(model, data), jax.random.key(0)
    ratio = quell.variance_ratio(gradients=gradients, against=quell.antithetic())
    seen = quell.fit(
        key, given.objective, given.init(key), given.data, ADAM, num_steps=num_steps,
        batch_size=10, estimator=estimators(given)["closed-form"],
        hooks=[quell.monitor(ratio=ratio, every=EVERY)],
    ).history["ratio"]  # fmt: skip
    steps = np.flatnonzero(np.isfinite(seen))
    found = {"steps": steps.tolist(), "ratio": seen[steps].tolist()}
    print(f"{name}: at worst {seen[steps].max():.3f}, at the end {seen[steps][-1]:.3f}", flush=True)
    return found


def traces(num_steps: int, seeds: int) -> dict:
    """The bound on titanic along training, for every estimator and seed."""
    given, key = problem("logistic", "titanic"), jax.random.key(0)
    objective, data = given.objective, given.data
    noise = objective.sample_noise(key, objective.num_data, draws=100)
    names = {
        "plain": "plain",
        "paper, amortised": "recognition-network",
        "antithetic": "antithetic",
        "closed form": "closed-form",
    }
    keys = jax.vmap(jax.random.key)(np.arange(seeds))
    found = {}
    for name, catalogued in names.items():
        bound = quell.fit(
            keys, objective, given.init(key), data, ADAM, num_steps=num_steps, batch_size=10,
            estimator=estimators(given)[catalogued],
            hooks=[
                quell.monitor(
                    bound=lambda step: objective.value(step.params, noise, data), every=EVERY
                )
            ],
        ).history["bound"]  # fmt: skip
        found["steps"] = np.flatnonzero(np.isfinite(bound[0])).tolist()
        found[name] = bound[:, found["steps"]].tolist()
        print(f"{name}: bound {bound[:, found['steps'][-1]].mean():.2f} at the end", flush=True)
    return found


@styled
def draw(document: dict, path: Path) -> None:
    """Both panels."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.4, 3.2), layout="constrained")
    heights: list[float] = []
    for colour, (name, found) in zip(COLOURS, document["safety"].items()):
        left.plot(found["steps"], found["ratio"], color=colour, lw=1.3)
        height = float(np.median(found["ratio"][-8:]))
        while any(abs(np.log(height / other)) < 0.25 for other in heights):  # no label on another
            height /= 1.1
        heights.append(height)
        end = found["steps"][-1] + 20, height
        left.annotate(name, end, color=colour, fontsize=7.5, va="center", annotation_clip=False)
    left.axhline(1, color="#767676", lw=0.8)
    left.set(yscale="log", xlabel="step", ylabel="remaining variance (pairs alone = 1)")
    found = document[TRACES]
    plain = np.array(found["plain"])
    for colour, name in zip(COLOURS, ("paper, amortised", "antithetic", "closed form")):
        difference = np.array(found[name]) - plain
        middle, error = difference.mean(0), 1.96 * difference.std(0) / np.sqrt(len(difference))
        right.plot(found["steps"], middle, color=colour, label=name, lw=1.3)
        right.fill_between(found["steps"], middle - error, middle + error, color=colour, alpha=0.2)
    right.axhline(0, color="#767676", lw=0.8)
    right.set(xlabel="step", ylabel="−ELBO minus that of plain training, nats")
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
