"""The problems of the race."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import quell
from _race import bounds
from quell import datasets
from quell.models import (
    bayesian_neural_network,
    crossed_effects,
    deep_gp,
    local_neural_network,
    logistic_regression,
    poisson_regression,
)
from quell.objective import Objective


class Problem(NamedTuple):
    """A problem of the race.

    Attributes:
      title: the problem in words.
      objective: L.
      init: `init(key)` gives initial params.
      data: leaves `[N, ...]`.
      bound: how the bound is evaluated, in float64.
      sizes: the batch sizes that are tried.
      seconds: the longest run of a contestant.
      program: `program(*arrays, size)`, a NumPyro program with a plate of `size` rows, and the
        arrays; None if there is none.
      guide: the name of NumPyro's guide of the same family.
      targets: nats above the best bound, the times to which are told.
      judged: rows on which the bound is judged; more take their share of the time.
      without: estimators that do not take part.
    """

    title: str
    objective: Objective
    init: Callable
    data: Any
    bound: bounds.Bound
    sizes: tuple[int, ...]
    seconds: float
    program: Any = None
    guide: str | None = None
    targets: tuple[float, ...] = (10.0, 1.0, 0.1)
    judged: int = 50_000
    without: tuple[str, ...] = ()


OTHERS = ("8 draws", "SVRG", "network")  # estimators that long runs do without


def _logistic(name: str, sizes, seconds: float) -> Problem:
    table = datasets.load(name)
    table = table if bool((table.x == 1).all(0).any()) else table.with_bias()
    title = f"logistic regression on {name} ({table.num_data:,} × {table.dim})"
    return _logistic_of(title, table.data, sizes, seconds)


def _logistic_of(title: str, data, sizes, seconds: float) -> Problem:
    N, d = data["x"].shape
    model = logistic_regression(d)

    def program(x, y, size):
        numpyro, dist = _numpyro()
        w = numpyro.sample("w", dist.Normal(0, 1).expand([d]).to_event(1))
        with numpyro.plate("rows", N, subsample_size=size) as rows:
            numpyro.sample("y", dist.Bernoulli(logits=x[rows] @ w), obs=y[rows])

    return Problem(
        title,
        model.objective(N),
        model.init,
        data,
        bounds.linear(bounds.logistic, quell.full_covariance),
        (*sizes, *([N] if N < 10**6 else [])),  # a pass over a million rows is no step
        seconds,
        program,
        "AutoMultivariateNormal",
    )


def _made(rows: int, sizes, seconds: float) -> Problem:
    """Logistic regression on made data, misspecified by one product of inputs."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 20)).astype(np.float32)
    z = x @ (rng.normal(size=20) / math.sqrt(5)).astype(np.float32) + x[:, 0] * x[:, 1]
    y = (rng.random(rows) < 1 / (1 + np.exp(-z))).astype(np.float32)
    data = {"x": jnp.asarray(x), "y": jnp.asarray(y)}
    title = f"logistic regression, made ({rows:,} × 20)"
    problem = _logistic_of(title, data, sizes, seconds)
    return problem._replace(targets=(10.0, 1.5, 1.0), without=OTHERS)


def _poisson(family, seconds: float) -> Problem:
    """Counts from protein: the deviation of a decoy in whole ångströms."""
    table = datasets.load("protein").with_bias()
    counts = jnp.round(table.y * table.y_scale + table.y_mean)
    data = {"x": table.x, "y": counts}
    N, d = table.x.shape
    model = poisson_regression(d, family)

    def program(x, y, size):
        numpyro, dist = _numpyro()
        w = numpyro.sample("w", dist.Normal(0, 1).expand([d]).to_event(1))
        with numpyro.plate("rows", N, subsample_size=size) as rows:
            numpyro.sample("y", dist.Poisson(jnp.exp(x[rows] @ w)), obs=y[rows])

    full = family is quell.full_covariance
    return Problem(
        f"Poisson regression on protein ({N:,} × {d}), "
        f"{'full covariance' if full else 'mean field'}",
        model.objective(N),
        model.init,
        data,
        bounds.linear(bounds.poisson, family),
        (100, 1000, N),
        seconds,
        program,
        "AutoMultivariateNormal" if full else "AutoNormal",
    )


def _deep_gp(name: str, lengthscale: float, sizes, seconds, draws: int, **options) -> Problem:
    targets = options.pop("targets", (10.0, 1.0, 0.1))
    table = datasets.load(name)
    model = deep_gp(jax.random.key(0), table.x, lengthscale=lengthscale, **options)
    length, num_data = lengthscale * math.sqrt(table.dim), table.num_data
    return Problem(
        f"deep GP on {name} ({table.num_data:,} × {table.dim}), lengthscale {length:.3g}",
        model.objective(table.num_data),
        model.init,
        model.prepare(table.data),
        bounds.by_draws(draws, 2048, 2),
        sizes,
        seconds,
        targets=targets,
        without=OTHERS if num_data > 10_000 else ("network",),
    )


def _crossed(levels=(300, 200), rows: int = 10_000, seconds: float = 1.0) -> Problem:
    """Two crossed factors, whose levels occur unequally often, and answers of yes or no."""
    rng = np.random.default_rng(0)
    used = [
        np.minimum(rng.exponential(n / 3, rows).astype(int), n - 1)  # some levels are rare
        for n in levels
    ]
    effects = [rng.normal(size=levels[0]), 0.5 * rng.normal(size=levels[1])]
    z = 0.5 + sum(e[i] for e, i in zip(effects, used))
    y = (rng.random(rows) < 1 / (1 + np.exp(-z))).astype(np.float32)
    data = {"levels": jnp.asarray(np.stack(used, 1), jnp.int32), "y": jnp.asarray(y)}
    model = crossed_effects(levels)

    def program(levels_of, y, size):
        numpyro, dist = _numpyro()
        w0 = numpyro.sample("w0", dist.Normal(0, 1))
        t = numpyro.sample("t", dist.Normal(0, 1).expand([2]).to_event(1))
        a, b = (
            numpyro.sample(f"a{k}", dist.Normal(0, 1).expand([n]).to_event(1))
            for k, n in enumerate(levels)
        )
        with numpyro.plate("rows", rows, subsample_size=size) as at:
            i, j = levels_of[at, 0], levels_of[at, 1]
            z = w0 + jnp.exp(t[0]) * a[i] + jnp.exp(t[1]) * b[j]
            numpyro.sample("y", dist.Bernoulli(logits=z), obs=y[at])

    return Problem(
        f"crossed effects, made ({rows:,} rows, {levels[0]} × {levels[1]} levels)",
        model.objective(rows),
        model.init,
        data,
        bounds.crossed(levels),
        (100, 1000, rows),
        seconds,
        program,
        "AutoNormal",
    )


def _digits(make, word: str, seconds: float) -> Problem:
    table = datasets.load("digits")
    model = make(table.dim, 10, hidden=20)
    return Problem(
        f"network on digits ({table.num_data:,} × 64, 20 hidden units), noise on the {word}",
        model.objective(table.num_data),
        model.init,
        table.data,
        bounds.by_draws(8, 512, 2, model=local_neural_network(table.dim, 10, hidden=20)),
        (100, table.num_data),
        seconds,
        targets=(100.0, 10.0, 1.0),
    )


def _numpyro():
    import numpyro  # slow to import

    return numpyro, numpyro.distributions


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "magic": partial(_logistic, "magic", (30, 100, 1000), 1.0),
    "titanic": partial(_logistic, "titanic", (10, 100), 0.2),
    "million": partial(_made, 1_000_000, (300, 3000, 30_000), 4.0),
    "airfoil": partial(_deep_gp, "airfoil", 1.0, (100, 400, 1503), 4.0, 8),
    "spambase": partial(_logistic, "spambase", (100, 1000), 2.0),
    "poisson": partial(_poisson, quell.full_covariance, 1.0),
    "poisson_mean_field": partial(_poisson, quell.mean_field, 1.0),
    "crossed": _crossed,
    "digits": partial(_digits, bayesian_neural_network, "weights", 2.0),
    "digits_local": partial(_digits, local_neural_network, "units", 2.0),
    "airfoil_short": partial(_deep_gp, "airfoil", 1 / math.sqrt(5), (100, 400, 1503), 3.0, 8),
    "protein": partial(
        _deep_gp,
        "protein",
        1.0,
        (300, 3000),
        6.0,
        2,
        num_inducing=50,
        targets=(1000.0, 100.0, 10.0),
    ),
}
