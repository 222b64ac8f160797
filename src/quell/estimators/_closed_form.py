"""The closed form: paired draws, and least-squares control of the noise that remains."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Key, PyTree

from quell import _tree, bases
from quell._checks import check_whole
from quell._tree import batch_size
from quell.coefficients._least_squares import least_squares
from quell.coefficients._types import Coefficients
from quell.contexts import as_matrix
from quell.control_variate import apply_then_learn
from quell.criteria import partial_gradients
from quell.estimators._controlled import started_controlled
from quell.estimators._sampling import antithetic, monte_carlo
from quell.estimators._types import Estimator, Sampling, check_sampling
from quell.noise import Noise
from quell.objective import Objective
from quell.training.short import short_training

_SAMPLE = 256  # examples on which the choice of leaves is based
_SHARE = 0.95  # share of the variance that the chosen leaves carry
_ADAM, _WARM_UP, _EXAMPLES = optax.adam(1e-2), 300, 10  # the short training before the choice
_FUNCTIONS = 16  # with more functions of the noise, a step costs more than the control saves;
_PRODUCTS = 256  # the same holds for their products with the context


def closed_form(
    *,
    sampling: Estimator | None = None,
    basis: bases.Basis | None = None,
    coefficients: Coefficients | None = None,
    leaves: _tree.Leaves = None,
    examples: int = 10,
) -> Estimator:
    """Control the noise of the draws and of the choice of points, without a learning rate.

    Every choice that is left open is fitted to the problem when the estimator is started. The
    gradient stays unbiased, and a gate keeps it from being noisier than its own draws: a leaf is
    corrected only as far as batches that were predicted before they were learned from support it.

    Args:
      sampling: how the draws are made; by default `antithetic()` if the noise has mirror images,
        otherwise `monte_carlo()`.
      basis: functions of the noise; by default the functions that the sampling does not cancel, if
        they are few: even products of Gaussian noise under pairs, linear under single draws.
      coefficients: `coefficients.least_squares()` by default.
      leaves: the leaves to control; by default the fewest parameters, by whole leaves, that carry
        95 % of the variance after a short training; `lambda path: True` for all leaves.
      examples: the number of examples of each batch to learn from.
    """
    check_whole("examples", examples, 1)
    if sampling is not None:
        check_sampling("sampling", sampling)
    model = least_squares() if coefficients is None else coefficients

    def start(key, objective: Objective, params, data):
        mirrored = objective.noise.reflect is not None
        inner = (antithetic() if mirrored else monte_carlo()) if sampling is None else sampling
        draws = check_sampling("sampling", inner)
        measure_key, fit_key = jax.random.split(key)
        chosen, functions = leaves, basis
        if chosen is None:  # with another key: the choice and the fit stay independent
            chosen = noisy_leaves(measure_key, objective, params, data, draws)
        if functions is None:
            width = jax.eval_shape(as_matrix, data).shape[1]  # a shape alone
            functions = affordable_basis(objective.noise, draws, width)
        parts = (model, functions, partial_gradients, chosen, apply_then_learn, True)
        return started_controlled(fit_key, objective, params, data, draws, *parts, examples)

    return Estimator("closed_form()", start)


def affordable_basis(noise: Noise, sampling: Sampling, width: int) -> bases.Basis:
    """Functions of the noise that the sampling does not cancel, if there are few of them.

    Each function is multiplied with a context of the given width and a one.
    """
    D = noise.size
    functions = D * (D + 1) // 2 if sampling.balanced else D  # pairs cancel the odd functions
    few = 0 < functions <= min(_FUNCTIONS, _PRODUCTS // (width + 1))
    if not few or (sampling.balanced and noise.name != "normal"):
        return bases.no_basis()  # points alone: cheaper, and still unbiased
    return bases.hermite(2, cross=True, odd=False) if sampling.balanced else bases.linear()


def noisy_leaves(
    key: Key[Array, ""],
    objective: Objective,
    params: PyTree[Array],
    data: PyTree[Array],
    sampling: Sampling,
) -> PyTree[bool]:
    """The fewest parameters, by whole leaves, that carry nearly all of the variance.

    A short training comes first (300 steps of Adam on plain gradients), since leaves that are quiet
    in the beginning need not stay quiet. At its end the gradients of 256 examples are measured. The
    variance per parameter of a leaf is its worth against its cost; leaves are taken in this order.
    """
    train_key, pick_key, draw_key = jax.random.split(key, 3)
    later = short_training(
        train_key,
        objective,
        params,
        data,
        monte_carlo(),
        _ADAM,
        num_steps=_WARM_UP,
        batch_size=min(_EXAMPLES, batch_size(data)),
    ).params
    params = _tree.where(_tree.all_finite(later), later, params)  # a diverged run tells nothing
    indices = jax.random.randint(pick_key, (_SAMPLE,), 0, batch_size(data))
    batch = _tree.take(data, indices)

    @jax.jit
    def densities(params, batch):
        noise = sampling.draw(draw_key, objective, _SAMPLE)
        gradients = objective.per_example_gradients(params, noise, batch)
        return jax.tree.map(lambda g: g.reshape(_SAMPLE, -1).var(0).mean(), gradients)

    found, treedef = jax.tree.flatten(densities(params, batch))
    density = np.asarray(found, float)
    size = np.array([jnp.size(leaf) for leaf in jax.tree.leaves(params)])
    order = np.argsort(-density)  # most variance per parameter first
    carried = np.cumsum((density * size)[order])
    enough = int(np.searchsorted(carried, _SHARE * carried[-1])) + 1
    return treedef.unflatten([bool(i in order[:enough]) for i in range(len(order))])
