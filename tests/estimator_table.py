"""The conformance table of the estimators: a row for each, put through the same checks.

A row is `row(plain)`, which gives an estimator with that plain estimator inside, so that a test
can put the draws of its choice in place of random ones.
"""

from functools import partial

import jax
import jax.numpy as jnp
import optax

import quell
from quell import bases, coefficients, criteria
from quell import estimators as est
from quell.estimators._sampling import plain
from quell.estimators._types import batch_of
from quell.types import Sampling

NUM_DATA, BATCH = 4, 2


def controlled(sampling):
    return est.controlled(
        coefficients.recognition_network((4,), optax.adam(0.05)),
        basis=bases.polynomial(2),
        criterion=criteria.partial_gradients,
        sampling=sampling,
    )


def closed_form(sampling):
    """Functions of the draws and of the points, for every leaf."""
    return est.closed_form(sampling=sampling, leaves=lambda path: True)


def svrg(inner):
    return est.svrg(inner, every=100, held=est.antithetic(4))


def ensemble(inner):
    others = est.taylor(inner, pooling=None), est.sticking_the_landing(inner), est.joint(inner)
    return est.ensemble(inner, *others, pooling=est.per_leaf)


# `wrapper(inner)`: an estimator around any other.
WRAPPERS = {
    "svrg": svrg,
    "taylor": est.taylor,
    "taylor_one": partial(est.taylor, pooling=None),
    "quadratic_surrogate": partial(est.quadratic_surrogate, pooling=est.one_coefficient),
    "quadratic_surrogate_one": partial(est.quadratic_surrogate, pooling=None),
    "score_function": est.score_function,
    "score_function_controlled": partial(est.score_function, pooling=est.per_entry),
    "sticking_the_landing": est.sticking_the_landing,
    "learned_surrogate": partial(est.learned_surrogate, widths=(4,)),
    "joint": est.joint,
    "ensemble": ensemble,
}

# Unbiased whatever their state.
ESTIMATORS = {
    "plain": lambda sampling: sampling,
    "controlled": controlled,
    "closed_form": closed_form,
    **WRAPPERS,
    "taylor_one_controlled": lambda sampling: est.taylor(controlled(sampling), pooling=None),
    "svrg_controlled": lambda sampling: svrg(controlled(sampling)),
    "joint_taylor": lambda sampling: est.joint(est.taylor(sampling)),
}

NEED_STRUCTURE = [name for name in WRAPPERS if name not in ("svrg", "taylor", "taylor_one")]


def _nested():
    """Every wrapper over the closed form, and over two other wrappers."""
    names = list(WRAPPERS)
    for place, outer in enumerate(names):
        wrap = WRAPPERS[outer]
        yield f"{outer} over closed_form", lambda sampling, wrap=wrap: wrap(closed_form(sampling))
        for apart in (1, 4):
            inner = names[(place + apart) % len(names)]
            both = partial(lambda wrap, inner, sampling: wrap(inner(sampling)), wrap)
            yield f"{outer} over {inner}", partial(both, WRAPPERS[inner])


NESTED = dict(_nested())


class Replayed:
    """A plain estimator of random draws, until a test sets `noise`, leaves `[S, B or 1, ...]`."""

    def __init__(self, **kwargs):
        self.noise = None
        random = est.monte_carlo(**kwargs).sampling

        def draw(key, objective, B):
            return random.draw(key, objective, B) if self.noise is None else self.noise

        self.estimator = plain("replayed", Sampling(draw))


def log_likelihood(w, example):
    return -jnp.logaddexp(0.0, -example["y"] * w @ example["x"])


def problem(key, dim=1, family=quell.full_covariance, num_data=NUM_DATA, log_prior=None):
    """Logistic regression with its variational structure."""
    x_key, y_key = jax.random.split(key)
    data = {
        "x": jax.random.normal(x_key, (num_data, dim)),
        "y": jnp.sign(jax.random.normal(y_key, (num_data,))),
    }
    objective = quell.negative_elbo(
        log_likelihood, family(dim), num_data=num_data, log_prior=log_prior
    )
    return objective, family(dim).init(mean=0.4, scale=0.5), data


def unit_prior(w):
    """The unit Gaussian as a prior of one's own: the divergence then comes from the draws."""
    return jax.scipy.stats.norm.logpdf(w).sum()


def wander(key, started, objective, params, data, steps, batch=BATCH, far=0.3):
    """A state after some steps at parameters that move: an arbitrary learned state."""
    init_key, refresh_key, walk_key = jax.random.split(key, 3)

    def step(state, key):
        row_key, param_key, draw_key = jax.random.split(key, 3)
        rows = jax.random.choice(row_key, len(data["y"]), (batch,), replace=False)
        nearby = jax.tree.map(
            lambda p: p + far * jax.random.normal(param_key, p.shape, p.dtype), params
        )
        return started.estimate(
            draw_key, objective, nearby, batch_of(data, rows), state
        ).state, None

    state = started.init(init_key, params)
    if started.refresh is not None:
        state = started.refresh.run(refresh_key, objective, params, data, batch, state)
    return jax.lax.scan(step, state, jax.random.split(walk_key, steps))[0]
