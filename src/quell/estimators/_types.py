"""What an estimator of the gradient is."""

from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Array, Float, Key, PyTree

from quell._objective import Objective


class Estimator(NamedTuple):
    """A way to get the gradient of an objective from a batch.

    Attributes:
      init: `init(key, params, batch)` gives the state, whose shapes do not depend on the size of
        the batch. Estimators that average over the data take `batch` to be all of it.
      estimate: `estimate(key, params, batch, state)` gives the gradient (a pytree like params), the
        estimate of the objective, and the next state.
    """

    init: Callable[[Key[Array, ""], PyTree[Array], PyTree[Array]], PyTree[Array]]
    estimate: Callable[
        [Key[Array, ""], PyTree[Array], PyTree[Array], PyTree[Array]],
        tuple[PyTree[Array], Float[Array, ""], PyTree[Array]],
    ]


MakeEstimator = Callable[[Objective], Estimator]
"""What the factories return: an estimator, once the objective is known."""
