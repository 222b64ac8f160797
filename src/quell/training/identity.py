"""The identity of a run: facts that tell it from others, and their differences in words.

Functions cannot be compared, so each is known by what it does: the objective by its losses of a
few rows, the optimiser by its first two updates. Numbers agree if they are close, so that a run can
go on where rounding is another; everything else agrees if it is the same.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Key, PyTree

from quell._tree import batch_size as num_rows
from quell._tree import named_leaves, shape_leaves
from quell.estimators._types import Estimator
from quell.objective import Objective

_ROWS = 8  # the rows whose losses stand for the objective
_TOLERANCE = 1e-4  # of the size of an array: more than rounding, less than a change on purpose
_MOVE = 0.1  # the second parameters at which an objective is looked at

# In words, and the facts without which a fact says nothing: another objective cannot be told from
# its losses if these are of other data.
_WORDS = {
    "key": ("another key", ()),
    "batch_size": ("batch_size={}", ()),
    "monitors": ("the monitors {}", ()),
    "data": ("other data", ()),
    "params": ("other initial params", ()),
    "objective": ("another objective", ("data", "params")),
    "optimizer": ("another optimizer or learning rate", ("params",)),
    "estimator": ("the estimator {}", ()),
    "estimator_state": ("other settings of the estimator", ("data", "params", "estimator")),
}


def identity_of(
    key: Key[Array, "*seeds"],
    objective: Objective,
    params: PyTree[Array],
    data: PyTree[Array],
    optimizer: optax.GradientTransformation,
    *,
    estimator: Estimator,
    estimator_state: PyTree[Any],
    batch_size: int,
    monitors: list[str],
) -> dict[str, Any]:
    """The facts that tell a run from others, as JSON values.

    Args:
      params: the initial parameters of one run.
      estimator_state: the shapes of its first state.
    """
    words = np.asarray(jax.random.key_data(key))
    return {
        "key": [str(jax.random.key_impl(key)), words.tolist()],
        "batch_size": batch_size,
        "monitors": monitors,
        "data": _fingerprint(data),
        "params": {"structure": _structure(params), "close": _gist(params)},
        "objective": _objective(objective, params, data),
        "optimizer": _optimizer(optimizer, params),
        "estimator": estimator.name,
        "estimator_state": _structure(estimator_state),
    }


def differences(found: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """What is different in a directory, in words; nothing if it holds the same run."""
    other = [name for name in _WORDS if not _agree(found.get(name), expected[name])]
    return [
        words.format(found.get(name))
        for name, (words, needed) in _WORDS.items()
        if name in other and not set(needed) & set(other)
    ]


def _agree(found: Any, expected: Any, close: bool = False) -> bool:
    """Whether two facts are the same; rows of numbers called "close" only need be close."""
    if close:
        a, b = np.array(found, float), np.array(expected, float)
        if a.shape != b.shape:
            return False
        size = np.maximum(np.abs(a), np.abs(b)).max(-1, keepdims=True, initial=0)
        with np.errstate(invalid="ignore"):  # infinity is not close to itself, but it is the same
            near = np.abs(a - b) <= _TOLERANCE * np.where(np.isfinite(size), size, 0)
        return bool((near | (a == b) | (np.isnan(a) & np.isnan(b))).all())
    if isinstance(expected, Mapping):
        return (
            isinstance(found, Mapping)
            and found.keys() == expected.keys()
            and all(_agree(found[name], expected[name], name == "close") for name in expected)
        )
    return found == expected


def _structure(tree: PyTree[Any]) -> list[str]:
    """Name, dtype and shape of every leaf."""
    return [f"{name} {leaf.dtype}{list(leaf.shape)}" for name, leaf in named_leaves(tree)]


def _fingerprint(tree: PyTree[Array]) -> dict[str, Any]:
    """A hash of every byte, computed on the host."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        digest.update(np.asarray(leaf).tobytes())
    return {"structure": _structure(tree), "sha256": digest.hexdigest()}


def _gist(tree: PyTree[Any]) -> list[list[float]]:
    """Two numbers for each leaf: its norm, and its product with a wave."""

    def two(leaf):
        vector = np.asarray(leaf, np.float64).ravel()
        wave = np.cos(1.0 + np.arange(vector.size))
        return [float(np.linalg.norm(vector)), float(vector @ wave)]

    with np.errstate(all="ignore"):
        return [two(leaf) for leaf in jax.tree.leaves(tree)]


def _objective(objective: Objective, params: PyTree[Array], data: PyTree[Array]) -> dict[str, Any]:
    """The losses of the first rows for a fixed draw of each, and the regulariser, at two places."""
    rows = jax.tree.map(lambda leaf: leaf[:_ROWS], data)
    noise = objective.noise.sample(jax.random.key(0), (num_rows(rows),))

    @jax.jit
    def look(params):
        found = jax.vmap(objective.loss, (None, 0, 0))(params, noise, rows)
        penalty = 0.0 if objective.regulariser is None else objective.regulariser(params)
        return found, jnp.asarray(penalty)

    places = [params, jax.tree.map(lambda leaf: leaf + jnp.asarray(_MOVE, leaf.dtype), params)]
    seen = [[_numbers(part) for part in look(place)] for place in places]
    return {
        "num_data": objective.num_data,
        "noise": [objective.noise.name, *map(str, shape_leaves(objective.noise.shape))],
        "losses": {"close": [losses for losses, _ in seen]},
        "regulariser": {"close": [penalty for _, penalty in seen]},
    }


def _numbers(array: Array) -> list[float]:
    return np.asarray(array, np.float64).ravel().tolist()


def _optimizer(optimizer: optax.GradientTransformation, params: PyTree[Array]) -> dict[str, Any]:
    """The shapes of its state, and its first two updates: a warm-up starts with a rate of zero."""
    updating = optax.with_extra_args_support(optimizer)

    @jax.jit
    def updates(params):
        state = optimizer.init(params)
        value = jnp.zeros((), jnp.result_type(float))
        ones = jax.tree.map(jnp.ones_like, params)
        first, second = ones, jax.tree.map(lambda leaf: -2 * leaf, ones)
        first, state = updating.update(first, state, params, value=value)
        return first, updating.update(second, state, params, value=value)[0]

    structure = _structure(jax.eval_shape(optimizer.init, params))
    return {"structure": structure, "close": _gist(updates(params))}
