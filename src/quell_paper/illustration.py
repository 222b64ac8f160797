"""Figure 1: one weight, two points, and a common variate that suits neither point."""

from dataclasses import asdict
from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
from jaxtyping import Array, Float
from numpy.polynomial.hermite_e import hermegauss

import quell
from quell._errors import invalid
from quell.models import logistic_regression
from quell_paper.config import Illustration
from quell_paper.jobs import Job

_KEY = 2**16 + 1  # not one of the experiments' seeds
_NODES = 64  # nodes of the Gauss–Hermite rule: expectations over ε are exact to rounding


def jobs(config: Illustration) -> list[Job]:
    """The only job."""
    return [Job("figure-1", asdict(config), lambda: _run(config), 2e7)]


def _run(config: Illustration) -> pd.DataFrame:
    """A table of draws ε at two points: the gradient of the mean, its variates, and variances.

    `gradient − dependent` and `gradient − independent` are the controlled gradients.
    """
    data_key, fit_key, draw_key = jax.random.split(jax.random.key(_KEY), 3)
    model, data = logistic_regression(1), _data(data_key, config.num_data)
    params = quell.fit(
        fit_key,
        model.objective(config.num_data),
        model.init,
        data,
        optax.adam(1e-2),
        num_steps=config.train_steps,
        batch_size=1,
        hooks=[quell.silent],
    ).params

    def gradients(eps: Float[Array, " S"]) -> Float[np.ndarray, "S N"]:
        """∂loss/∂mean of every point at every draw."""
        by_point = jax.vmap(jax.grad(model.loss), (None, None, 0))
        drawn = jax.vmap(lambda e: by_point(params, e[None], data)["mean"][:, 0])(eps)
        return np.asarray(drawn, float)

    nodes, weights = hermegauss(_NODES)
    weights = weights / weights.sum()
    g = gradients(jnp.asarray(nodes))
    best = weights @ (nodes[:, None] * g)  # c = Cov[g, ε], as Var[ε] = 1
    variance = weights @ g**2 - (weights @ g) ** 2
    pair = find_pair(best, variance, harm=config.harm, served=config.served)
    shared = best[list(pair)].mean()

    eps = jnp.sort(jax.random.normal(draw_key, (config.draws,)))
    drawn, epsilon = gradients(eps), np.asarray(eps, float)
    tables = [
        pd.DataFrame(
            {
                "point": name,
                "x": float(data["x"][n, 0]),
                "y": float(data["y"][n]),
                "epsilon": epsilon,
                "gradient": drawn[:, n],
                "dependent": best[n] * epsilon,
                "independent": shared * epsilon,
                "mean_gradient": weights @ g[:, n],
                "variance": variance[n],
                "variance_dependent": remaining(best[n], best[n], variance[n]),
                "variance_independent": remaining(shared, best[n], variance[n]),
            }
        )
        for name, n in zip("ab", pair)
    ]
    return pd.concat(tables, ignore_index=True)


def remaining(c: float, best: float, variance: float) -> float:
    """The remaining variance Var[g − cε] = Var[g] − 2c Cov[g, ε] + c²."""
    return variance - 2 * c * best + c**2


def find_pair(
    best: np.ndarray, variance: np.ndarray, *, harm: float, served: float
) -> tuple[int, int]:
    """The pair of largest variance that a common variate harms and two own variates serve.

    The common coefficient with the least total variance is the mean of the two best coefficients.

    Args:
      best: the best coefficient of each point, `[N]`.
      variance: the variance of each point's gradient, `[N]`.
      harm, served: as in `config.Illustration`.
    """

    def share(c, n):
        return remaining(c, float(best[n]), float(variance[n])) / float(variance[n])

    def fits(pair):
        shared = best[list(pair)].mean()
        harmed = max(share(shared, n) for n in pair) >= harm
        return harmed and all(share(best[n], n) <= served for n in pair)

    pairs = [pair for pair in combinations(range(len(best)), 2) if fits(pair)]
    if not pairs:
        raise invalid(
            "harm",
            expected="a bound that some pair of points meets",
            got=harm,
            advice="Lower harm, raise served, or draw more points.",
        )
    return max(pairs, key=lambda pair: min(variance[n] for n in pair))


def _data(key, num_data: int):
    x_key, y_key = jax.random.split(key)
    x = jax.random.normal(x_key, (num_data, 1))
    y = jax.random.bernoulli(y_key, jax.nn.sigmoid(1.5 * x[:, 0]))
    return {"x": x, "y": y.astype(float)}
