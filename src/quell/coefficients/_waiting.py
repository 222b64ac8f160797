"""Small batches that wait for the network's next step, to be learned from all at once.

Between two steps the weights stay as they are, so nothing is lost by waiting; and several small
batches take less time together than one by one.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PyTree

from quell._features import Evidence
from quell.coefficients._network import Layers
from quell.coefficients._types import Sizes
from quell.criteria import Criterion

_EXAMPLES = 256  # as many may wait: more are no faster together
_ENTRIES = 2**22  # of their gradients, where the criterion needs them


class Waiting(NamedTuple):
    """Places for n batches of up to B examples each.

    Attributes:
      kept: what `Layers.forward` gave, `[n, B, ...]`.
      w: the basis, over the size of the batch; zero where the batch has no example, `[n, B, D]`.
      total: Ĝ, at unit scale, `[n, P]`.
      rows: g_b, at unit scale, over the size of the batch, `[n, B, P]`; or None.
      number: how many places are taken, the first ones, `[]`.
      size: the size of the largest batch in them, `[]`.
    """

    kept: list[Float[Array, "n B m"]]
    w: Float[Array, "n B D"]
    total: Float[Array, "n P"]
    rows: Float[Array, "n B P"] | None
    number: Int[Array, ""]
    size: Int[Array, ""]

    @property
    def width(self) -> int:
        """The most examples of a batch."""
        return self.w.shape[1]


class Joined(NamedTuple):
    """Batches that wait, and the size of the last."""

    waiting: Waiting
    size: int


def none_waiting(n: int, one: list[Float[Array, "1 m"]], sizes: Sizes) -> Waiting | None:
    """Empty places for n batches; None where there is no room.

    `one` is what `Layers.forward` gives for one example.
    """
    width, P, dtype = _EXAMPLES // n, sizes.outputs, sizes.dtype
    if width < 1 or (sizes.per_example and n * width * P > _ENTRIES):
        return None
    return Waiting(
        kept=[jnp.zeros((n, width, row.shape[1]), row.dtype) for row in one],
        w=jnp.zeros((n, width, sizes.basis), dtype),
        total=jnp.zeros((n, P), dtype),
        rows=jnp.zeros((n, width, P), dtype) if sizes.per_example else None,
        number=jnp.zeros((), jnp.int32),
        size=jnp.zeros((), jnp.int32),
    )


def with_room(waiting: Waiting | None, evidence: Evidence) -> Waiting | None:
    """Those that wait, where there is room for such a batch among them; None otherwise.

    A batch that shares its draws has another criterion than those that wait.
    """
    if waiting is None or evidence.shared or evidence.w.shape[0] > waiting.width:
        return None
    rows = evidence.rows
    room = rows is None or (waiting.rows is not None and rows.shape[0] == evidence.w.shape[0])
    return waiting if room else None


def join(waiting: Waiting, kept: list[Float[Array, "B m"]], evidence: Evidence) -> Joined:
    """One batch more."""
    B = evidence.w.shape[0]

    def write(all, new):
        return lax.dynamic_update_slice_in_dim(all, new[None].astype(all.dtype), waiting.number, 0)

    w = jnp.pad(evidence.w / B, ((0, waiting.width - B), (0, 0)))
    rows = waiting.rows
    if rows is not None and evidence.rows is not None:
        rows = write(rows, evidence.rows / B)
    waiting = Waiting(
        kept=[write(all, new) for all, new in zip(waiting.kept, kept)],
        w=write(waiting.w, w),
        total=write(waiting.total, evidence.total),
        rows=rows,
        number=waiting.number + 1,
        size=jnp.maximum(waiting.size, B),
    )
    return Joined(waiting, B)


def emptied(waiting: Waiting, condition: Bool[Array, ""]) -> Waiting:
    """None that wait, where the condition holds."""
    number, size = (jnp.where(condition, 0, x) for x in (waiting.number, waiting.size))
    return waiting._replace(number=number, size=size)


def first(waiting: Waiting, B: int) -> Waiting:
    """The same with places for B examples only."""
    rows = None if waiting.rows is None else waiting.rows[:, :B]
    kept = [each[:, :B] for each in waiting.kept]
    return waiting._replace(kept=kept, w=waiting.w[:, :B], rows=rows)


def summed_gradient(
    waiting: Waiting,
    trunk: PyTree[Array],
    theta: Float[Array, "P F"],
    layers: Layers,
    criterion: Criterion,
    evidence: Evidence,
) -> tuple[PyTree[Array], Float[Array, "P F"]]:
    """The gradient by the trunk and by Θᵀ, summed over the batches that wait.

    The criterion averages over as many examples as there is place for; those that are not there
    have features of zero.
    """
    B = waiting.width
    taken = jnp.arange(waiting.total.shape[0]) < waiting.number
    rows = None if waiting.rows is None else B * waiting.rows

    def value(theta, h):
        def one(h, w, total, rows):
            batch = evidence._replace(w=w, context=None, total=total, rows=rows, shared=False)
            return criterion.value(theta.T, h, batch)

        each = jax.vmap(one)(h, B * waiting.w, waiting.total, rows)
        return jnp.sum(each, where=taken)

    by_theta, by_h = jax.grad(value, (0, 1))(theta, waiting.kept[-1])
    kept, by_h = jax.tree.map(lambda x: x.reshape(-1, x.shape[-1]), (waiting.kept, by_h))
    return layers.backward(trunk, kept, by_h), by_theta
