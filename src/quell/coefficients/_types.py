"""What a model of coefficients is."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Float, Key, PyTree

from quell._features import Evidence
from quell.criteria import Criterion


class Sizes(NamedTuple):
    """What the coefficients must fit.

    Attributes:
      basis: D, the number of functions in the basis.
      leaves: the number of entries of each controlled leaf; their sum is P.
      context: contexts of the data, leaves `[N, ...]` (arrays, or shapes alone), or None.
      dtype: of the gradients.
      per_example: whether the criterion needs the gradient of each example.
    """

    basis: int
    leaves: tuple[int, ...]
    context: PyTree[Array | jax.ShapeDtypeStruct]
    dtype: Any
    per_example: bool = False

    @property
    def outputs(self) -> int:
        """P."""
        return sum(self.leaves)


class Coefficients(NamedTuple):
    """Θ and the context map h it goes with.

    Attributes:
      init: `init(key, sizes)` gives the state; `key` may be None where nothing is drawn.
      context_features: `context_features(state, context, B)` gives h `[B, H]`.
      predict: `predict(state, φ)` gives Θᵀφ: `[..., F]` to `[..., P]`. F is D·H for the draws
        alone, D·H + H' with the points.
      learn: `learn(state, criterion, evidence)` gives the next state: the same where the
        evidence is not finite.
      point_features: `point_features(state, context)` gives features of mean zero over the data,
        h(y) − h̄, `[B, H']`; or None for models that cannot control the points.
      random: whether `init` needs a key.
    """

    init: Callable[[Key[Array, ""] | None, Sizes], PyTree[Array]]
    context_features: Callable[[PyTree[Array], PyTree[Array], int], Float[Array, "B H"]]
    predict: Callable[[PyTree[Array], Float[Array, "... F"]], Float[Array, "... P"]]
    learn: Callable[[PyTree[Array], Criterion, Evidence], PyTree[Array]]
    point_features: Callable[[PyTree[Array], PyTree[Array]], Float[Array, "B H2"]] | None = None
    random: bool = False
