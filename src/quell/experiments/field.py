"""The estimators of the field by name, and the problems they are compared on."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key, PyTree

from quell import Objective, bases, coefficients, control_variate, criteria, datasets
from quell import estimators as est
from quell._errors import invalid
from quell.contexts import as_matrix
from quell.datasets import Dataset
from quell.estimators import MakeEstimator
from quell.models import Model, bayesian_neural_network, deep_gp, logistic_regression, vae

_MODEL_KEY = 0  # inducing points are part of the model: the same for every seed
_NUMBERS = 2**23  # the most coefficients that a step may touch
_DIRECTIONS = 64  # the most Hessian–vector products per example
_ROWS = 10  # examples per batch that closed forms learn from


class Contest(NamedTuple):
    """A problem that estimators are compared on.

    Attributes:
      name: of the model and the data.
      objective: the negative evidence lower bound.
      init: `init(key)` gives initial params.
      data: leaves `[N, ...]`, with a leaf `index` that numbers the points.
      inputs: which leaves of the data are context.
      rate: of the Adam that the paper's coefficients learn with.
    """

    name: str
    objective: Objective
    init: Callable[[Key[Array, ""]], PyTree[Array]]
    data: dict[str, Array]
    inputs: tuple[str, ...]
    rate: float

    def context(self, batch: Mapping[str, Array]) -> Float[Array, "B C"]:
        """What coefficients may look at."""
        return as_matrix({name: batch[name] for name in self.inputs})


class _Entry(NamedTuple):
    """How a model becomes a contest."""

    default_data: str
    task: Callable
    make: Callable[[Dataset], Model]
    inputs: tuple[str, ...]
    rate: float
    bias: bool = False


MODELS: dict[str, _Entry] = {
    "logistic": _Entry(
        "titanic",
        datasets.classification,
        lambda d: logistic_regression(d.dim),
        ("x", "y"),
        1e-2,
        bias=True,
    ),
    "deep-gp": _Entry(
        "airfoil",
        datasets.regression,
        lambda d: deep_gp(jax.random.key(_MODEL_KEY), d.x),
        ("x", "y"),
        1e-3,
    ),
    "bnn": _Entry(
        "digits",
        datasets.classification,
        lambda d: bayesian_neural_network(d.dim, max(2, len(d.classes))),
        ("x", "y"),
        1e-3,
    ),
    "vae": _Entry("digits", datasets.classification, lambda d: vae(d.dim), ("x",), 1e-3),
}


def contest(model: str, data: str | None = None, target: str | None = None) -> Contest:
    """A model on a data set, by name.

    Args:
      model: one of `MODELS`.
      data: the name of a data set, or a CSV file; what the model is usually shown by default.
      target: the target column of the CSV file.
    """
    if model not in MODELS:
        raise invalid(
            "model", expected=f"one of {list(MODELS)}", got=model, advice="Choose one of these."
        )
    entry = MODELS[model]
    name = entry.default_data if data is None else data
    table = _load(name, target, entry.task)
    if entry.bias and not bool((table.x == 1).all(0).any()):
        table = table.with_bias()
    made = entry.make(table)
    rows = made.prepare(table.data) | {"index": jnp.arange(table.num_data)}
    objective = made.objective(table.num_data)
    title = f"{model} on {Path(name).name}"
    return Contest(title, objective, made.init, rows, entry.inputs, entry.rate)


def _load(name: str, target: str | None, task: Callable) -> Dataset:
    shipped = {"titanic": datasets.titanic, "airfoil": datasets.airfoil}
    if name in shipped:
        return shipped[name]()
    if not name.endswith(".csv"):
        return datasets.load(name)
    if target is None:
        raise invalid(
            "target",
            expected="the name of the target column",
            got="none",
            advice="Add --target COLUMN.",
        )
    return datasets.from_csv(name, target=target, task=task)


def field(key: Key[Array, ""], problem: Contest) -> dict[str, MakeEstimator]:
    """Every estimator of the field, by name, for one problem.

    What an estimator needs and the problem does not offer, or what no machine could pay, is said
    when the estimator is made.
    """
    plain, pair = est.monte_carlo(), est.antithetic()
    closed, trunk = jax.random.split(key)
    free = _controlled(plain, problem, coefficients.context_free(optax.adam(problem.rate)), trunk)
    network = coefficients.recognition_network((128, 128, 128), optax.adam(problem.rate))
    return {
        "plain": plain,
        "plain-4": est.monte_carlo(4),
        "antithetic": pair,
        "antithetic-8": est.antithetic(8),
        "quasi-monte-carlo": est.quasi_monte_carlo(8),
        "context-free": free,
        "recognition-network": _controlled(plain, problem, network, trunk, width=129),
        **_closed_forms(closed, problem),
        "taylor": est.taylor(),
        "sticking-the-landing": est.sticking_the_landing(),
        "surrogate": _few_directions(est.surrogate(), "surrogate"),
        "score-function": est.score_function(),
        "black-box": est.black_box(),
        "learned-surrogate": est.learned_surrogate(context=problem.context),
        "ensemble": _ensemble(plain),
        "svrg": est.svrg(plain, problem.data),
        "svrg-antithetic": est.svrg(pair, problem.data),
        "joint": _few_directions(est.joint(), "joint"),
    }


def _controlled(sampling, problem: Contest, model, key, *, width: int = 1) -> MakeEstimator:
    """The paper's control variate: linear basis, squared difference."""
    noise = problem.objective.noise

    def make(objective):
        _check_coefficients(problem, noise.size * width)
        control = control_variate(
            bases.linear(),
            model,
            criteria.squared_difference,
            noise=noise,
            context=problem.context(problem.data),
            key=key,
        )
        return est.controlled(sampling, control, context=problem.context)(objective)

    return make


def _closed_forms(key, problem: Contest) -> dict[str, MakeEstimator]:
    """Least squares on running sums: the default, on the points alone, and on single draws."""
    arguments = (key, problem.objective, problem.init(key), problem.data)
    leaves = lru_cache(lambda sampling: est.noisy_leaves(*arguments, sampling))

    def variant(sampling: est.Sampling, basis: bases.Basis | None) -> MakeEstimator:
        def make(objective):
            return est.closed_form(
                *arguments,
                sampling=sampling,
                basis=basis,
                context=problem.context,
                leaves=leaves(sampling),
                rows=_ROWS,
            )(objective)

        return make

    def single_draw(objective):  # every function of the draws is multiplied with the context
        width = problem.context(problem.data).shape[1] + 1
        _check_coefficients(problem, objective.noise.size * width)
        return variant(one, bases.linear())(objective)

    one, pair = est.monte_carlo(), est.antithetic()
    return {
        "closed-form": variant(pair, None),
        "closed-form-points": variant(pair, bases.none()),
        "closed-form-single-draw": single_draw,
    }


def _ensemble(sampling) -> MakeEstimator:
    """Plain, Taylor's and, where the objective has the structure, sticking the landing."""

    def make(objective):
        others = [est.minus_linear(sampling)]
        if objective.variational is not None:
            others.append(est.sticking_the_landing(sampling))
        return est.ensemble(sampling, *others, pooling=est.per_leaf)(objective)

    return make


def _few_directions(make: MakeEstimator, name: str) -> MakeEstimator:
    """Refuse what takes a Hessian of every example where that is out of reach."""

    def checked(objective):
        if objective.noise.size > _DIRECTIONS:
            raise invalid(
                "objective",
                expected=f"at most {_DIRECTIONS} weights, each a Hessian–vector product",
                got=objective.noise.size,
                advice=f"{name} is for models with few weights.",
            )
        return make(objective)

    return checked


def _check_coefficients(problem: Contest, rows: int) -> None:
    """Refuse coefficients of a size that no step can pay for."""
    size = sum(p.size for p in jax.tree.leaves(jax.eval_shape(problem.init, jax.random.key(0))))
    if rows * size > _NUMBERS:
        raise invalid(
            "control",
            expected=f"at most {_NUMBERS} coefficients",
            got=f"{rows} features × {size} parameters",
            advice="Control chosen leaves, or fewer functions of the noise.",
        )


def chosen(
    key: Key[Array, ""], problem: Contest, names: tuple[str, ...] | None
) -> dict[str, MakeEstimator]:
    """The estimators of the field with these names; all of them for None."""
    everyone = field(key, problem)
    if names is None:
        return everyone
    unknown = [name for name in names if name not in everyone]
    if unknown:
        raise invalid(
            "estimators",
            expected=f"some of {', '.join(everyone)}",
            got=", ".join(unknown),
            advice="Separate names by commas.",
        )
    return {name: everyone[name] for name in names}
