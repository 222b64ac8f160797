"""The paper's two problems: a model, its data, and the bound on the whole data."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from quell import Objective, datasets
from quell.contexts import as_matrix
from quell.models import deep_gp, logistic_regression
from quell.types import Model
from quell_paper.jobs import cached

_MODEL_KEY = 0  # inducing points are part of the model: the same for every seed
_AT_ONCE = 4096  # losses computed at once, few enough to stay in the cache


class Problem(NamedTuple):
    """A model and its data.

    Attributes:
      init: `init(key)` gives initial params.
      objective: the negative evidence lower bound.
      data: leaves `[N, ...]`.
      distinct: the rows of the data, each once, leaves `[U, ...]`.
      counts: the number of times that each distinct row occurs, `[U]`; their sum is N.
    """

    init: Callable[[Key[Array, ""]], PyTree[Array]]
    objective: Objective
    data: PyTree[Array]
    distinct: PyTree[Array]
    counts: Float[Array, " U"]

    def rows(self, indices: Array) -> PyTree[Array]:
        """The rows of the data at some indices."""
        return jax.tree.map(lambda leaf: leaf[indices], self.data)

    def nelbo(self, key: Key[Array, ""], params: PyTree[Array], draws: int) -> Float[Array, ""]:
        """The bound on the whole data, from some draws for each distinct row."""
        objective = self.objective
        noise = objective.sample_noise(key, self.counts.size, draws=draws)
        by_row = jax.vmap(objective.loss, (None, 0, 0))
        totals = jax.lax.map(
            lambda one: by_row(params, one, self.distinct) @ self.counts,
            noise,
            batch_size=max(1, _AT_ONCE // self.counts.size),
        )
        assert objective.regulariser is not None
        return totals.mean() + objective.regulariser(params)


@cached
def logistic() -> Problem:
    """Bayesian logistic regression on titanic: 2201 people, 24 distinct rows."""
    data = datasets.titanic()
    return _problem(logistic_regression(data.dim), data.data)


@cached
def deep() -> Problem:
    """A deep Gaussian process of two layers on airfoil."""
    data = datasets.airfoil()
    return _problem(deep_gp(jax.random.key(_MODEL_KEY), data.x), data.data)


PROBLEMS = {"logistic": logistic, "deep-gp": deep}


def _problem(model: Model, data: PyTree[Array]) -> Problem:
    data = model.prepare(data)
    rows = np.asarray(as_matrix({"x": data["x"], "y": data["y"]}))
    _, first, counts = np.unique(rows, axis=0, return_index=True, return_counts=True)
    return Problem(
        init=model.init,
        objective=model.objective(rows.shape[0]),
        data=data,
        distinct=jax.tree.map(lambda leaf: leaf[first], data),
        counts=jnp.asarray(counts, float),
    )
