"""Arguments that a control variate cannot work with are refused while tracing, with advice."""

import jax
import jax.numpy as jnp
import optax
import pytest

import quell
from quell import bases, coefficients, criteria

pytestmark = pytest.mark.usefixtures("quick")


SGD = optax.sgd(0.1)


def refusals():
    params = {"mean": jnp.ones(2), "scale": jnp.ones(2)}
    draws, data, y = jnp.ones((1, 3, 2)), jnp.ones((6, 4)), jnp.ones((3, 4))

    def objective(noise=None, num_data=6):
        noise = quell.normal(2) if noise is None else noise
        return quell.Objective(lambda params, eps, y: y.sum(), noise, num_data)

    def make(model=None, problem=None, key=None, data=data, **kwargs):
        model = coefficients.context_free(SGD) if model is None else model
        problem = objective() if problem is None else problem
        key = jax.random.key(0) if key is None else key
        return quell.control_variate(key, problem, params, data, model, **kwargs)

    def update(control, **kwargs):
        return control.update(params, control.init(params), params, **kwargs)

    per_example = make(criterion=criteria.partial_gradients)
    long = jax.tree.map(lambda leaf: jnp.ones((5, *leaf.shape)), params)
    return {
        "noise of another width": (
            lambda: update(make(), noise=jnp.ones((1, 3, 5)), batch=y),
            ["noise", "(2,)", "(1, 3, 5)", "Pass noise"],
        ),
        "noise missing": (lambda: update(make(), batch=y), ["noise", "Pass noise"]),
        "draws of another batch": (
            lambda: update(make(), noise=jnp.ones((1, 2, 2)), batch=y),
            ["noise", "3 examples", "draws for 2", "same batch"],
        ),
        "batch missing": (
            lambda: update(make(), noise=draws),
            ["batch", "(4,)", "None", "Pass batch"],
        ),
        "batch of another width": (
            lambda: update(make(), noise=draws, batch=jnp.ones((3, 7))),
            ["batch", "(4,)", "(7,)", "Pass batch"],
        ),
        "a batch with other leaves": (
            lambda: update(make(), noise=draws, batch={"x": y}),
            ["batch", "(4,)", "'x'", "Pass batch"],
        ),
        "a key that is a number": (lambda: make(key=3), ["key", "typed key", "jax.random.key"]),
        "the arguments in another order": (
            lambda: make(problem=params),
            ["objective", "dict", "(key, objective, params, data)"],
        ),
        "data of another length": (
            lambda: make(problem=objective(num_data=5)),
            ["data", "5 rows", "6 rows", "num_data"],
        ),
        "data of two lengths": (
            lambda: make(data={"x": data, "y": jnp.ones(7)}),
            ["data", "['x']", "length 6", "length 7"],
        ),
        "an unknown leaf in a mask": (
            lambda: make(leaves={"middle": True}),
            ["leaves", "mean", "middle"],
        ),
        "no leaf chosen": (
            lambda: make(leaves=lambda path: False),
            ["leaves", "at least one", "mean"],
        ),
        "a basis for other noise": (
            lambda: make(basis=bases.hermite(2), problem=objective(quell.noise.uniform(2))),
            ["basis", "uniform", "quell.bases.polynomial"],
        ),
        "per-example gradients missing": (
            lambda: update(per_example, noise=draws, batch=y),
            ["per_example", "None", "per_example_gradients"],
        ),
        "more gradients than examples": (
            lambda: update(per_example, noise=draws, batch=y, per_example=long),
            ["per_example", "3 rows", "(5, 4)"],
        ),
        "a leaf without gradients of examples": (
            lambda: update(
                per_example, noise=draws, batch=y, per_example={"mean": jnp.ones((3, 2))}
            ),
            ["per_example", "mean", "scale"],
        ),
    }


@pytest.mark.parametrize("case", refusals())
def test_what_cannot_work_is_refused_with_advice(case):
    make, words = refusals()[case]
    with pytest.raises(ValueError, match=words[0]) as error:
        jax.eval_shape(make)
    for word in words:
        assert word in str(error.value)
