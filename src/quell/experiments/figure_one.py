"""Figure 1: one weight, two points, and a variate that is right for neither."""

from dataclasses import asdict
from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float
from numpy.polynomial.hermite_e import hermegauss

from quell._errors import invalid
from quell._fit import fit
from quell._progress import silent
from quell.experiments.config import FigureOne
from quell.experiments.units import Table, Unit, joined
from quell.models import logistic_regression

_KEY = 1
_NODES = 64  # of the Gauss–Hermite rule: expectations over ε are exact to rounding


def units(config: FigureOne) -> list[Unit]:
    """One unit."""
    setting = asdict(config)
    return [Unit("figure-1", setting, lambda: _run(config), 2e7)]


def _run(config: FigureOne) -> Table:
    """Draws ε of two points: the gradient of the mean and its variates, and what they leave.

    `gradient − dependent` and `gradient − independent` are the controlled gradients.
    """
    data_key, fit_key, draw_key = jax.random.split(jax.random.key(_KEY), 3)
    model, data = logistic_regression(1), _data(data_key, config.num_data)
    params = fit(
        model.objective(config.num_data),
        data,
        params=model.init,
        optimizer=optax.adam(1e-2),
        num_steps=config.train_steps,
        batch_size=1,
        key=fit_key,
        progress=silent,
    ).params

    def gradients(eps: Float[Array, " S"]) -> Float[Array, "S N"]:
        """∂loss/∂mean of every point at every draw."""
        by_point = jax.vmap(jax.grad(model.loss), (None, None, 0))
        return jax.vmap(lambda e: by_point(params, e[None], data)["mean"][:, 0])(eps)

    nodes, weights = hermegauss(_NODES)
    weights = weights / weights.sum()
    g = np.asarray(gradients(jnp.asarray(nodes)), float)
    best = weights @ (nodes[:, None] * g)  # c = Cov[g, ε], as Var[ε] = 1
    variance = weights @ g**2 - (weights @ g) ** 2
    a, b = find_pair(best, variance, harm=config.harm, served=config.served)
    shared = (best[a] + best[b]) / 2

    eps = jnp.sort(jax.random.normal(draw_key, (config.draws,)))
    drawn = np.asarray(gradients(eps), float)
    columns = []
    for name, n in (("a", a), ("b", b)):
        repeat = lambda value: [float(value)] * config.draws  # noqa: E731
        columns.append(
            {
                "point": [name] * config.draws,
                "x": repeat(data["x"][n, 0]),
                "y": repeat(data["y"][n]),
                "epsilon": np.asarray(eps, float).tolist(),
                "gradient": drawn[:, n].tolist(),
                "dependent": (best[n] * np.asarray(eps, float)).tolist(),
                "independent": (shared * np.asarray(eps, float)).tolist(),
                "mean_gradient": repeat(weights @ g[:, n]),
                "variance": repeat(variance[n]),
                "variance_dependent": repeat(left(best[n], best[n], variance[n])),
                "variance_independent": repeat(left(shared, best[n], variance[n])),
            }
        )
    return joined(columns)


def left(c: float, best: float, variance: float) -> float:
    """Var[g − cε] = Var[g] − 2c Cov[g, ε] + c²."""
    return variance - 2 * c * best + c**2


def find_pair(
    best: np.ndarray, variance: np.ndarray, *, harm: float, served: float
) -> tuple[int, int]:
    """Two points that a common variate cannot serve, and their own ones can; the loudest such pair.

    The common coefficient that leaves least in both together is the mean of the two best ones.

    Args:
      best: the best coefficient of each point, `[N]`.
      variance: the variance of each point's gradient, `[N]`.
      harm: what the common variate leaves of one point's variance, at least.
      served: what its own variate leaves of either point's, at most.
    """

    def share(c, n):
        return left(float(c), float(best[n]), float(variance[n])) / float(variance[n])

    def fits(pair):
        shared = best[list(pair)].mean()
        return max(share(shared, n) for n in pair) >= harm and all(
            share(best[n], n) <= served for n in pair
        )

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
