"""The doubly stochastic objective L(θ), its gradients, and the negative ELBO as an objective.

The negative evidence lower bound of N data points is −Σₙ E_q[log p(yₙ | w)] + KL[q ‖ p], with the
divergence in closed form, or from the draws: E_q[log q(w) − log p(w)].
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from quell import _tree
from quell._arguments import GAUSSIAN, checked
from quell._errors import invalid
from quell._tree import batch_size, shape_leaves
from quell.gaussian import Gaussian
from quell.noise import Noise, normal

_FEW = 16  # a batch this many times larger than R is not split in two: see below


class Variational(NamedTuple):
    """The likelihood, the prior and the family of a variational objective.

    Some estimators look inside an objective: they use the density of q or the likelihood. The
    parameters of such an objective are those of the family and nothing else.

    Attributes:
      log_likelihood: `log_likelihood(w, example)`, log p(y | w) of one example.
      family: q(w), a Gaussian family such as `quell.mean_field(d)`.
      log_prior: `log_prior(w)`, log p(w).
    """

    log_likelihood: Callable[[Float[Array, " d"], PyTree[Array]], Float[Array, ""]]
    family: Gaussian
    log_prior: Callable[[Float[Array, " d"]], Float[Array, ""]]


class Objective(NamedTuple):
    """L(θ) = Σₙ E_ε[loss(θ, ε, yₙ)] + regulariser(θ), seen through mini-batches and draws.

    Draws are pytrees with leaves `[S, B, ...]`: S draws for each of B examples. A draw shared by
    the whole batch has leaves `[S, 1, ...]`.

    Attributes:
      loss: `loss(params, noise, example)` gives a scalar for one example and one draw.
      noise: the base noise of one example.
      num_data: N, the number of data points the objective sums over.
      regulariser: `regulariser(params)`, the part without noise, such as a KL divergence.
      variational: the variational structure behind the loss, if there is one.
    """

    loss: Callable[[PyTree[Array], PyTree[Array], PyTree[Array]], Float[Array, ""]]
    noise: Noise
    num_data: int
    regulariser: Callable[[PyTree[Array]], Float[Array, ""]] | None = None
    variational: Variational | None = None

    def sample_noise(
        self, key: Key[Array, ""], batch_size: int, *, draws: int = 1, shared: bool = False
    ) -> PyTree[Array]:
        """Draw S times for each example, or S times for the whole batch."""
        return self.noise.sample(key, (draws, 1 if shared else batch_size))

    def value(
        self, params: PyTree[Array], noise: PyTree[Array], batch: PyTree[Array]
    ) -> Float[Array, ""]:
        """The estimate of L from a batch and its draws: N/(|B|S) Σ_b Σ_s loss + regulariser."""
        data = self.num_data * self._losses(params, noise, batch).mean()
        return data if self.regulariser is None else data + self.penalty(params)

    def penalty(self, params: PyTree[Array]) -> Float[Array, ""]:
        """The regulariser at these parameters."""
        assert self.regulariser is not None
        return _scalar("regulariser", self.regulariser(params))

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
        leaves: _tree.Leaves = None,
        first: int | None = None,
    ) -> PyTree[Array | None]:
        """N ∂loss/∂θ for each example, averaged over its draws: leaves `[R, ...]`.

        The factor N makes their mean over the batch the gradient of the noisy part of `value`.

        Args:
          leaves: the leaves to differentiate (all by default); the others are None.
          first: R, the number of examples from the front of the batch (all by default).
        """
        return self.value_gradient_and_examples(params, noise, batch, leaves=leaves, first=first)[2]

    def value_gradient_and_examples(
        self,
        params: PyTree[Array],
        noise: PyTree[Array],
        batch: PyTree[Array],
        *,
        leaves: _tree.Leaves = None,
        first: int | None = None,
    ) -> tuple[Float[Array, ""], PyTree[Array], PyTree[Array | None]]:
        """`value_and_gradient` and `per_example_gradients`, in one backward pass unless R is small.

        Each of the first R examples sees its own copy of the chosen leaves; the gradient of the
        copy is the gradient of the example.
        """
        B = batch_size(batch)
        R = B if first is None else min(first, B)
        front = jax.tree.map(lambda e: e[:, :R], noise), jax.tree.map(lambda y: y[:R], batch)
        if _FEW * R <= B:  # a second pass over few examples is cheaper than a batch in two parts
            examples = self.per_example_gradients(params, *front, leaves=leaves)
            return *self.value_and_gradient(params, noise, batch), examples
        flat, treedef = jax.tree.flatten(params)
        picks = _tree.chosen(leaves, params)
        axes = treedef.unflatten([0 if pick else None for pick in picks])  # copies: one per example
        shared = jax.tree.leaves(noise)[0].shape[1] == 1
        rest = (
            noise if shared else jax.tree.map(lambda e: e[:, R:], noise),
            jax.tree.map(lambda y: y[R:], batch),
        )

        def value(flat, copies):
            copied = [copy if pick else leaf for copy, leaf, pick in zip(copies, flat, picks)]
            losses = self._losses(treedef.unflatten(copied), *front, axes).sum()  # the copies
            if R < B:
                losses = losses + self._losses(treedef.unflatten(flat), *rest).sum()
            data = self.num_data * losses / (B * jax.tree.leaves(noise)[0].shape[0])
            if self.regulariser is None:
                return data
            return data + self.penalty(treedef.unflatten(flat))

        copies = [
            jnp.broadcast_to(leaf, (R, *jnp.shape(leaf))) if pick else None
            for leaf, pick in zip(flat, picks)
        ]
        total, (direct, copied) = jax.value_and_grad(value, argnums=(0, 1))(flat, copies)
        gradient = [d + c.sum(0) if pick else d for d, c, pick in zip(direct, copied, picks)]
        # each copy carries the factor N/|B| of the mean; N is the scale of a single example
        per_example = [B * c if pick else None for c, pick in zip(copied, picks)]
        return total, treedef.unflatten(gradient), treedef.unflatten(per_example)

    def _losses(self, params, noise, batch, params_axis: Any = None) -> Float[Array, "S B"]:
        """The loss of every draw of every example."""
        self._check(noise, batch)
        shared = jax.tree.leaves(noise)[0].shape[1] != batch_size(batch)
        if shared:
            noise = jax.tree.map(lambda e: e[:, 0], noise)  # vmap broadcasts it, without copies

        def loss(params, draw, example):  # a vector would be averaged here, summed elsewhere
            return _scalar("loss", self.loss(params, draw, example))

        one_draw = jax.vmap(loss, in_axes=(params_axis, None if shared else 0, 0))
        return jax.vmap(one_draw, in_axes=(None, 0, None))(params, noise, batch)

    def _check(self, noise: PyTree[Array], batch: PyTree[Array]) -> None:
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


@checked(family=GAUSSIAN)
def negative_elbo(
    log_likelihood: Callable[[Float[Array, " d"], PyTree[Array]], Float[Array, ""]],
    family: Gaussian,
    *,
    num_data: int,
    log_prior: Callable[[Float[Array, " d"]], Float[Array, ""]] | None = None,
) -> Objective:
    """The negative evidence lower bound of a model with a Gaussian posterior q(w).

    Args:
      log_likelihood: `log_likelihood(w, example)` for weights `[d]`.
      family: `quell.full_covariance(d)` or `quell.mean_field(d)`; its `init()` gives params.
      num_data: N.
      log_prior: log p(w). By default the unit Gaussian, whose divergence KL[q ‖ p] is in closed
        form, free of noise. With a prior of your own the divergence comes from the draws.

    >>> from quell.gaussian import mean_field
    >>> line = negative_elbo(lambda w, y: -0.5 * (y - w[0]) ** 2, mean_field(1), num_data=10)
    >>> line.regulariser(mean_field(1).init()).item()
    0.0
    """
    noise = normal(family.size)
    if log_prior is None:
        structure = Variational(log_likelihood, family, _unit_log_density)

        def loss(params, eps, example):
            w = family.sample(params, eps)
            return -_scalar("log_likelihood", log_likelihood(w, example))

        return Objective(loss, noise, num_data, family.kl, structure)

    def sampled_loss(params, eps, example):
        w = family.sample(params, eps)
        # once per data set, so 1/N here
        divergence = family.log_density(params, w) - _scalar("log_prior", log_prior(w))
        return divergence / num_data - _scalar("log_likelihood", log_likelihood(w, example))

    structure = Variational(log_likelihood, family, log_prior)
    return Objective(sampled_loss, noise, num_data, None, structure)


def _unit_log_density(w: Float[Array, " d"]) -> Float[Array, ""]:
    return -0.5 * (w**2).sum() - 0.5 * w.shape[-1] * math.log(2 * math.pi)


def _scalar(argument: str, value: Any) -> Float[Array, ""]:
    """The value of a user's function, which must be one real number."""
    if jax.tree_util.all_leaves([value]):
        real = jnp.issubdtype(getattr(value, "dtype", float), jnp.floating)  # a number has none
        if jnp.shape(value) == () and real:
            return value
        got = f"shape {jnp.shape(value)}" if jnp.shape(value) else f"dtype {value.dtype}"
    else:
        got = f"{len(jax.tree.leaves(value))} arrays"
    of_one = ": it is of one example and one draw" if argument in ("loss", "log_likelihood") else ""
    raise invalid(
        argument,
        expected="a function that returns a scalar, of shape ()",
        got=got,
        advice=f"Reduce it to one real number, for example with .sum(){of_one}.",
    )
