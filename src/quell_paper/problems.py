"""The paper's two problems by name, their distinct rows, and the bound on the whole data."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from quell import Objective
from quell._tree import take
from quell.commands.catalogue import Problem, problem
from quell.contexts import as_matrix
from quell_paper.jobs import cached

_AT_ONCE = 4096  # losses computed at once, few enough to stay in the cache

PROBLEMS: dict[str, Callable[[], Problem]] = {
    # Logistic regression on titanic, and a deep Gaussian process of two layers on airfoil.
    name: cached(partial(problem, name))
    for name in ("logistic", "deep-gp")
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


def nelbo(
    key: Key[Array, ""], objective: Objective, params: PyTree[Array], data: Distinct, draws: int
) -> Float[Array, ""]:
    """The bound on the whole data, from some draws for each distinct row."""
    # Equal rows share their draws: unbiased, and a hundredth of the work on titanic.
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
