"""The closed form ready to use: paired draws, least-squares control of what they leave."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Key, PyTree

from quell import _leaves, bases, coefficients, criteria
from quell._automatic import Automatic, automatic
from quell._control_variate import control_variate
from quell._objective import Objective, batch_size
from quell.contexts import as_matrix
from quell.estimators._controlled import controlled
from quell.estimators._sampling import Sampling, antithetic, monte_carlo
from quell.estimators._short_training import short_training
from quell.estimators._types import MakeEstimator
from quell.noise import Noise

_SAMPLE = 256  # examples that the choice of leaves looks at
_SHARE = 0.95  # of the variance that the chosen leaves carry
_ADAM, _WARM_UP = optax.adam(1e-2), 300  # the short training before that
_FUNCTIONS = 16  # the most functions of the noise that pay,
_PRODUCTS = 256  # and the most products of them with the context


def closed_form(
    key: Key[Array, ""],
    objective: Objective,
    params: PyTree[Array],
    data: PyTree[Array],
    *,
    sampling: Sampling | None = None,
    basis: bases.Basis | None = None,
    model: coefficients.Coefficients | None = None,
    leaves: _leaves.Leaves | Automatic = automatic,
    context: Callable[[PyTree[Array]], PyTree[Array]] = as_matrix,
    rows: int = 10,
) -> MakeEstimator:
    """Control of both noises in closed form, with choices fitted to the problem.

    Args:
      key: for random features, and to measure the leaves.
      objective: L.
      params: θ, where training starts.
      data: all of it, leaves `[N, ...]`: the points are controlled by means over the data.
      sampling: antithetic pairs where the noise has mirror images, else one draw.
      basis: functions of the noise; by default what the sampling leaves over and the step can
        pay for: even products of Gaussian noise under pairs, linear under single draws.
      model: `coefficients.least_squares()` by default.
      leaves: which leaves to control; `automatic` takes the fewest parameters that carry 95 % of
        the variance.
      context: the contexts of a batch; every leaf of the batch, side by side, by default.
      rows: how many examples per batch to learn from.
    """
    if sampling is None:
        sampling = monte_carlo() if objective.noise.reflect is None else antithetic()
    measure_key, control_key = jax.random.split(key)
    if isinstance(leaves, Automatic):
        leaves = noisy_leaves(measure_key, objective, params, data, sampling)
    contexts = context(data)
    if basis is None:
        width = jax.eval_shape(as_matrix, contexts).shape[1]
        basis = paying_basis(objective.noise, sampling, width)
    control = control_variate(
        basis,
        coefficients.least_squares() if model is None else model,
        criteria.partial_gradients,
        noise=objective.noise,
        context=contexts,
        key=control_key,
        leaves=leaves,
        points=True,
    )
    return controlled(sampling, control, context=context, rows=rows)


def paying_basis(noise: Noise, sampling: Sampling, width: int) -> bases.Basis:
    """Functions of the noise that the sampling does not cancel, if they are few.

    Each of them is multiplied with a context of this width and a one.
    """
    D = noise.size
    functions = D * (D + 1) // 2 if sampling.balanced else D
    few = 0 < functions <= min(_FUNCTIONS, _PRODUCTS // (width + 1))
    if not few or (sampling.balanced and noise.name != "normal"):
        return bases.none()
    return bases.hermite(2, cross=True, odd=False) if sampling.balanced else bases.linear()


def noisy_leaves(
    key: Key[Array, ""],
    objective: Objective,
    params: PyTree[Array],
    data: PyTree[Array],
    sampling: Sampling | None = None,
) -> PyTree[bool]:
    """The fewest parameters, by whole leaves, that carry nearly all of the variance.

    A short training comes first (300 steps of Adam on plain gradients), since leaves that are quiet
    in the beginning need not stay so. Where it ends, the gradients of 256 examples are measured. A
    leaf's variance per parameter is what controlling it is worth against what it costs, and leaves
    are taken in that order until 95 % of the variance is theirs.

    Args:
      key: for the training, the examples and the draws.
      objective: L.
      params: θ, where the training starts.
      data: leaves `[N, ...]`.
      sampling: how the draws are made; one each by default.

    Returns:
      A pytree of bools like `params`: the `leaves` of `control_variate`.
    """
    sampling = monte_carlo() if sampling is None else sampling
    train_key, pick_key, draw_key = jax.random.split(key, 3)
    later, _ = short_training(
        train_key, objective, params, data, examples=10, optimizer=_ADAM, num_steps=_WARM_UP
    )
    finite = _leaves.all_finite(later)
    params = jax.tree.map(lambda a, b: jnp.where(finite, a, b), later, params)
    rows = jax.random.randint(pick_key, (_SAMPLE,), 0, batch_size(data))
    batch = jax.tree.map(lambda y: jnp.asarray(y)[rows], data)

    @jax.jit
    def densities(params, batch):
        noise = sampling.draw(draw_key, objective, _SAMPLE)
        gradients = objective.per_example_gradients(params, noise, batch)
        return jax.tree.map(lambda g: g.reshape(_SAMPLE, -1).var(0).mean(), gradients)

    found, treedef = jax.tree.flatten(densities(params, batch))
    density = np.asarray(found, float)
    size = np.array([jnp.size(leaf) for leaf in jax.tree.leaves(params)])
    order = np.argsort(-density)
    carried = np.cumsum((density * size)[order])
    enough = int(np.searchsorted(carried, _SHARE * carried[-1])) + 1
    return treedef.unflatten([bool(i in order[:enough]) for i in range(len(order))])
