"""The conformance table: a new part joins by adding a row, and every row meets the same checks.

Rows are factories, so that nothing is made before a test has chosen its precision.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import quell
from quell import bases, coefficients, contexts, criteria
from quell.types import Evidence

DIM, BATCH, NUM_DATA = 2, 2, 6


BASES = {
    "linear": lambda: bases.linear(),
    "polynomial": lambda: bases.polynomial(2),
    "hermite": lambda: bases.hermite(3),
    "hermite_cross": lambda: bases.hermite(2, cross=True),
    "concatenate": lambda: bases.concatenate(bases.linear(), bases.hermite(2, cross=True)),
    "custom": lambda: bases.custom(
        lambda e, params, y: e**3 * y["x"] * params["mean"], lambda params, y: jnp.zeros(2)
    ),
}


def paper_network(hidden, optimizer=None, *, network=None, targets=None):
    """A recognition network as in the paper: raw contexts, Xavier's last layer, no gate."""
    targets = coefficients.unit_scale(per_leaf=True, gated=False) if targets is None else targets
    return coefficients.recognition_network(
        hidden,
        optimizer,
        network=network,
        context=contexts.raw(),
        last_layer=jax.nn.initializers.glorot_uniform(),
        targets=targets,
    )


COEFFICIENTS = {
    "context_free": lambda: coefficients.context_free(optax.adam(0.1)),
    "recognition_network": lambda: coefficients.recognition_network((4, 3), optax.adam(0.1)),
    "recognition_network_paper": lambda: paper_network(
        (3,), targets=coefficients.raw_targets(NUM_DATA)
    ),
    "running_average": lambda: coefficients.running_average(0.9),
    "fixed": lambda: coefficients.fixed(0.7),
    "least_squares": lambda: coefficients.least_squares(contexts.standardised(), every=1),
}

CRITERIA = {
    "partial_gradients": criteria.partial_gradients,
    "gradient_sum": criteria.gradient_sum,
    "squared_difference": criteria.squared_difference,
}


def evidence_of(w, gradients, shared=False, batch=None):
    """One batch, as the coefficients see it: basis `[B, D]` and gradients `[B, P]`."""
    return Evidence(
        w=w,
        params=None,
        batch=batch,
        total=gradients.mean(0),
        per_example=gradients,
        leaves=(gradients.shape[1],),
        shared=shared,
        finite=jnp.array(True),
    )


def loss(params, noise, example):
    """Logistic regression with a factorised posterior: curved in the noise and in θ."""
    weight = params["mean"] + jnp.exp(params["scale"]) * noise
    return jnp.logaddexp(0.0, -example["y"] * weight @ example["x"])


def regulariser(params):
    return 0.5 * (params["mean"] ** 2).sum() + (params["scale"] ** 2).sum()


def problem(key, dim=DIM, num_data=NUM_DATA, noise=None):
    """An objective, its parameters and its data: `{"x": [N, dim], "y": [N]}`."""
    mean_key, x_key, y_key = jax.random.split(key, 3)
    params = {"mean": jax.random.normal(mean_key, (dim,)), "scale": jnp.full((dim,), -0.3)}
    x = jax.random.normal(x_key, (num_data, dim))
    y = jnp.sign(jax.random.normal(y_key, (num_data,)))
    noise = quell.normal(dim) if noise is None else noise
    return quell.Objective(loss, noise, num_data, regulariser), params, {"x": x, "y": y}


def take(data, index):
    return jax.tree.map(lambda leaf: leaf[index], data)


def control_for(key, objective, params, data, basis, model, criterion, **kwargs):
    """A control variate of the problem."""
    return quell.control_variate(
        key, objective, params, data, model, basis=basis, criterion=criterion, **kwargs
    )


def controlled_gradient(objective, control, params, state, noise, batch):
    """Ĝ, G̃ and the next state, for a batch and its draws `[S, B, ...]`; any criterion is served."""
    _, gradient, examples = objective.value_gradient_and_examples(params, noise, batch)
    corrected, state = control.update(
        gradient, state, params, noise=noise, batch=batch, per_example=examples
    )
    return gradient, corrected, state


def train(key, objective, control, params, data, steps, **draw):
    """A state that has learned from `steps` random batches: an arbitrary learned state."""

    def step(state, key):
        row_key, noise_key = jax.random.split(key)
        batch = take(data, jax.random.randint(row_key, (BATCH,), 0, len(data["y"])))
        noise = objective.sample_noise(noise_key, BATCH, **draw)
        return controlled_gradient(objective, control, params, state, noise, batch)[2], None

    return jax.lax.scan(step, control.init(params), jax.random.split(key, steps))[0]


def trace_counting_step(objective, control):
    """A jitted step, and a list that grows by one with each trace of it."""
    traces = []

    @jax.jit
    def step(params, state, noise, batch):
        traces.append(1)
        return controlled_gradient(objective, control, params, state, noise, batch)[1:]

    return step, traces


def save_and_restore(state, path):
    """A state through a file and back: arrays only, nothing else to keep."""
    leaves, treedef = jax.tree.flatten(state)
    np.savez(path, *leaves)
    with np.load(path) as saved:
        return treedef.unflatten([jnp.asarray(saved[name]) for name in saved.files])


def dtypes(tree):
    return jax.tree.map(lambda leaf: leaf.dtype, tree)
