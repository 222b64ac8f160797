"""The protocol of estimators: one look at the problem, then two pure functions."""

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from quell._arguments import ESTIMATOR
from quell._errors import invalid
from quell._tree import take
from quell.objective import Objective


class Batch(NamedTuple):
    """A mini-batch, with its place in the data.

    Attributes:
      examples: a pytree with leaves `[B, ...]`.
      indices: the row of the data behind each example, `[B]`.
      data: all of the data, leaves `[N, ...]`.
    """

    examples: PyTree[Array]
    indices: Int[Array, " B"]
    data: PyTree[Array]


def batch_of(data: PyTree[Array], indices: Int[Array, " B"]) -> Batch:
    """The batch of the data at the given rows."""
    return Batch(take(data, indices), indices, data)


class Estimate(NamedTuple):
    """One estimate of the gradient.

    Attributes:
      gradient: G̃, a pytree like params.
      value: the estimate of the objective, `[]`.
      state: the next state of the estimator.
      correction_norm: ‖Ĝ − G̃‖, the size of the correction; zero without a control variate, `[]`.
    """

    gradient: PyTree[Array]
    value: Float[Array, ""]
    state: PyTree[Array]
    correction_norm: Float[Array, ""] | float = 0.0


class Refresh(NamedTuple):
    """Rare work of an estimator, done between steps, so that the steps do not carry it.

    Attributes:
      due: `due(state, batch_size)` says whether it is time.
      run: `run(key, objective, params, data, batch_size, state)` gives the refreshed state.
    """

    due: Callable[[PyTree[Array], int], Bool[Array, ""]]
    run: Callable[..., PyTree[Array]]


class Started(NamedTuple):
    """An estimator after its look at the problem.

    Attributes:
      init: `init(key, params)` gives the state.
      estimate: `estimate(key, objective, params, batch, state)` gives an `Estimate` from a `Batch`.
        The objective is an argument, so that an outer estimator can pass an objective with the
        same mean gradient and less noise: this is how estimators compose.
      refresh: the work to do between steps, if there is any.
      guarded: whether `estimate` itself keeps its state if the gradient is not finite. Otherwise
        the loop restores the state, which costs a copy in every step: too much for large tables.
      note: a sentence for the user, if the estimator does less here than its name promises.
    """

    init: Callable[[Key[Array, ""], PyTree[Array]], PyTree[Array]]
    estimate: Callable[[Key[Array, ""], Objective, PyTree[Array], Batch, PyTree[Array]], Estimate]
    refresh: Refresh | None = None
    guarded: bool = False
    note: str = ""


class Sampling(NamedTuple):
    """A way to draw the noise of a batch.

    Attributes:
      draw: `draw(key, objective, batch_size)` gives draws with leaves `[S, B or 1, ...]`, each draw
        distributed as `objective.noise`. Draws of different examples are independent unless
        the batch shares them.
      balanced: whether odd functions of the noise cancel, or nearly cancel.
    """

    draw: Callable[[Key[Array, ""], Objective, int], PyTree[Array]]
    balanced: bool = False


class Estimator(NamedTuple):
    """A way to estimate the gradient of a doubly stochastic objective.

    Attributes:
      name: the estimator in words, such as `antithetic(2)`.
      start: `start(key, objective, params, data)` looks at the data once, on the host.
      sampling: how the draws are made, if the estimator is nothing but draws; otherwise None.
    """

    name: str
    start: Callable[[Key[Array, ""], Objective, PyTree[Array], PyTree[Array]], Started]
    sampling: Sampling | None = None

    def __repr__(self) -> str:
        return self.name


def refresh_inside(
    inside: Started, change: Callable[[Objective, PyTree[Array]], Objective] | None = None
) -> Refresh | None:
    """The refresh of a wrapper whose state keeps the state of `inside` in the field `inner`.

    Args:
      change: `change(objective, state)`, the objective that the inner estimator sees.
    """
    work = inside.refresh
    if work is None:
        return None

    def run(key, objective, params, data, batch_size, state):
        seen = objective if change is None else change(objective, state)
        inner = work.run(key, seen, params, data, batch_size, state.inner)
        return state._replace(inner=inner)

    return Refresh(lambda state, batch_size: work.due(state.inner, batch_size), run)


def stateless(estimate: Callable[..., Estimate]) -> Started:
    """An estimator without a state."""
    return Started(init=lambda key, params: (), estimate=estimate, guarded=True)


def check_estimator(argument: str, value: Any) -> None:
    """Refuse anything but an estimator."""
    ESTIMATOR(argument, value)


def check_sampling(argument: str, value: Any) -> Sampling:
    """The sampling of a plain estimator; refuses every other estimator."""
    check_estimator(argument, value)
    if value.sampling is None:
        raise invalid(
            argument,
            expected="draws alone, from monte_carlo, antithetic or quasi_monte_carlo",
            got=value.name,
            advice="A control variate must see the draws: wrap it the other way round, "
            "for example svrg(closed_form()).",
        )
    return value.sampling
