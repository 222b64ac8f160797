"""The contestants: estimators, and optimisers whose rate and schedule are data.

An optimiser keeps its rate and its schedule in its state, so that one compiled loop serves every
setting, and an average of the iterates, so that one run serves two ways to use it.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree

import quell

_MEMORY = 8  # the average forgets what is older than about an eighth of the run
_LEAST = 1e-3  # the share of the rate that a cosine leaves


class Tuned(NamedTuple):
    """The state of a tuned optimiser.

    Attributes:
      step: the number of steps taken.
      peak: the rate of Adam, or the bound of natural steps, at the start.
      length: the steps over which it falls by a cosine; 0 for a constant.
      rate: the rate of natural steps within the bound.
      average: the average of the iterates, weighted towards the later ones.
      inner: the state of the optimiser itself.
    """

    step: Int[Array, ""]
    peak: Float[Array, ""]
    length: Float[Array, ""]
    rate: Float[Array, ""]
    average: PyTree[Array]
    inner: PyTree[Array]


class Setting(NamedTuple):
    """What is tuned: the batch size, the rate, and whether it stays or falls by a cosine."""

    batch: int
    peak: float
    cosine: bool


def tuned(kind: str) -> optax.GradientTransformation:
    """Adam or natural steps with their settings in the state."""
    adam = optax.scale_by_adam()

    def init(params):
        inner = adam.init(params) if kind == "Adam" else quell.natural_gradient(None).init(params)
        zero = jnp.zeros(())
        copy = jax.tree.map(jnp.array, params)
        return Tuned(jnp.zeros((), jnp.int32), zero, zero, zero, copy, inner)

    def update(grads, state, params=None, **_):
        share = 0.5 * (1 + jnp.cos(jnp.pi * jnp.minimum(state.step / state.length, 1)))
        share = _LEAST + (1 - _LEAST) * share
        peak = state.peak * jnp.where(state.length > 0, share, 1)
        if kind == "Adam":
            updates, inner = adam.update(grads, state.inner, params)
            updates = jax.tree.map(lambda u: -peak * u, updates)
        else:
            natural = quell.natural_gradient(None, rate=state.rate, bound=peak)
            updates, inner = natural.update(grads, state.inner, params)
        step = state.step + 1
        weight = (_MEMORY + 1) / (step + _MEMORY)
        average = jax.tree.map(
            lambda a, p, u: a + weight * (p + u - a), state.average, params, updates
        )
        return updates, state._replace(step=step, average=average, inner=inner)

    return optax.GradientTransformationExtraArgs(init, update)


def with_setting(state: Tuned, setting: Setting, num_steps: int) -> Tuned:
    """The fresh state of a run of this length."""
    return state._replace(
        peak=jnp.asarray(setting.peak, jnp.float32),
        length=jnp.asarray(num_steps if setting.cosine else 0, jnp.float32),
        rate=jnp.asarray(0.2 if setting.cosine else 0.05, jnp.float32),
    )


PEAKS = {"Adam": (0.01, 0.03, 0.1), "natural": (0.3, 1.0, 3.0)}

ESTIMATORS: dict[str, Any] = {
    "closed form": quell.closed_form,
    "pairs": quell.antithetic,
    "plain": quell.monte_carlo,
    "8 draws": lambda: quell.antithetic(8),
    "SVRG": lambda: quell.svrg(quell.antithetic(), held=quell.antithetic()),
    "network": lambda: quell.controlled(quell.recognition_network()),
}
EXPERTS = ("L-BFGS, exact bound", "L-BFGS, 8 draws", "L-BFGS, 32 draws", "NumPyro")


def names() -> list[str]:
    """All contestants but the experts: an estimator and an optimiser, the telling ones first."""
    return [f"{name}, {kind}" for name in ESTIMATORS for kind in reversed(PEAKS)]
