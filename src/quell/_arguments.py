"""One table of checks for the arguments of public functions, by their names.

A name means the same in every function, so that one rule serves them all; a function in which it
means something else gives its own: `@checked(draws=CONTEXT)`.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from quell._checks import (
    check_bool,
    check_function,
    check_key,
    check_number,
    check_optimizer,
    check_positive,
    check_whole,
)
from quell._errors import invalid, shortened

F = TypeVar("F", bound=Callable[..., Any])
Rule = Callable[[str, Any], None]


def checked(**own: Rule | None) -> Callable[[F], F]:
    """Check the arguments of a function by the table; an argument left at its default passes.

    Args:
      own: rules of this function alone; None for an argument that the function checks itself.
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        rules = {name: own.get(name, RULES.get(name)) for name in signature.parameters}

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            for name, value in signature.bind(*args, **kwargs).arguments.items():
                rule, parameter = rules[name], signature.parameters[name]
                if rule is None or value is parameter.default:
                    continue
                for each in value if parameter.kind is parameter.VAR_POSITIONAL else (value,):
                    rule(name, each)
            return function(*args, **kwargs)

        return cast(F, call)

    return decorate


def whole(least: int, most: int = 2**31 - 1) -> Rule:
    """The rule of whole numbers in a range."""
    return lambda argument, value: check_whole(argument, value, least, most)


def positive(example: float) -> Rule:
    """The rule of positive numbers."""
    return lambda argument, value: check_positive(argument, value, example)


def function(call: str) -> Rule:
    """The rule of functions, called in this way."""
    return lambda argument, value: check_function(argument, value, call)


def part(noun: str, example: str, *attributes: str) -> Rule:
    """The rule of quell's parts: by their functions, so that a user's own part passes too."""

    def rule(argument: str, value: Any) -> None:
        if all(hasattr(value, name) for name in attributes):
            return
        forgotten = callable(value)  # a factory without its parentheses
        raise invalid(
            argument,
            expected=f"{noun}, such as {example}",
            got=getattr(value, "__name__", shortened(value)) if forgotten else shortened(value),
            advice=f"Call the factory: it returns {noun}." if forgotten else f"Pass {noun}.",
        )

    return rule


def optional(rule: Rule) -> Rule:
    """The rule of values that may be None, where that is not the default."""
    return lambda argument, value: None if value is None else rule(argument, value)


def several(rule: Rule, example: str, least: int = 0) -> Rule:
    """The rule of sequences, each entry of which keeps a rule."""

    def each(argument: str, values: Any) -> None:
        if not isinstance(values, list | tuple | range) or len(values) < least:
            raise invalid(
                argument,
                expected="a list or tuple" + (" that is not empty" if least else ""),
                got=shortened(values),
                advice=f"For example {argument}={example}.",
            )
        for i, value in enumerate(values):
            rule(f"{argument}[{i}]", value)

    return each


def named(rule: Rule, *needed: str) -> Rule:
    """The rule of dictionaries by name, each value of which keeps a rule."""

    def each(argument: str, values: Any) -> None:
        known = set(values) if isinstance(values, Mapping) else set()
        missing = sorted(set(needed) - known)
        if not isinstance(values, Mapping) or missing or not all(isinstance(k, str) for k in known):
            raise invalid(
                argument,
                expected="a dictionary from names to estimators"
                + (f", with {', '.join(missing)}" if missing else ""),
                got=shortened(values),
                advice="For example {'plain': quell.monte_carlo()}.",
            )
        for name, value in values.items():
            rule(f"{argument}[{name!r}]", value)

    return each


def one_of_kinds(expected: str, advice: str, *kinds: type) -> Rule:
    """The rule of values of built-in kinds."""

    def rule(argument: str, value: Any) -> None:
        if not isinstance(value, kinds):
            raise invalid(argument, expected=expected, got=shortened(value), advice=advice)

    return rule


def _leaves(argument: str, value: Any) -> None:
    """The leaves to control: a predicate, or a tree of bools."""
    mask = jax.tree.leaves(value)
    if not callable(value) and not (mask and all(isinstance(m, bool | np.bool_) for m in mask)):
        raise invalid(
            argument,
            expected="a function of a leaf's path, or a pytree of bools",
            got=shortened(value),
            advice="For example lambda path: path.endswith('mean').",
        )


def _state(argument: str, value: Any) -> None:
    """The state of an estimator: arrays."""
    if not all(hasattr(leaf, "dtype") for leaf in jax.tree.leaves(value)):
        raise invalid(
            argument,
            expected="a state of this estimator",
            got=shortened(value),
            advice="Pass fit(...).estimator_state.",
        )


def _fraction(argument: str, value: Any) -> None:
    check_number(argument, value, "a number in [0, 1)", lambda x: 0 <= x < 1, 0.1)


def _decay(argument: str, value: Any) -> None:
    check_number(argument, value, "a number in (0, 1]", lambda x: 0 < x <= 1, 0.99)


def _key(argument: str, value: Any) -> None:
    check_key(value)


def finite_array(argument: str, value: Any) -> None:
    """The rule of arrays of finite numbers."""
    try:
        array = np.asarray(value)
        real = jnp.issubdtype(array.dtype, jnp.floating) or jnp.issubdtype(array.dtype, jnp.integer)
        good = real and bool(np.isfinite(array).all())
    except (TypeError, ValueError):
        good = False
    if not good:
        raise invalid(
            argument,
            expected="finite numbers, or an array of them",
            got=shortened(value),
            advice="Pass a number or a NumPy array.",
        )


FLAG: Rule = check_bool
KEY: Rule = _key
OPTIMIZER: Rule = lambda argument, value: check_optimizer(value, argument)  # noqa: E731
ESTIMATOR = part("an estimator", "quell.antithetic()", "start", "sampling")
BASIS = part("a basis", "quell.bases.linear()", "apply")
CONTEXT = part("a context", "quell.contexts.standardised()", "fit", "apply")
COEFFICIENTS = part("coefficients", "quell.recognition_network()", "start", "learn", "predict")
CRITERION = part("a criterion", "quell.criteria.squared_difference", "value", "per_example")
GAUSSIAN = part("a family", "quell.full_covariance(3)", "sample", "kl", "size")
WIDTHS = several(whole(1), "(32, 32)")
TEXT = one_of_kinds("text", "Put it in quotes.", str)

RULES: Mapping[str, Rule] = {
    "against": ESTIMATOR,
    "base": ESTIMATOR,
    "baselines": named(ESTIMATOR, "plain"),
    "bases": several(BASIS, "()"),
    "basis": BASIS,
    "batch_size": whole(1),
    "batch_sizes": several(whole(1), "(10, 100)", least=1),
    "cells": several(TEXT, "('1.0', '2.0')", least=1),
    "coefficients": COEFFICIENTS,
    "column": TEXT,
    "context": CONTEXT,
    "criterion": CRITERION,
    "cross": FLAG,
    "decay": _decay,
    "delimiter": TEXT,
    "dim": whole(1),
    "driver": ESTIMATOR,
    "estimator": ESTIMATOR,
    "estimators": named(ESTIMATOR),
    "every": whole(1),
    "examples": whole(1),
    "family": function("family(size)"),
    "fn": function("fn(draw, params, example)"),
    "full_pass": ESTIMATOR,
    "function": function("function(params, example)"),
    "gated": FLAG,
    "gradients": whole(2),
    "held": ESTIMATOR,
    "hidden": whole(1),
    "initial_scale": positive(0.05),
    "inner": ESTIMATOR,
    "inner_dim": whole(1),
    "inner_scale": positive(0.01),
    "last_layer": function("last_layer(key, shape, dtype)"),
    "last_scale": positive(1.0),
    "latent": whole(1),
    "learn_hyperparameters": FLAG,
    "leaves": _leaves,
    "lengthscale": positive(1.0),
    "likelihood": part("a likelihood", "quell.models.categorical()", "log_prob", "moments"),
    "loc": check_number,
    "log_likelihood": function("log_likelihood(w, example)"),
    "log_prior": function("log_prior(w)"),
    "memory": positive(8.0),
    "moments": several(finite_array, "(0.0, 1.0)"),
    "name": TEXT,
    "noise_variance": positive(0.1),
    "num_data": whole(1),
    "num_inducing": whole(1),
    "num_layers": whole(1),
    "num_steps": whole(0),
    "odd": FLAG,
    "of": CONTEXT,
    "optimizer": OPTIMIZER,
    "order": whole(1),
    "others": OPTIMIZER,
    "outputs": whole(1),
    "per_leaf": FLAG,
    "pooling": optional(part("a pooling", "quell.estimators.per_leaf", "split", "join")),
    "quadratic": function("quadratic(structure, mean, example)"),
    "report": function("report(name, batch_size)"),
    "ridge": positive(1.0),
    "sample": function("sample(key, shape)"),
    "sampling": ESTIMATOR,
    "scale": positive(1.0),
    "seconds": positive(10.0),
    "seed": whole(0),
    "select": function("select(example)"),
    "shared": FLAG,
    "size": whole(1),
    "state": _state,
    "target": check_number,
    "target_steps": whole(1),
    "targets": part("targets", "quell.coefficients.unit_scale()", "init", "scale", "update"),
    "task": function("task(column, cells)"),
    "test_fraction": _fraction,
    "value": finite_array,
    "variance": positive(1.0),
    "warm_up": whole(0),
    "widths": WIDTHS,
    "x_train": finite_array,
}
