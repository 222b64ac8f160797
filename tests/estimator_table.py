"""The conformance table of the estimators: a row for each, put through the same checks.

A row is `row(sampling, data)`, which gives an estimator with that sampling inside, so that a test
can put the draws of its choice in place of random ones.
"""

from functools import partial

import jax
import jax.numpy as jnp
import optax

import quell
from quell import bases, coefficients, criteria
from quell import estimators as est

NUM_DATA, BATCH = 4, 2

# These tests compile much and compute little.
quick_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def control(objective_noise):
    return quell.control_variate(
        bases.polynomial(2),
        coefficients.recognition_network((4,), optax.adam(0.05)),
        criteria.partial_gradients,
        noise=objective_noise,
        context=jax.ShapeDtypeStruct((NUM_DATA, 2), float),
        key=jax.random.key(3),
    )


def contexts(batch):
    return jnp.concatenate([batch["x"], batch["y"][:, None]], axis=1)


def controlled(sampling):
    return est.controlled(sampling, control(quell.normal(1)), context=contexts)


# Unbiased whatever their state.
ESTIMATORS = {
    "plain": lambda sampling, data: sampling,
    "controlled": lambda sampling, data: controlled(sampling),
    "taylor": lambda sampling, data: est.taylor(sampling),
    "minus_linear_controlled": lambda sampling, data: est.minus_linear(controlled(sampling)),
    "sticking_the_landing": lambda sampling, data: est.sticking_the_landing(sampling),
    "surrogate": lambda sampling, data: est.surrogate(sampling, pooling=est.together),
    "minus_quadratic": lambda sampling, data: est.minus_quadratic(sampling),
    "score_function": lambda sampling, data: est.score_function(sampling),
    "black_box": lambda sampling, data: est.black_box(sampling),
    "learned_surrogate": lambda sampling, data: est.learned_surrogate(sampling, widths=(4,)),
    "svrg_held": lambda sampling, data: est.svrg(sampling, data, every=100, draws=est.held_draws()),
    "svrg_held_controlled": lambda sampling, data: est.svrg(
        controlled(sampling), data, every=100, draws=est.held_draws()
    ),
    "joint": lambda sampling, data: est.joint(sampling),
    "joint_taylor": lambda sampling, data: est.joint(est.taylor(sampling)),
    "ensemble": lambda sampling, data: est.ensemble(
        sampling,
        est.minus_linear(sampling),
        est.sticking_the_landing(sampling),
        est.joint(sampling),
        pooling=est.per_leaf,
    ),
}

NEED_STRUCTURE = (
    "sticking_the_landing",
    "surrogate",
    "minus_quadratic",
    "score_function",
    "black_box",
    "learned_surrogate",
    "joint",
)


def log_likelihood(w, example):
    return -jnp.logaddexp(0.0, -example["y"] * w @ example["x"])


def problem(key, dim=1, family=quell.full_covariance, form=quell.closed_form_kl, num_data=NUM_DATA):
    """Logistic regression with its variational structure; data with an index."""
    x_key, y_key = jax.random.split(key)
    data = {
        "x": jax.random.normal(x_key, (num_data, dim)),
        "y": jnp.sign(jax.random.normal(y_key, (num_data,))),
        "index": jnp.arange(num_data),
    }
    structure = quell.variational(log_likelihood, family(dim))
    params = structure.family.init(mean=0.4, scale=0.5)
    return form(structure, num_data), params, data


def take(data, index):
    return jax.tree.map(lambda leaf: leaf[index], data)


def wander(key, estimator, params, data, steps, batch=BATCH, far=0.3):
    """A state after some steps at parameters that move: an arbitrary learned state."""
    init_key, walk_key = jax.random.split(key)

    def step(state, key):
        row_key, param_key, draw_key = jax.random.split(key, 3)
        rows = jax.random.choice(row_key, len(data["y"]), (batch,), replace=False)
        nearby = jax.tree.map(
            lambda p: p + far * jax.random.normal(param_key, p.shape, p.dtype), params
        )
        return estimator.estimate(draw_key, nearby, take(data, rows), state)[2], None

    state = estimator.init(init_key, params, data)
    return jax.lax.scan(step, state, jax.random.split(walk_key, steps))[0]
