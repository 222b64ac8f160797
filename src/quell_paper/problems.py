"""The paper's problems by name, their distinct rows, and the bound on the whole data."""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from quell import Objective, datasets
from quell._tree import take
from quell.contexts import as_matrix
from quell.models import deep_gp
from quell_cli.catalogue import Problem, problem
from quell_paper.jobs import cached

_AT_ONCE = 4096  # losses computed at once, few enough to stay in the cache
_REACH, _NODES = 9.0, 145  # of the trapezoidal rule, in standard deviations


def _short_lengthscale() -> Problem:
    """The deep GP whose kernels have lengthscale 1 instead of √5, as Salimbeni & Deisenroth's."""
    table = datasets.airfoil()
    model = deep_gp(jax.random.key(0), table.x, lengthscale=1 / math.sqrt(table.dim))
    return problem("deep-gp")._replace(
        name="deep-gp on airfoil, lengthscale 1",
        objective=model.objective(table.num_data),
        init=model.init,
        data=model.prepare(table.data),
    )


PROBLEMS: dict[str, Callable[[], Problem]] = {
    # Logistic regression on titanic, and two deep Gaussian processes of two layers on airfoil.
    "logistic": cached(partial(problem, "logistic")),
    "deep-gp": cached(partial(problem, "deep-gp")),
    "deep-gp-1": cached(_short_lengthscale),
}


class Distinct(NamedTuple):
    """The distinct rows of some data.

    Attributes:
      rows: each distinct row once, leaves `[U, ...]`.
      counts: the number of times that each row occurs, `[U]`; their sum is N.
    """

    rows: PyTree[Array]
    counts: Float[Array, " U"]


@cached
def distinct(model: str) -> Distinct:
    """The distinct rows of the model's data: 24 of titanic's 2201."""
    given = PROBLEMS[model]()
    rows = np.asarray(as_matrix(given.data, given.select))
    _, first, counts = np.unique(rows, axis=0, return_index=True, return_counts=True)
    return Distinct(take(given.data, jnp.asarray(first)), jnp.asarray(counts, float))


def sampled_nelbo(
    key: Key[Array, ""], objective: Objective, params: PyTree[Array], data: Distinct, draws: int
) -> Float[Array, ""]:
    """The bound on the whole data, from some draws for each row."""
    rows, counts = data
    noise = objective.sample_noise(key, counts.size, draws=draws)
    by_row = jax.vmap(objective.loss, (None, 0, 0))
    totals = jax.lax.map(
        lambda one: by_row(params, one, rows) @ counts,
        noise,
        batch_size=max(1, _AT_ONCE // counts.size),
    )
    assert objective.regulariser is not None
    return totals.mean() + objective.regulariser(params)


def exact_nelbo(objective: Objective, params: PyTree[Array], data: Distinct) -> Float[Array, ""]:
    """The bound on the whole data, if each loss depends on its noise along one direction alone.

    So it is for logistic regression, whose losses see the weights through one product with the
    inputs. The direction is that of the gradient with respect to the noise, and the trapezoidal
    rule along it is exact to rounding: its error falls exponentially for such functions.
    """
    z = jnp.linspace(-_REACH, _REACH, _NODES)
    weights = jax.nn.softmax(-0.5 * z**2)

    def expected(row):
        slope = jax.grad(objective.loss, 1)(params, jnp.zeros(objective.noise.shape), row)
        direction = slope / jnp.maximum(jnp.linalg.norm(slope), jnp.finfo(slope.dtype).tiny)
        losses = jax.vmap(objective.loss, (None, 0, None))(params, z[:, None] * direction, row)
        return weights @ losses

    assert objective.regulariser is not None
    return jax.vmap(expected)(data.rows) @ data.counts + objective.regulariser(params)
