"""What a control variate cannot work with is refused while tracing, with advice."""

import jax
import jax.numpy as jnp
import optax
import pytest

import quell
from quell import bases, coefficients, criteria

pytestmark = pytest.mark.usefixtures("quick")


SGD = optax.sgd(0.1)


def refusals():
    noise, params = quell.normal(2), {"mean": jnp.ones(2), "scale": jnp.ones(2)}
    draws, y = jnp.ones((1, 3, 2)), jnp.ones((3, 4))
    network = coefficients.recognition_network((3,))

    def make(model=None, basis=None, **kwargs):
        model = coefficients.context_free(SGD) if model is None else model
        basis = bases.linear() if basis is None else basis
        return quell.control_variate(basis, model, **{"noise": noise, **kwargs})

    def update(control, **kwargs):
        return control.update(params, control.init(params), params, **kwargs)

    with_context = make(network, context=y, key=jax.random.key(0))
    per_example = make(criterion=criteria.partial_gradients)
    long_rows = jax.tree.map(lambda leaf: jnp.ones((5, *leaf.shape)), params)
    return {
        "noise of another width": (
            lambda: update(make(), noise=jnp.ones((1, 3, 5))),
            ["noise", "(2,)", "(1, 3, 5)", "Pass the draws"],
        ),
        "noise missing": (lambda: update(make()), ["noise", "Pass"]),
        "draws of another batch": (
            lambda: update(with_context, noise=jnp.ones((1, 2, 2)), context=y),
            ["noise", "3 examples", "draws for 2", "same batch"],
        ),
        "context missing": (
            lambda: update(with_context, noise=draws),
            ["context", "None", "Pass context"],
        ),
        "context of another width": (
            lambda: update(with_context, noise=draws, context=jnp.ones((3, 7))),
            ["context", "(4,)", "(7,)", "widths"],
        ),
        "context never announced": (
            lambda: make(network, key=jax.random.key(0)).init(params),
            ["context", "None", "context_free"],
        ),
        "key missing": (lambda: make(network, context=y), ["key", "None", "jax.random.key"]),
        "an unknown leaf in a mask": (
            lambda: make(leaves={"middle": True}).init(params),
            ["leaves", "mean", "middle"],
        ),
        "no leaf chosen": (
            lambda: make(leaves=lambda path: False).init(params),
            ["leaves", "at least one", "mean"],
        ),
        "a basis for other noise": (
            lambda: make(basis=bases.hermite(2), noise=quell.uniform(2)).init(params),
            ["basis", "uniform", "quell.bases.polynomial"],
        ),
        "per-example gradients missing": (
            lambda: update(per_example, noise=draws),
            ["per_example", "None", "per_example_gradients"],
        ),
        "more rows than examples": (
            lambda: update(per_example, noise=draws, per_example=long_rows),
            ["per_example", "3 rows", "(5, 4)"],
        ),
        "a leaf without rows": (
            lambda: update(per_example, noise=draws, per_example={"mean": jnp.ones((3, 2))}),
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
