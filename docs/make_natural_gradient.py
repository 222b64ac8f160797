"""Make the figure of docs/natural_gradient.md and the numbers beside it.

The gap between the bound and its optimum along runs of one length, for plain draws, pairs and the
closed form, each under natural gradients as they come and under Adam with a cosine schedule at the
best of three rates. The expectation in the bound of a logistic regression is one integral for each
example, taken by quadrature in float64. Leaves docs/natural_gradient.json.
"""

import argparse
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import quell
from quell import datasets
from quell.diagnostics.records import versions
from quell.gaussian import cholesky
from quell.models import logistic_regression
from quell.plotting._style import COLOURS, legend_below, new_figure, saved, styled

HERE = Path(__file__).parent
PROBLEMS = {"titanic": 10, "magic": 100, "spambase": 100}  # batch sizes
ESTIMATORS = {
    "plain": quell.monte_carlo,
    "pairs": quell.antithetic,
    "closed form": quell.closed_form,
}
RATES = (0.01, 0.03, 0.1)
NODES = 32


def exact_bound(data):
    """The negative ELBO as a function of the params, without noise."""
    X, y = jnp.asarray(np.asarray(data["x"], float)), jnp.asarray(np.asarray(data["y"], float))
    at, weight = np.polynomial.hermite_e.hermegauss(NODES)
    at, weight = jnp.asarray(at), jnp.asarray(weight / weight.sum())
    kl = quell.full_covariance(X.shape[1]).kl

    def value(params):
        z = X @ params["mean"]
        sd = jnp.linalg.norm(X @ cholesky(params["scale"], X.shape[1]), axis=1)
        softplus = jax.nn.softplus(z[:, None] + sd[:, None] * at) @ weight
        return (softplus - y * z).sum() + kl(params)

    return value


def optimum(value, params, num_steps: int = 100):
    """The least bound, by natural gradients of rate one over all the data."""
    optimizer = quell.natural_gradient(None, rate=1.0)

    def step(carry, _):
        params, state = carry
        updates, state = optimizer.update(jax.grad(value)(params), state, params)
        return (optax.apply_updates(params, updates), state), value(params)

    return float(jax.lax.scan(step, (params, optimizer.init(params)), None, num_steps)[1][-1])


def run(name: str, make, optimizer, num_steps: int, every: int, seeds: int):
    """The params every few steps, `[times, seeds, ...]` in float64, on the host."""
    dataset = datasets.load(name).with_bias()
    model = logistic_regression(dataset.dim)
    path, steps = [], []

    def keep(step, params, history):
        steps.append(step)
        path.append(jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params))

    quell.fit(
        jax.random.split(jax.random.key(0), seeds), model.objective(dataset.num_data), model.init,
        dataset.data, optimizer, num_steps=num_steps, batch_size=PROBLEMS[name], estimator=make(),
        hooks=[quell.callback(keep, every=every), quell.silent],
    )  # fmt: skip
    return steps, path


def gaps(name: str, num_steps: int, every: int, seeds: int) -> dict:
    """The gaps `[times, seeds]` of every estimator under both optimisers."""
    optimizers = {"natural": quell.natural_gradient(num_steps)} | {
        f"Adam {rate}": optax.adam(optax.cosine_decay_schedule(rate, num_steps)) for rate in RATES
    }
    paths = {
        (estimator, optimizer): run(name, make, chosen, num_steps, every, seeds)
        for estimator, make in ESTIMATORS.items()
        for optimizer, chosen in optimizers.items()
    }
    dataset = datasets.load(name).with_bias()
    found = {"batch_size": PROBLEMS[name]}
    with jax.enable_x64(True):
        value = exact_bound(dataset.data)
        start = logistic_regression(dataset.dim).init(jax.random.key(0))
        found["optimum"] = best = optimum(value, start)
        evaluate = jax.jit(lambda stacked: jax.lax.map(value, stacked))
        for (estimator, optimizer), (steps, path) in paths.items():
            seen = [np.asarray(evaluate(params)) - best for params in path]
            found["steps"] = steps
            found[f"{estimator}, {optimizer}"] = np.stack(seen).tolist()
            end = np.median(seen[-1])
            print(f"{name}, {estimator}, {optimizer}: {end:.4f} nats at the end", flush=True)
    return found


def best_adam(found: dict, estimator: str) -> str:
    """The rate whose median gap at the end is least."""
    names = [f"{estimator}, Adam {rate}" for rate in RATES]
    return min(names, key=lambda name: float(np.nan_to_num(np.median(found[name][-1]), nan=np.inf)))


@styled
def draw(results: dict, path: Path) -> None:
    figure, axes = new_figure(1, len(results), 4 * len(results), 3.4)
    for panel, (name, found) in zip(axes[0], results.items()):
        for colour, estimator in zip(COLOURS, ESTIMATORS):
            for label, line in (
                (f"{estimator}, natural", "-"),
                (best_adam(found, estimator), "--"),
            ):
                gap = np.array(found[label])
                shown = label if label.endswith("natural") else f"{estimator}, best Adam"
                panel.plot(found["steps"], np.median(gap, 1), line, color=colour, label=shown)
        panel.set(xscale="log", yscale="log", xlabel="step", ylabel="nats above the optimum")
        panel.set_title(f"{name}, batches of {found['batch_size']}")
    legend_below(figure, axes[0, 0], 3)
    saved(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-steps", type=int, default=1000)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    results = {
        name: gaps(name, options.num_steps, options.every, options.seeds) for name in PROBLEMS
    }
    record = {"versions": versions(), "num_steps": options.num_steps, "problems": results}
    (HERE / "natural_gradient.json").write_text(json.dumps(record) + "\n")
    draw(results, HERE / "figures" / "natural_gradient.png")


if __name__ == "__main__":
    main()
