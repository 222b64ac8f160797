"""A recognition network whose last layer is solved: its trunk steps on a criterion, Θ does not.

There are three copies of the trunk. One is in training. One is in use: it stays still, so that its
mean over the data is known exactly, as the control of the points needs. One is on trial: it stays
still too, its Θ is solved and judged beside that of the trunk in use, and it takes over if it does
better.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PyTree

from quell._errors import invalid
from quell._features import Evidence
from quell._leaves import all_finite
from quell.coefficients._adam import adam
from quell.coefficients._least_squares import (
    LeastSquares,
    explained,
    first_rows,
    least_squares,
    regressors,
)
from quell.coefficients._network import as_network, multilayer
from quell.coefficients._types import Coefficients, Sizes
from quell.contexts import Context, as_matrix, fixed_part, mean_over, standardised
from quell.criteria import Criterion


class LearnedTrunk(NamedTuple):
    """State of coefficients on a learned trunk.

    Attributes:
      used: least squares on the trunk in use.
      trial: least squares on the trunk on trial.
      trunk: the weights of the trunk in training.
      optimizer: its optimiser's state.
      data: the contexts of the data, `[N, C]`, for the mean of the next trunk.
      step: steps so far, `[]`.
    """

    used: LeastSquares
    trial: LeastSquares
    trunk: PyTree[Array]
    optimizer: PyTree[Array]
    data: Float[Array, "N C"]
    step: Int[Array, ""]


def learned_trunk(
    hidden: Sequence[int] = (32, 32),
    optimizer: optax.GradientTransformation | None = None,
    *,
    network: Any = None,
    refresh: int = 256,
    rows: int = 10,
    **solved: Any,
) -> Coefficients:
    """h(y) = [1, trunk(y)], learned by an optimiser, under a Θ that is solved by least squares.

    The trunk steps on what least squares leaves of the gradients: of examples with
    `criteria.partial_gradients`, of the batch otherwise. It serves the draws and the points.

    Args:
      hidden: widths of the trunk's layers.
      optimizer: steps on the trunk; Adam(3e-3) by default.
      network: in place of `hidden`, a trunk of your own, as for `recognition_network`.
      refresh: how many steps a trunk is on trial. Then the next trial begins, which takes a pass
        over the data where the points are controlled.
      rows: how many examples of a batch to learn from at most.
      solved: `every`, `memories` and `ridges`, as for `least_squares`.
    """
    trunk = multilayer(hidden) if network is None else as_network(network)
    optimizer = adam(3e-3) if optimizer is None else optimizer
    scaled = standardised()
    if not isinstance(refresh, int) or refresh < 1:
        raise invalid(
            "refresh", expected="an int ≥ 1", got=refresh, advice="Leave out for the default."
        )

    def h(weights, z):
        features = trunk.apply(weights, z)
        return jnp.concatenate([jnp.ones_like(features[:, :1]), features], axis=1)

    def init_map(key, context):
        scaling = scaled.init(None, context)
        z = scaled.apply(scaling, context)[:, 1:]
        return scaling, trunk.init(key, z[:1])

    def apply_map(state, context):
        scaling, weights = state
        return h(weights, scaled.apply(scaling, context)[:, 1:])

    map = Context(init_map, apply_map)
    closed = least_squares(map, draws=map, rows=rows, **solved)

    def init(key, sizes: Sizes):
        used = closed.init(key, sizes)
        used = used._replace(contexts=(used.contexts[1], used.contexts[1]))
        weights = used.contexts[1][1]
        return LearnedTrunk(
            used=used,
            trial=used,
            trunk=weights,
            optimizer=optimizer.init(weights),
            data=as_matrix(fixed_part(sizes.context)),
            step=jnp.zeros((), jnp.int32),
        )

    def learn(state: LearnedTrunk, criterion, evidence):
        state = state._replace(
            used=closed.learn(state.used, criterion, evidence),
            trial=closed.learn(state.trial, criterion, evidence),
        )
        state = jax.lax.cond(
            evidence.finite, lambda: step(state, criterion, evidence), lambda: state
        )
        return jax.lax.cond(
            evidence.finite & (state.step % refresh == 0),
            lambda: judge(state, evidence.points),
            lambda: state,
        )

    def step(state: LearnedTrunk, criterion: Criterion, evidence: Evidence) -> LearnedTrunk:
        """Step on the mean square that Θ of the trial leaves, relative to the gradients' own."""
        evidence = first_rows(criterion, evidence, rows)
        scaling, _ = state.trial.contexts[1]
        z = scaled.apply(scaling, fixed_part(evidence.context))[:, 1:]
        theta, scores = state.trial.candidates[0], state.trial.scores
        size = scores.gg.sum() / jnp.maximum(scores.n, 1)

        def value(weights):
            features = h(weights, z).astype(theta.dtype)
            intercept = features if evidence.points else jax.lax.stop_gradient(features)
            x, g = regressors(criterion, evidence, features, intercept)
            return ((g - x @ theta) ** 2).sum(1).mean() / jnp.where(size > 0, size, 1)

        gradient = jax.grad(value)(state.trunk)
        updates, moved = optimizer.update(gradient, state.optimizer, state.trunk)
        weights = cast(Any, optax.apply_updates(state.trunk, updates))
        return state._replace(trunk=weights, optimizer=moved, step=state.step + 1)

    def judge(state: LearnedTrunk, points: bool) -> LearnedTrunk:
        """Use the trunk on trial if it does better, and put the one in training on trial."""
        better = explained(state.trial.scores) > explained(state.used.scores)
        used = _where(better, state.trial, state.used)
        finite = all_finite(state.trunk)
        weights = _where(finite, state.trunk, used.contexts[1][1])
        moved = _where(finite, state.optimizer, optimizer.init(weights))
        next = (used.contexts[1][0], weights)
        trial = jax.tree.map(jnp.zeros_like, used)._replace(contexts=(next, next))
        if points:
            mean = mean_over(lambda y: apply_map(next, y), state.data)
            trial = trial._replace(mean=mean.astype(used.mean.dtype))
        return state._replace(used=used, trial=trial, trunk=weights, optimizer=moved)

    def of(function):
        """A function of least squares, of the state that wraps it."""
        return lambda state, *args: function(state.used, *args)

    assert closed.point_features is not None
    return Coefficients(
        init=init,
        context_features=of(closed.context_features),
        predict=of(closed.predict),
        learn=learn,
        point_features=of(closed.point_features),
        random=True,
    )


def _where(condition: Bool[Array, ""], a: PyTree[Array], b: PyTree[Array]) -> PyTree[Array]:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), a, b)
