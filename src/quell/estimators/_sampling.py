"""Plain estimators: how many draws, and how they are spread."""

from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Array, Key, PyTree

from quell._errors import invalid
from quell._objective import Objective, batch_size
from quell.estimators._types import Estimator


class Sampling(NamedTuple):
    """A way to draw the noise of a batch; called with an objective, a plain estimator.

    Attributes:
      draw: `draw(key, objective, batch_size)` gives draws with leaves `[S, B or 1, ...]`, each of
        them distributed as `objective.noise`. Draws of different examples are independent unless
        the batch shares them.
    """

    draw: Callable[[Key[Array, ""], Objective, int], PyTree[Array]]

    def __call__(self, objective: Objective) -> Estimator:
        def estimate(key, params, batch, state):
            noise = self.draw(key, objective, batch_size(batch))
            value, gradient = objective.value_and_gradient(params, noise, batch)
            return gradient, value, state

        return Estimator(init=lambda key, params, batch: (), estimate=estimate)


def monte_carlo(samples: int = 1, *, shared: bool = False) -> Sampling:
    """Independent draws: the plain reparameterisation gradient.

    Args:
      samples: S, draws per example.
      shared: one set of draws for the whole batch instead of one per example.
    """
    _check_samples(samples, 1)
    return Sampling(
        lambda key, objective, B: objective.sample_noise(key, B, samples=samples, shared=shared)
    )


def _check_samples(samples: int, multiple: int) -> None:
    if not isinstance(samples, int) or samples < 1 or samples % multiple:
        raise invalid(
            "samples",
            expected=f"a positive multiple of {multiple}",
            got=samples,
            advice=f"Use samples={multiple}.",
        )
