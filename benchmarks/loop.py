"""The cost of the training loop: against a bare scan, NumPyro, GPyTorch, and as the data grows."""

import contextlib
import importlib.util
import os
import pty
import statistics
import sys
import threading
import time

import _timing
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

import quell
from quell import datasets
from quell.diagnostics.timing import in_turns
from quell.models import deep_gp, logistic_regression
from quell.training.hooks import Progress
from quell.training.progress import rich_bar
from quell_cli.benchmarks import (
    BATCH,
    KEY,
    OPTIMIZER,
    STEPS,
    Section,
    compared,
    growth,
    turn_of,
    turn_of_fit,
)


def bare_scan(data, num_steps):
    """A function that runs the plain logistic regression step, written by hand in one scan."""
    N, d = data["x"].shape
    rows, columns = np.tril_indices(d)

    def loss(params, eps, batch):
        L = jnp.zeros((d, d)).at[rows, columns].set(params["scale"])
        L = jnp.where(jnp.eye(d, dtype=bool), jnp.exp(L), L)
        logits = jnp.sum(batch["x"] * (params["mean"] + eps @ L.T), -1)
        likelihood = jnp.mean(batch["y"] * logits - jax.nn.softplus(logits))
        log_det = params["scale"][rows == columns].sum()
        kl = 0.5 * (jnp.sum(L**2) + jnp.sum(params["mean"] ** 2) - d) - log_det
        return kl - N * likelihood

    @jax.jit
    def run(key, data):
        index_key, noise_key = jax.random.split(key)
        indices = jax.random.randint(index_key, (num_steps, BATCH), 0, N)

        def step(carry, this):
            params, state = carry
            index, key = this
            batch = jax.tree.map(lambda leaf: leaf[index], data)
            eps = jax.random.normal(key, (BATCH, d))
            value, gradient = jax.value_and_grad(loss)(params, eps, batch)
            updates, state = OPTIMIZER.update(gradient, state, params)
            return (optax.apply_updates(params, updates), state), value

        params = {"mean": jnp.zeros(d), "scale": jnp.zeros(len(rows))}
        carry = (params, OPTIMIZER.init(params))
        return lax.scan(step, carry, (indices, jax.random.split(noise_key, num_steps)))

    return lambda: run(KEY, data)


def numpyro_svi(data, by_hand):
    """NumPyro's SVI of the same model: with its bar for a number of steps, and compiled whole.

    The batch is drawn by a subsampling plate, as its manual has it, or `by_hand`, which is faster.
    """
    import numpyro
    from numpyro import distributions as dist
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoMultivariateNormal

    N, d = data["x"].shape

    def model(x, y):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([d]).to_event(1))
        if by_hand:
            index = jax.random.randint(numpyro.prng_key(), (BATCH,), 0, N)
            with numpyro.handlers.scale(scale=N / BATCH), numpyro.plate("batch", BATCH):
                numpyro.sample("y", dist.Bernoulli(logits=x[index] @ w), obs=y[index])
        else:
            with numpyro.plate("data", N, subsample_size=BATCH) as index:
                numpyro.sample("y", dist.Bernoulli(logits=x[index] @ w), obs=y[index])

    svi = SVI(model, AutoMultivariateNormal(model), OPTIMIZER, Trace_ELBO())

    def with_bar(num_steps):
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
            return svi.run(KEY, num_steps, data["x"], data["y"]).losses

    state = svi.init(KEY, data["x"], data["y"])

    @jax.jit
    def compiled(state, x, y):
        return svi.run(KEY, STEPS, x, y, progress_bar=False, init_state=state).losses

    return with_bar, lambda: compiled(state, data["x"], data["y"])


def against_bare_scan_and_numpyro(rounds):
    """Time per step of the plain logistic regression step on titanic."""
    data = datasets.titanic().data
    runs = {"bare lax.scan": bare_scan(data, STEPS)}
    bars = {}
    if installed("numpyro", "test"):
        _, runs["NumPyro SVI, progress_bar=False, subsampling plate"] = numpyro_svi(data, False)
        with_bar, runs["NumPyro SVI, progress_bar=False, indices by hand"] = numpyro_svi(data, True)
        # It compiles in every call: the difference between a long and a short one is its steps.
        bars = {steps: turn_of(lambda steps=steps: with_bar(steps)) for steps in (500, 3000)}
    turns = {"quell.fit": turn_of_fit(logistic_regression(4), data, STEPS)}
    turns |= {name: turn_of(run, STEPS) for name, run in runs.items()}
    title = f"Plain logistic regression step, titanic, batch {BATCH}, full covariance"
    section = compared(title, "loop", turns, "quell.fit", rounds=rounds)
    if not bars:
        return section
    few, many = (statistics.median(times) for times in in_turns(bars, rounds=3).values())
    per_step = (many - few) / 2500 * 1e6
    name = "NumPyro SVI, default bar, indices by hand"
    row = (name, per_step, "", per_step / section.rows[0][1])
    return section._replace(rows=[*section.rows, row])


def installed(package, extra):
    """Whether a competitor is there; says so if not."""
    found = importlib.util.find_spec(package) is not None
    if not found:
        print(f"\n{package} is not installed, so it is left out: pip install 'quell[{extra}]'")
    return found


@contextlib.contextmanager
def terminal():
    """Standard error on a terminal that somebody reads."""
    reader, writer = pty.openpty()
    threading.Thread(target=_drain, args=(reader,), daemon=True).start()
    with os.fdopen(writer, "w") as file, contextlib.redirect_stderr(file):
        yield


def _drain(descriptor):
    with contextlib.suppress(OSError):
        while os.read(descriptor, 4096):
            pass


def progress_bar(rounds):
    """The share of a run that the progress bar takes."""
    data = datasets.titanic().data
    model = logistic_regression(4)
    objective, params = model.objective(len(data["y"])), model.init(KEY)
    spent = 0.0

    def timed(call):
        def wrapped(*args):
            nonlocal spent
            began = time.perf_counter()
            call(*args)
            spent += time.perf_counter() - began

        return wrapped

    def timed_bar(num_steps):
        bar = rich_bar(num_steps)
        return type(bar)(timed(bar.update), timed(bar.close))

    def run(num_steps):
        began = time.perf_counter()
        quell.fit(
            KEY, objective, params, data, OPTIMIZER, num_steps=num_steps, batch_size=BATCH,
            hooks=[Progress(timed_bar)],
        )  # fmt: skip
        return time.perf_counter() - began

    rows = []
    with terminal():
        for num_steps, turns in ((1000, rounds), (STEPS, rounds), (100 * STEPS, 1)):
            spent = 0.0
            total = sum(run(num_steps) for _ in range(turns))
            rows.append((num_steps, total / turns, spent / turns, f"{spent / total:.2%}"))
    header = ("steps", "run, s", "in the bar, s", "share")
    return Section("Progress bar on a terminal", header, rows)


def deep_gps(rounds):
    """A deep GP step next to GPyTorch's of the same shape."""
    data = datasets.airfoil().data
    model = deep_gp(KEY, data["x"])
    turns = {"quell.fit": turn_of_fit(model, model.prepare(data), 1000)}
    if installed("gpytorch", "bench"):
        import _gpytorch_deep_gp

        x, y = np.asarray(data["x"]), np.asarray(data["y"])
        run = _gpytorch_deep_gp.steps(x, y, num_steps=30, batch_size=BATCH)
        turns["GPyTorch"] = turn_of(run, 30)
    title = f"Deep GP step, airfoil, batch {BATCH}, 2 layers, 25 inducing points"
    return compared(title, "loop", turns, "quell.fit", rounds=rounds)


SECTIONS = {
    "step": against_bare_scan_and_numpyro,
    "growth": growth,
    "progress": progress_bar,
    "deep_gp": deep_gps,
}


def main():
    parser = _timing.parser(__doc__)
    parser.add_argument("--only", nargs="*", default=list(SECTIONS), choices=list(SECTIONS))
    arguments = parser.parse_args()
    results = {}
    for name in arguments.only:
        section = SECTIONS[name](arguments.rounds)
        print(section, flush=True)
        results[name] = section.to_json()
    _timing.save(arguments.out / "loop.json", results, "numpyro", "gpytorch", "torch", "rich")


if __name__ == "__main__":
    sys.exit(main())
