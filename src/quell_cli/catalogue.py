"""Problems and estimators by name, for the command line, the benchmarks and the documentation."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Key, PyTree

from quell import bases
from quell._errors import invalid
from quell._tree import number_of_parameters, take
from quell.coefficients._learned import context_free, recognition_network
from quell.contexts import Select, as_matrix, standardised
from quell.datasets._csv import Target, classification, from_csv, regression
from quell.datasets._dataset import Dataset
from quell.datasets._load import load
from quell.estimators._closed_form import affordable_basis, closed_form
from quell.estimators._controlled import controlled
from quell.estimators._ensemble import ensemble
from quell.estimators._joint import joint
from quell.estimators._learned_surrogate import learned_surrogate
from quell.estimators._pooling import per_entry, per_leaf
from quell.estimators._quadratic import quadratic_surrogate
from quell.estimators._sampling import antithetic, monte_carlo, quasi_monte_carlo
from quell.estimators._score import score_function
from quell.estimators._sticking import sticking_the_landing
from quell.estimators._svrg import svrg
from quell.estimators._taylor import taylor
from quell.estimators._types import Estimator, check_sampling
from quell.models._deep_gp import deep_gp
from quell.models._likelihoods import gaussian
from quell.models._logistic import logistic_regression
from quell.models._neural_network import bayesian_neural_network
from quell.models._types import Model
from quell.models._vae import vae
from quell.objective import Objective

Task = Callable[[str, Sequence[str]], Target]

_CLASSES = 10  # numbers that take more values than this, and many for the rows, are no classes
_MODEL_KEY = 0  # inducing points are part of the model: the same for every seed
_COEFFICIENTS = 2**23  # the most coefficients that a step may touch
_WEIGHTS = 64  # the most weights, each a Hessian–vector product per example
_HIDDEN = (128, 128, 128)  # the paper's recognition network


class Problem(NamedTuple):
    """A model on a data set.

    Attributes:
      name: the names of the model and the data.
      objective: the negative evidence lower bound.
      init: `init(key)` gives initial params.
      data: leaves `[N, ...]`.
      select: `select(example)`, the part of an example that coefficients look at.
      rate: the learning rate of the Adam for the paper's coefficients.
    """

    name: str
    objective: Objective
    init: Callable[[Key[Array, ""]], PyTree[Array]]
    data: dict[str, Array]
    select: Select
    rate: float


class _Entry(NamedTuple):
    """The entry of a model in the catalogue: how its problem is made."""

    default_data: str
    task: Task
    make: Callable[[Dataset], Model]
    fits: Callable[[Dataset], bool]
    needs: str
    leaves: tuple[str, ...] = ("x", "y")
    rate: float = 1e-3
    bias: bool = False


def either(column: str, cells: Sequence[str]) -> Target:
    """Read a target as classes, or as numbers if they take too many values to be classes."""
    found = classification(column, cells)
    try:
        values = {float(name) for name in found.classes}
    except ValueError:
        return found
    few = len(values) <= max(_CLASSES, len(cells) // 10)
    whole = all(value.is_integer() for value in values)
    return found if len(values) == 2 or (few and whole) else regression(column, cells)


def _network(data: Dataset) -> Model:
    """A network for the classes of a data set, or for its numbers."""
    if data.classes:
        return bayesian_neural_network(data.dim, len(data.classes))
    return bayesian_neural_network(data.dim, 1, likelihood=gaussian(0.1))


def _described(data: Dataset) -> str:
    """The target and the inputs of a data set, as an error message shows them."""
    if data.classes:
        shown = ", ".join(data.classes[:5]) + (", …" if len(data.classes) > 5 else "")
        target = f"{len(data.classes)} classes ({shown})"
    else:
        y = np.asarray(data.y) * data.y_scale + data.y_mean
        shown = ", ".join(f"{value:.5g}" for value in y[:3])
        target = f"{len(np.unique(y))} different numbers in {len(y)} rows ({shown}, …)"
    return f"a target of {target}, and inputs from {data.x.min():.3g} to {data.x.max():.3g}"


MODELS: dict[str, _Entry] = {
    "logistic": _Entry(
        "titanic",
        either,
        lambda d: logistic_regression(d.dim),
        lambda d: len(d.classes) == 2,
        "a target of two classes",
        rate=1e-2,
        bias=True,
    ),
    "deep-gp": _Entry(
        "airfoil",
        regression,
        lambda d: deep_gp(jax.random.key(_MODEL_KEY), d.x),
        lambda d: not d.classes,
        "a target of numbers",
    ),
    "bnn": _Entry("digits", either, _network, lambda d: True, "any target"),
    "vae": _Entry(
        "digits",
        either,
        lambda d: vae(d.dim),
        lambda d: bool(((d.x >= 0) & (d.x <= 1)).all()),
        "inputs from 0 to 1, such as the pixels of digits",
        leaves=("x",),
    ),
}


def problem(model: str, data: str | None = None, target: str | None = None) -> Problem:
    """A model on a data set, by name.

    Args:
      model: one of `MODELS`.
      data: the name of a data set, or a CSV file; by default the model's usual data.
      target: the target column of the CSV file.
    """
    if model not in MODELS:
        raise invalid(
            "model", expected=f"one of {list(MODELS)}", got=model, advice="Choose one of these."
        )
    entry = MODELS[model]
    name = entry.default_data if data is None else data
    table = _load(name, target, entry.task)
    if not entry.fits(table):
        raise invalid(
            f"data for {model}",
            expected=entry.needs,
            got=f"{_described(table)} in {Path(name).name}",
            advice="Choose another target, or another model: logistic takes two classes, deep-gp "
            "numbers, bnn either.",
        )
    if entry.bias and not bool((table.x == 1).all(0).any()):  # not twice
        table = table.with_bias()
    made = entry.make(table)
    return Problem(
        name=f"{model} on {Path(name).name}",
        objective=made.objective(table.num_data),
        init=made.init,
        data=made.prepare(table.data),
        select=lambda example: {leaf: example[leaf] for leaf in entry.leaves},
        rate=entry.rate,
    )


def _load(name: str, target: str | None, task: Task) -> Dataset:
    if not name.endswith(".csv") and not Path(name).exists():
        return load(name)
    if target is None:
        raise invalid(
            "target",
            expected="the name of the target column",
            got="no name",
            advice="Add --target COLUMN.",
        )
    return from_csv(name, target=target, task=task)


def estimators(problem: Problem, names: Sequence[str] | None = None) -> dict[str, Estimator]:
    """The estimators with these names, or all estimators, with the contexts of a problem.

    An estimator that does not fit the problem, or that no machine could run, raises an error when
    it is started.
    """
    found = _estimators(problem)
    unknown = [name for name in names or () if name not in found]
    if unknown:
        raise invalid(
            "estimators",
            expected=f"some of {', '.join(found)}",
            got=", ".join(unknown),
            advice="Separate names by commas.",
        )
    return found if names is None else {name: found[name] for name in names}


def _estimators(problem: Problem) -> dict[str, Estimator]:
    D, adam, pairs = problem.objective.noise.size, optax.adam(problem.rate), antithetic()
    context = standardised(problem.select)
    width = as_matrix(take(problem.data, jnp.arange(1)), problem.select).shape[1]
    # The context alone counts: `closed_form` would count every column of the data.
    basis = affordable_basis(problem.objective.noise, check_sampling("sampling", pairs), width)
    single = closed_form(sampling=monte_carlo(), basis=bases.linear(), select=problem.select)
    free = controlled(context_free(adam))
    network = controlled(recognition_network(_HIDDEN, adam, context=context))
    return {
        "plain": monte_carlo(),
        "plain-4": monte_carlo(4),
        "antithetic": pairs,
        "antithetic-8": antithetic(8),
        # Early, since a short comparison may not come to the last ones.
        "closed-form": closed_form(basis=basis, select=problem.select),
        "quasi-monte-carlo": quasi_monte_carlo(8),
        "context-free": _with_few_coefficients(free, D),
        "recognition-network": _with_few_coefficients(network, D * (_HIDDEN[-1] + 1)),
        "closed-form-points": closed_form(basis=bases.no_basis(), select=problem.select),
        "closed-form-single-draw": _with_few_coefficients(single, D * (width + 1)),
        "taylor": taylor(),
        "sticking-the-landing": sticking_the_landing(),
        "surrogate": _with_few_weights(quadratic_surrogate()),
        "score-function": score_function(),
        "black-box": score_function(pooling=per_entry),
        "learned-surrogate": learned_surrogate(select=problem.select),
        "ensemble": _ensemble(problem.objective),
        "svrg": svrg(),
        "svrg-antithetic": svrg(pairs),
        "joint": _with_few_weights(joint()),
    }


def _ensemble(objective: Objective) -> Estimator:
    """An ensemble of plain, Taylor and, if the structure is known, sticking the landing."""
    others = [taylor(pooling=None)]
    if objective.variational is not None:
        others.append(sticking_the_landing())
    return ensemble(monte_carlo(), *others, pooling=per_leaf)


def _checked(estimator: Estimator, check: Callable[[Objective, PyTree[Array]], None]) -> Estimator:
    """The estimator with a check at its start."""

    def start(key, objective, params, data):
        check(objective, params)
        return estimator.start(key, objective, params, data)

    return Estimator(estimator.name, start)


def _with_few_weights(estimator: Estimator) -> Estimator:
    """The estimator, refused for many weights, since it takes a Hessian of every example."""

    def check(objective, params):
        if objective.noise.size > _WEIGHTS:
            raise invalid(
                "objective",
                expected=f"at most {_WEIGHTS} weights, each a Hessian–vector product",
                got=objective.noise.size,
                advice=f"{estimator.name} is for models with few weights.",
            )

    return _checked(estimator, check)


def _with_few_coefficients(estimator: Estimator, features: int) -> Estimator:
    """The estimator, refused if its coefficients are too many for a step."""

    def check(objective, params):
        if features * number_of_parameters(params) > _COEFFICIENTS:
            raise invalid(
                "control",
                expected=f"at most {_COEFFICIENTS} coefficients",
                got=f"{features} features × {number_of_parameters(params)} parameters",
                advice="Control chosen leaves, or fewer functions of the noise.",
            )

    return _checked(estimator, check)
