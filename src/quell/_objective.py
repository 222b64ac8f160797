"""The doubly stochastic objective: a sum over data points of expectations over base noise."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from quell import _leaves
from quell._errors import invalid
from quell.noise import Noise, shape_leaves

_FEW = 16  # so many times fewer rows than the batch has are few


class Objective(NamedTuple):
    """L(θ) = Σₙ E_ε[loss(θ, ε, yₙ)] + regulariser(θ), seen through mini-batches and draws.

    Draws are pytrees with leaves `[S, B, ...]`: S draws for each of B examples. A draw shared by
    the whole batch has leaves `[S, 1, ...]`.

    Attributes:
      loss: `loss(params, noise, example)`, a scalar: one example, one draw.
      noise: the base noise of one example.
      num_data: N, the number of data points the objective sums over.
      regulariser: `regulariser(params)`, the part without noise, such as a KL divergence.
      variational: the likelihood, prior and family behind the loss, where there are such
        (a `quell.Variational`); for estimators that look inside.
      at_zero: `at_zero(params, example)`, what the model says of one example without noise, such
        as its residual: an array or a pytree of them; for `control_variate(at_zero=...)`.
    """

    loss: Callable[[PyTree[Array], PyTree[Array], PyTree[Array]], Float[Array, ""]]
    noise: Noise
    num_data: int
    regulariser: Callable[[PyTree[Array]], Float[Array, ""]] | None = None
    variational: Any = None
    at_zero: Callable[[PyTree[Array], PyTree[Array]], PyTree[Array]] | None = None

    def sample_noise(
        self, key: Key[Array, ""], batch_size: int, *, samples: int = 1, shared: bool = False
    ) -> PyTree[Array]:
        """S draws for each example, or S draws shared by the batch."""
        return self.noise.sample(key, (samples, 1 if shared else batch_size))

    def value(
        self, params: PyTree[Array], noise: PyTree[Array], batch: PyTree[Array]
    ) -> Float[Array, ""]:
        """The estimate of L from a batch and its draws: N/(|B|S) Σ_b Σ_s loss + regulariser."""
        data = self.num_data * self._losses(params, noise, batch).mean()
        return data if self.regulariser is None else data + self.regulariser(params)

    def gradient(
        self, params: PyTree[Array], noise: PyTree[Array], batch: PyTree[Array]
    ) -> PyTree[Array]:
        """Ĝ, the gradient of `value`."""
        return self.value_and_gradient(params, noise, batch)[1]

    def value_and_gradient(
        self, params: PyTree[Array], noise: PyTree[Array], batch: PyTree[Array]
    ) -> tuple[Float[Array, ""], PyTree[Array]]:
        """The estimate of L and its gradient Ĝ."""
        return jax.value_and_grad(self.value)(params, noise, batch)

    def per_example_gradients(
        self,
        params: PyTree[Array],
        noise: PyTree[Array],
        batch: PyTree[Array],
        *,
        leaves: _leaves.Leaves = None,
        rows: int | None = None,
    ) -> PyTree[Array | None]:
        """N ∂loss/∂θ for each example, averaged over its draws: leaves `[R, ...]`.

        Scaled by N, so that their mean over the batch is the gradient of the noisy part of `value`.

        Args:
          leaves: which leaves to differentiate (all by default); the others are None.
          rows: R, how many examples from the front of the batch (all by default).
        """
        return self.value_gradient_and_rows(params, noise, batch, leaves=leaves, rows=rows)[2]

    def value_gradient_and_rows(
        self,
        params: PyTree[Array],
        noise: PyTree[Array],
        batch: PyTree[Array],
        *,
        leaves: _leaves.Leaves = None,
        rows: int | None = None,
    ) -> tuple[Float[Array, ""], PyTree[Array], PyTree[Array | None]]:
        """`value_and_gradient` and `per_example_gradients`, in one backward pass unless R is small.

        The first R examples see copies of the chosen leaves, one each; the gradient of a copy is
        that of its example.
        """
        B = batch_size(batch)
        R = B if rows is None else min(rows, B)
        if _FEW * R <= B:  # going through them twice is cheaper than taking the batch apart
            front = self._front(noise, batch, R)
            rows_alone = self.per_example_gradients(params, *front, leaves=leaves)
            return *self.value_and_gradient(params, noise, batch), rows_alone
        flat, treedef = jax.tree.flatten(params)
        picks = _leaves.chosen(leaves, params)
        axes = treedef.unflatten([0 if pick else None for pick in picks])
        front = self._front(noise, batch, R)
        shared = jax.tree.leaves(noise)[0].shape[1] == 1
        rest = (
            noise if shared else jax.tree.map(lambda e: e[:, R:], noise),
            jax.tree.map(lambda y: y[R:], batch),
        )

        def value(flat, copies):
            copied = [copy if pick else leaf for copy, leaf, pick in zip(copies, flat, picks)]
            losses = self._losses(treedef.unflatten(copied), *front, axes).sum()
            if R < B:
                losses = losses + self._losses(treedef.unflatten(flat), *rest).sum()
            data = self.num_data * losses / (B * jax.tree.leaves(noise)[0].shape[0])
            if self.regulariser is None:
                return data
            return data + self.regulariser(treedef.unflatten(flat))

        copies = [
            jnp.broadcast_to(leaf, (R, *jnp.shape(leaf))) if pick else None
            for leaf, pick in zip(flat, picks)
        ]
        total, (direct, copied) = jax.value_and_grad(value, argnums=(0, 1))(flat, copies)
        gradient = [d + c.sum(0) if pick else d for d, c, pick in zip(direct, copied, picks)]
        per_example = [B * c if pick else None for c, pick in zip(copied, picks)]
        return total, treedef.unflatten(gradient), treedef.unflatten(per_example)

    def _front(self, noise, batch, R: int) -> tuple[PyTree[Array], PyTree[Array]]:
        """The draws and examples of the first R."""
        return jax.tree.map(lambda e: e[:, :R], noise), jax.tree.map(lambda y: y[:R], batch)

    def _losses(self, params, noise, batch, params_axis: Any = None) -> Float[Array, "S B"]:
        """The loss of every draw of every example."""
        self.check(noise, batch)
        shared = jax.tree.leaves(noise)[0].shape[1] != batch_size(batch)
        if shared:
            noise = jax.tree.map(lambda e: e[:, 0], noise)
        one_draw = jax.vmap(self.loss, in_axes=(params_axis, None if shared else 0, 0))
        return jax.vmap(one_draw, in_axes=(None, 0, None))(params, noise, batch)

    def check(self, noise: PyTree[Array], batch: PyTree[Array]) -> None:
        """Refuse draws or batches of the wrong shape, while tracing."""
        B = batch_size(batch)
        expected = [tuple(s) for s in shape_leaves(self.noise.shape)]
        got = [jnp.shape(leaf) for leaf in jax.tree.leaves(noise)]
        good = len(got) == len(expected) and all(
            len(g) >= 2 and g[1] in (1, B) and g[2:] == e for g, e in zip(got, expected)
        )
        if not good:
            raise invalid(
                "noise",
                expected=f"leaves [S, {B} or 1, ...] of one-draw shapes {expected}",
                got=got,
                advice="Draw it with objective.sample_noise(key, batch_size).",
            )


def batch_size(batch: PyTree[Array]) -> int:
    """B, the common length of the leaves of a batch."""
    lengths = {jnp.shape(leaf)[0] if jnp.ndim(leaf) else -1 for leaf in jax.tree.leaves(batch)}
    if len(lengths) != 1 or -1 in lengths:
        raise invalid(
            "batch",
            expected="leaves with one common leading length",
            got=[jnp.shape(leaf) for leaf in jax.tree.leaves(batch)],
            advice="Give every leaf of the batch one row per example.",
        )
    return lengths.pop()
