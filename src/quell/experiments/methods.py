"""A method by name: basis, network, criterion, learning rate and order, made into an estimator."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

import quell
from quell.bases import linear, polynomial
from quell.coefficients import Coefficients, context_free, recognition_network
from quell.estimators import MakeEstimator, controlled, monte_carlo
from quell.experiments.problems import Problem

BASES = {"linear": linear, "quadratic": lambda: polynomial(2)}
CRITERIA = {
    "squared_difference": quell.criteria.squared_difference,
    "gradient_sum": quell.criteria.gradient_sum,
    "partial_gradients": quell.criteria.partial_gradients,
}
ORDERS = {
    "apply_then_learn": quell.apply_then_learn,
    "learn_then_apply": quell.learn_then_apply,
}


@dataclass(frozen=True)
class Method:
    """A control variate of the paper, by the names of its parts.

    Attributes:
      hidden: widths of the recognition network; none for the context-free variate.
    """

    basis: str
    criterion: str
    hidden: tuple[int, ...]
    order: str = "apply_then_learn"

    @property
    def network(self) -> str:
        """How the network is called in records and figures."""
        return network_name(self.hidden)


def network_name(hidden: tuple[int, ...]) -> str:
    """`128-128-128`, or `none`.

    >>> network_name((16, 16)), network_name(())
    ('16-16', 'none')
    """
    return "-".join(map(str, hidden)) or "none"


def coefficients(method: Method, optimizer: optax.GradientTransformation) -> Coefficients:
    """The method's coefficients, learned by `optimizer`."""
    if method.hidden:
        return recognition_network(method.hidden, optimizer)
    return context_free(optimizer)


def control(
    problem: Problem,
    method: Method,
    optimizer: optax.GradientTransformation,
    *,
    learns: bool = True,
) -> quell.ControlVariate:
    """The control variate of a method; unless it `learns`, its coefficients stay as they are."""
    model = coefficients(method, optimizer)
    if not learns:
        model = model._replace(learn=lambda state, criterion, evidence: state)
    return quell.control_variate(
        BASES[method.basis](),
        model,
        CRITERIA[method.criterion],
        noise=problem.objective.noise,
        context=jax.eval_shape(problem.context, problem.data),
        key=jax.random.key(0),  # a placeholder: `init` is given the seed's own
        order=ORDERS[method.order],
    )


def estimator(
    problem: Problem, method: Method, optimizer: optax.GradientTransformation
) -> MakeEstimator:
    """The controlled estimator of a method, whose coefficients learn by `optimizer`."""
    return controlled(monte_carlo(), control(problem, method, optimizer), context=problem.context)


def correct(
    problem: Problem,
    basis: str,
    hidden: tuple[int, ...],
    gradient: PyTree[Array],
    state: PyTree[Array],
    params: PyTree[Array],
    noise: PyTree[Array],
    batch: PyTree[Array],
) -> PyTree[Array]:
    """G̃ of one batch with coefficients as they stand; nothing learns."""
    applied = Method(basis, "squared_difference", hidden)
    frozen = control(problem, applied, optax.identity(), learns=False)
    context = problem.context(batch)
    return frozen.update(gradient, state, params, noise=noise, context=context)[0]


def flat(tree: PyTree[Array]) -> Float[Array, " P"]:
    """All leaves as one vector."""
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)])
