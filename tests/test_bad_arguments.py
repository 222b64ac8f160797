"""Every public function × every argument × bad values: a result, or one clear sentence."""

import inspect
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from test_fit import DATA, OBJECTIVE, PARAMS
from test_objective import vector_problems
from test_surface import FUNCTIONS as PUBLIC

import quell
from quell import coefficients

pytestmark = pytest.mark.usefixtures("quick")

KEY = jax.random.key(0)
PROBLEM = {"key": KEY, "objective": OBJECTIVE, "params": PARAMS, "data": DATA}

# The streams of batches run inside the compiled loop, which has checked their arguments.
FUNCTIONS = [(n, f) for n, f in PUBLIC if n not in ("reshuffle", "with_replacement")]

# Arguments that work, for those that have no default.
GOOD = {
    "fit": {**PROBLEM, "optimizer": optax.sgd(0.1), "num_steps": 1, "batch_size": 2},
    "measure": {
        **PROBLEM,
        "estimator": quell.monte_carlo(),
        "batch_size": 2,
        "seconds": 0.01,
        "warm_up": 1,
    },
    "recommend": {**PROBLEM, "batch_size": 2, "seconds": 0.01, "num_steps": 0},
    "compare": {**PROBLEM, "estimators": {}, "batch_sizes": (2,), "seconds": 0.01},
    "control_variate": {**PROBLEM, "coefficients": coefficients.running_average()},
    "controlled": {"coefficients": coefficients.running_average()},
    "apply_then_learn": {"before": 0, "after": 1},
    "learn_then_apply": {"before": 0, "after": 1},
    "full_covariance": {"size": 2},
    "mean_field": {"size": 2},
    "natural_gradient": {"num_steps": 10},
    "normal": {"shape": 2},
    "negative_elbo": {
        "log_likelihood": lambda w, y: w.sum(),
        "family": quell.mean_field(2),
        "num_data": 5,
    },
    "callback": {"function": print},
    "checkpoint": {"directory": "run"},
    "monitor": {"functions": lambda seen: seen.value},
    "custom": {"fn": lambda draw, params, example: draw, "mean": 0.0},
    "hermite": {"order": 2},
    "polynomial": {"order": 2},
    "fixed": {"value": 1.0},
    "context_free": {"optimizer": optax.sgd(0.1)},
    "raw_targets": {"scale": 1.0},
    "computed": {"function": lambda params, example: example},
    "ensemble": {"base": quell.monte_carlo()},
    "from_moments": {"shape": 2, "sample": jax.random.normal, "moments": (0.0, 1.0)},
    "laplace": {"shape": 2},
    "uniform": {"shape": 2},
    "deep_gp": {"key": KEY, "x_train": np.ones((6, 2)) * np.arange(6)[:, None], "num_inducing": 3},
    "logistic_regression": {"dim": 2},
    "bayesian_neural_network": {"dim": 2, "outputs": 2},
    "local_neural_network": {"dim": 2, "outputs": 2},
    "poisson_regression": {"dim": 2},
    "crossed_effects": {"levels": (2, 3)},
    "gaussian": {"variance": 1.0},
    "vae": {"dim": 2},
    "classification": {"column": "y", "cells": ("0", "1")},
    "regression": {"column": "y", "cells": ("0", "1")},
    "from_csv": {"path": "no such file.csv", "target": "y"},
    "load": {"name": "titanic"},
}


class Opaque:
    """A value that nothing knows what to do with."""

    def __repr__(self):
        return "a value\nover two lines" * 50


BAD = {
    "None": None,
    "text": "text",
    "empty text": "",
    "minus one": -1,
    "zero": 0,
    "a fraction": 2.5,
    "ten as a float": 10.0,
    "nan": float("nan"),
    "inf": float("inf"),
    "True": True,
    "a huge int": 2**70,
    "an empty list": [],
    "a list of text": ["a", "b"],
    "a dictionary": {"a": 1},
    "a class": Opaque,
    "an object": Opaque(),
    "a factory": quell.antithetic,
    "called twice": quell.antithetic().start,
    "an estimator": quell.antithetic(),
    "an optimiser": optax.sgd(0.1),
    "an array": jnp.ones(3),
    "an array of nan": np.full((2, 2), np.nan),
    "an old key": jax.random.PRNGKey(0),
    "keys": jax.random.split(jax.random.key(0), (2, 2)),
    "complex": 1j,
    "bytes": b"x",
}
PROBLEM_FUNCTIONS = ("fit", "measure", "recommend", "compare")
# Values of arguments that are good: what becomes of them is tested elsewhere, at more cost.
FINE = {
    "seconds": {"a fraction", "ten as a float", "a huge int"},
    "warm_up": {"zero"},
    "num_steps": {"zero", "a huge int"},
    "hooks": {"an empty list"},
    "estimator": {"an estimator"},
    "estimators": set(),
    "driver": {"an estimator"},
    "optimizer": {"an optimiser"},
    "target": {"minus one", "zero", "a fraction", "ten as a float", "a huge int"},
    "report": {"a class", "a factory", "called twice"},
    "state": {"None"},
    "target_steps": set(),
    "batches": {"a class", "a factory", "called twice"},
    "params": {"a fraction"},
}


def of_our_form(error: Exception) -> bool:
    """Whether an error is one sentence that names the argument, the expectation and the value."""
    text = str(error)
    return (
        isinstance(error, ValueError | TypeError)
        and ": expected " in text
        and ", got " in text
        and (text[0].isalpha() or text[0] == ".")  # a path may be the name
        and len(text) < 1000
    )


def arguments(name, function):
    """Each argument of a function, with those that take several values."""
    return list(inspect.signature(function).parameters)


def call(function, given):
    """The function with these arguments, one value for an argument that takes several."""
    signature, kinds = inspect.signature(function), inspect.Parameter
    several = {kinds.VAR_POSITIONAL: lambda v: (v,), kinds.VAR_KEYWORD: lambda v: {"name": v}}
    bound = signature.bind_partial()
    for name in signature.parameters:  # in this order: `args` and `kwargs` are made of it
        if name in given:
            wrap = several.get(signature.parameters[name].kind, lambda v: v)
            bound.arguments[name] = wrap(given[name])
    return function(*bound.args, **bound.kwargs)


def default(function, argument):
    """The default of an argument."""
    return inspect.signature(function).parameters[argument].default


CASES = [
    (name, function, argument, kind)
    for name, function in FUNCTIONS
    for argument in arguments(name, function)
    for kind in BAD
    if not (name in PROBLEM_FUNCTIONS and kind in FINE.get(argument, ()))
    and not (name in PROBLEM_FUNCTIONS and default(function, argument) is BAD[kind])
]


def test_there_are_at_least_a_thousand_cases():
    assert len(CASES) >= 1000


@pytest.mark.parametrize(("name", "function"), FUNCTIONS, ids=[name for name, _ in FUNCTIONS])
def test_bad_values_give_a_result_or_one_clear_sentence(name, function, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wrong = {}
    for _, _, argument, kind in (case for case in CASES if case[0] == name):
        began = time.process_time()  # of this process: other work beside it does not count
        try:
            call(function, {**GOOD.get(name, {}), argument: BAD[kind]})
        except Exception as error:
            if not of_our_form(error) and not isinstance(error, FileNotFoundError):
                wrong[argument, kind] = f"{type(error).__name__}: {error}"[:200]
            elif (took := time.process_time() - began) > 1:
                wrong[argument, kind] = f"refused after {took:.1f} s of work: {error}"[:200]
    assert not wrong, "\n".join(f"{case}: {text}" for case, text in wrong.items())


@pytest.mark.parametrize("function", PROBLEM_FUNCTIONS)
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"key": jax.random.PRNGKey(0)}, "key: expected a typed key"),
        ({"key": 0}, "key: expected a typed key"),
        ({"params": {"w": jnp.ones(2), "log_scale": 1}}, r"params\['log_scale'\]: expected float"),
        ({"params": {"w": jnp.ones(2)}}, "loss: expected a function .* got KeyError: 'log_scale'"),
        ({"params": {**PARAMS, "w": jnp.ones(3)}}, "loss: expected a function .* got TypeError"),
        ({"params": {}}, r"params: expected a pytree with at least one array, got \{\}"),
        (
            {"objective": OBJECTIVE._replace(loss=lambda p, y: 0.0)},
            "loss: expected a function called as loss.* arguments: too many positional arguments",
        ),
        ({"objective": OBJECTIVE._replace(loss=lambda p, e, y: e)}, "loss: .* returns a scalar"),
        ({"objective": OBJECTIVE._replace(noise=quell.normal)}, "noise: .* got normal. Call|noise"),
        ({"objective": OBJECTIVE._replace(num_data=0)}, "objective.num_data: expected 1 to"),
        (
            {"objective": OBJECTIVE._replace(regulariser=lambda: 0.0)},
            "regulariser: expected a function called as regulariser",
        ),
        ({"data": {"x": DATA["x"].tolist(), "y": DATA["y"].tolist()}}, "data: .*jnp.asarray"),
        ({"data": DATA["y"]}, "loss: expected a function"),
    ],
)
def test_problems_that_do_not_fit_together(function, changed, message):
    """The same sentence from every function that looks at a problem."""
    functions = dict(FUNCTIONS)
    with pytest.raises(ValueError, match=message):
        call(functions[function], {**GOOD[function], **changed})


@pytest.mark.parametrize("function", PROBLEM_FUNCTIONS)
@pytest.mark.parametrize("name", ["loss", "regulariser", "log_likelihood", "log_prior"])
def test_vectors_in_place_of_scalars_are_refused_before_any_work(function, name):
    """An average in one estimator is a sum in another: the function is named instead."""
    problems, params = vector_problems()
    given = {"objective": problems[name], "params": params, "data": {"x": jnp.ones((5, 2))}}
    message = (
        rf"^{name}: expected a function that returns a scalar, .*got shape \(2,\)\. .*\.sum\(\)"
    )
    with pytest.raises(ValueError, match=message):
        call(dict(FUNCTIONS)[function], {**GOOD[function], **given})


@pytest.mark.parametrize("function", PROBLEM_FUNCTIONS)
def test_vectors_from_a_likelihood_of_a_model_are_refused(function):
    bare = quell.models.gaussian(1.0)
    vector = bare._replace(log_prob=lambda outputs, y: -((y - outputs) ** 2))
    model = quell.models.bayesian_neural_network(2, 3, hidden=4, likelihood=vector)
    given = {"objective": model.objective(5), "params": model.init(KEY)}
    data = {"x": jnp.ones((5, 2)), "y": jnp.ones(5)}
    with pytest.raises(ValueError, match=r"^log_likelihood: .*returns a scalar.*got shape \(3,\)"):
        call(dict(FUNCTIONS)[function], {**GOOD[function], **given, "data": data})


def test_an_error_of_a_callback_passes_through(key):
    def fail(step, params, history):
        raise KeyError("mine")

    settings = {**GOOD["fit"], "num_steps": 4, "hooks": [quell.callback(fail, every=2)]}
    with pytest.raises(KeyError, match="mine"):
        quell.fit(**settings)
