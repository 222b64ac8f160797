"""The time from a cold start to a first answer, compilation included, each in a fresh process.

Logistic regression on titanic, batches of 10. NumPyro's SVI on the same model stands beside, if it
is installed.
"""

import json
import subprocess
import sys

import numpy as np
from _timing import parser, save

SETUP = """
import time
began = time.perf_counter()
import jax, optax, quell
imported = time.perf_counter() - began
from quell import datasets
from quell.models import logistic_regression
data = datasets.titanic().with_bias()
model = logistic_regression(data.dim)
objective = model.objective(data.num_data)
problem = (objective, model.init(jax.random.key(0)), data.data)
began = time.perf_counter() - imported
run = dict(num_steps=1000, batch_size=10, hooks=[quell.silent])
"""
REPORT = "\nprint(time.perf_counter() - began)\n"
FIT = "quell.fit(jax.random.key(0), *problem, optax.adam(1e-2), estimator={}, **run)"
MEASURE = "quell.measure(jax.random.key(0), *problem, {}, batch_size=10, seconds=3)"
NUMPYRO = """
import time
began = time.perf_counter()
import jax, jax.numpy as jnp, optax, numpyro, numpyro.distributions as dist
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoMultivariateNormal
imported = time.perf_counter() - began
from quell import datasets
data = datasets.titanic().with_bias()
x, y = data.data["x"], data.data["y"]
began = time.perf_counter() - imported

def model(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", x.shape[0], subsample_size=10) as rows:
        numpyro.sample("y", dist.Bernoulli(logits=x[rows] @ w), obs=y[rows])

svi = SVI(model, AutoMultivariateNormal(model), optax.adam(1e-2), Trace_ELBO())
jax.block_until_ready(svi.run(jax.random.key(0), 1000, x, y, progress_bar=False).params)
"""
SCRIPTS = {
    "import quell": SETUP + "began = time.perf_counter() - imported",
    "fit, plain, 1,000 steps": SETUP + FIT.format("quell.monte_carlo()"),
    "fit, pairs, 1,000 steps": SETUP + FIT.format("quell.antithetic()"),
    "fit, closed form, 1,000 steps": SETUP + FIT.format("quell.closed_form()"),
    "measure(seconds=3), plain": SETUP + MEASURE.format("quell.monte_carlo()"),
    "measure(seconds=3), closed form": SETUP + MEASURE.format("quell.closed_form()"),
    "recommend(seconds=3)": SETUP
    + "quell.recommend(jax.random.key(0), *problem, batch_size=10, seconds=3)",
    "NumPyro, SVI.run, 1,000 steps": NUMPYRO,
}


def seconds(script: str) -> float | None:
    """The time that a script reports, in a process of its own; None if it cannot run."""
    done = subprocess.run(
        [sys.executable, "-c", script + REPORT], capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(done.stderr.splitlines()[-1], file=sys.stderr)
        return None
    return float(done.stdout.split()[-1])


def main() -> None:
    command = parser(__doc__)
    command.set_defaults(rounds=3)
    args = command.parse_args()
    results = {}
    for name, script in SCRIPTS.items():
        taken = [seconds(script) for _ in range(args.rounds)]
        known = [one for one in taken if one is not None]
        results[name] = {"seconds": float(np.median(known)), "runs": known} if known else None
        print(name, json.dumps(results[name]), flush=True)
    save(args.out / "first_answer.json", results)


if __name__ == "__main__":
    main()
