"""What the training loop costs: against a bare scan, NumPyro, GPyTorch, and as the data grows."""

import contextlib
import importlib.util
import os
import pty
import sys
import threading
import time

import _timing
import jax
import numpy as np

from quell import datasets
from quell._progress import rich_bar
from quell.experiments.bench import BATCH, KEY, OPTIMIZER, STEPS, bare_scan, fitted, growth
from quell.models import deep_gp, logistic_regression


def numpyro_svi(data, by_hand):
    """NumPyro's SVI of the same model: with its bar for so many steps, and compiled whole.

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
    runs = {
        "quell.fit": fitted(logistic_regression(4), data, STEPS),
        "bare lax.scan": bare_scan(data, STEPS),
    }
    has_numpyro = installed("numpyro", "test")
    if has_numpyro:
        _, runs["NumPyro SVI, progress_bar=False, subsampling plate"] = numpyro_svi(data, False)
        with_bar, runs["NumPyro SVI, progress_bar=False, indices by hand"] = numpyro_svi(data, True)
    timings = _timing.side_by_side(runs, rounds=rounds, per=STEPS)
    rows = _timing.compared(timings, "quell.fit")
    if has_numpyro:
        # It compiles in every call: the difference between a long and a short one is its steps.
        few, many = 500, 3000
        bar = _timing.side_by_side(
            {"few": lambda: with_bar(few), "many": lambda: with_bar(many)}, rounds=3, warm_up=0
        )
        per_step = (bar["many"].median - bar["few"].median) / (many - few)
        name = "NumPyro SVI, default bar, indices by hand"
        rows.append((name, per_step * 1e6, "", per_step / timings["quell.fit"].median))
    title = f"Plain logistic regression step, titanic, batch {BATCH}, full covariance"
    return title, ("loop", "µs per step, median", "least", "ratio to quell.fit"), rows


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
    spent = 0.0

    def timed_bar(num_steps):
        bar = rich_bar(num_steps)

        def timed(call):
            def wrapped(*args):
                nonlocal spent
                began = time.perf_counter()
                call(*args)
                spent += time.perf_counter() - began

            return wrapped

        return type(bar)(timed(bar.update), timed(bar.close))

    rows = []
    with terminal():
        for num_steps, turns in ((1000, rounds), (STEPS, rounds), (100 * STEPS, 1)):
            spent = 0.0
            runs = {"bar": fitted(model, data, num_steps, timed_bar)}
            timings = _timing.side_by_side(runs, rounds=turns, warm_up=0 if rows else 1)
            total = sum(timings["bar"].rounds)
            rows.append((num_steps, total / turns, spent / turns, f"{spent / total:.2%}"))
    return "Progress bar on a terminal", ("steps", "run, s", "in the bar, s", "share"), rows


def deep_gps(rounds):
    """A deep GP step next to GPyTorch's of the same shape."""
    data = datasets.airfoil().data
    model = deep_gp(KEY, data["x"])
    runs = {"quell.fit": fitted(model, model.prepare(data), 1000)}
    per = {"quell.fit": 1000, "GPyTorch": 30}
    if installed("gpytorch", "bench"):
        import _gpytorch_deep_gp

        x, y = np.asarray(data["x"]), np.asarray(data["y"])
        runs["GPyTorch"] = _gpytorch_deep_gp.steps(
            x, y, num_steps=per["GPyTorch"], batch_size=BATCH
        )
    timings = _timing.side_by_side(runs, rounds=rounds, per=per)
    rows = _timing.compared(timings, "quell.fit")
    title = f"Deep GP step, airfoil, batch {BATCH}, 2 layers, 25 inducing points"
    return title, ("loop", "µs per step, median", "least", "ratio to quell.fit"), rows


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
        title, header, rows = SECTIONS[name](arguments.rounds)
        _timing.print_table(title, header, rows)
        results[name] = {"title": title, "rows": [dict(zip(header, row)) for row in rows]}
    _timing.save(arguments.out / "loop.json", results, "numpyro", "gpytorch", "torch", "rich")


if __name__ == "__main__":
    sys.exit(main())
