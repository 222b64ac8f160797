"""The protocol of coefficients."""

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import Array, Float, Key, PyTree

from quell.criteria import Criterion, Evidence


class Sizes(NamedTuple):
    """The sizes that coefficients must fit.

    Attributes:
      basis: D, the number of functions in the basis.
      leaves: the number of entries of each controlled leaf; their sum is P.
      dtype: the dtype of the gradients.
    """

    basis: int
    leaves: tuple[int, ...]
    dtype: Any

    @property
    def outputs(self) -> int:
        """P."""
        return sum(self.leaves)


class Coefficients(NamedTuple):
    """Coefficients Θ with their context map h.

    Attributes:
      start: `start(key, sizes, params, data)` looks at the data once, on the host, and gives
        `init(key)`, a pure function to the state.
      context_features: `context_features(state, params, batch, B)` gives h `[B, H]`.
      predict: `predict(state, φ)` gives Θᵀφ: `[..., D·H]` to `[..., P]`.
      learn: `learn(state, criterion, evidence)` gives the next state: the same state if the
        evidence is not finite.
    """

    start: Callable[
        [Key[Array, ""], Sizes, PyTree[Array], PyTree[Array]],
        Callable[[Key[Array, ""]], PyTree[Array]],
    ]
    context_features: Callable[
        [PyTree[Array], PyTree[Array], PyTree[Array], int], Float[Array, "B H"]
    ]
    predict: Callable[[PyTree[Array], Float[Array, "... F"]], Float[Array, "... P"]]
    learn: Callable[[PyTree[Array], Criterion, Evidence], PyTree[Array]]
