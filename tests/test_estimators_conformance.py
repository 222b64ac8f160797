"""Every estimator keeps the protocol: compiled once, batched, typed, saved, refused with advice."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conformance import dtypes, save_and_restore
from estimator_table import (
    BATCH,
    ESTIMATORS,
    NEED_STRUCTURE,
    controlled,
    problem,
    quick_jit,
    take,
    wander,
)

import quell
from quell import estimators as est
from quell._fit import fit

pytestmark = pytest.mark.usefixtures("quick")


@pytest.mark.parametrize("name", ESTIMATORS)
def test_it_keeps_the_protocol(key, name, tmp_path):
    """One trace, states that keep their types and survive a file, any batch size, `vmap`."""
    objective, params, data = problem(key)
    estimator = ESTIMATORS[name](est.monte_carlo(), data)(objective)
    traces = []

    @quick_jit
    def step(key, rows, state):
        traces.append(1)
        return estimator.estimate(key, params, take(data, rows), state)

    state = quick_jit(estimator.init)(key, params, data)
    keys = jax.random.split(key, 3)
    gradient, value, after = step(keys[0], jnp.arange(BATCH), state)
    again = step(keys[1], jnp.arange(BATCH) + 1, after)
    assert len(traces) == 1
    assert jax.tree.map(jnp.shape, gradient) == jax.tree.map(jnp.shape, params)
    assert dtypes(gradient) == dtypes(params)
    assert dtypes(after) == dtypes(state)
    assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, state)
    assert value.shape == ()

    restored = save_and_restore(after, tmp_path / "state.npz")
    jax.tree.map(
        np.testing.assert_array_equal, step(keys[1], jnp.arange(BATCH) + 1, restored), again
    )

    wider = jax.eval_shape(
        estimator.estimate, key, params, take(data, jnp.arange(BATCH + 1)), after
    )[2]
    assert jax.tree.map(jnp.shape, wider) == jax.tree.map(jnp.shape, state)
    several = jax.eval_shape(
        jax.vmap(lambda k: estimator.estimate(k, params, take(data, jnp.arange(BATCH)), after)),
        keys,
    )
    assert several[1].shape == (3,)


@pytest.mark.parametrize("name", NEED_STRUCTURE)
def test_what_needs_the_structure_of_the_objective_says_so(key, name):
    objective, _, data = problem(key)
    bare = quell.Objective(objective.loss, objective.noise, objective.num_data)
    with pytest.raises(ValueError, match=r"objective: expected .* variational structure"):
        ESTIMATORS[name](est.monte_carlo(), data)(bare)


def test_draws_that_the_noise_cannot_give_are_refused(key):
    skewed = quell.from_moments(1, jax.random.exponential, [1.0, 2.0])
    objective = quell.Objective(lambda params, eps, y: params * eps[0], skewed, 4)
    for sampling, lacking in ((est.antithetic(), "mirror"), (est.quasi_monte_carlo(), "quantile")):
        with pytest.raises(ValueError, match=lacking):
            sampling.draw(key, objective, 2)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: est.antithetic(3), "samples: expected a positive multiple of 2"),
        (lambda: est.quasi_monte_carlo(6), "samples: expected a power of two.*Use samples=8"),
        (lambda: est.ensemble(est.monte_carlo()), "others: expected at least one"),
        (lambda: est.taylor(decay=1.5), "decay"),
        (lambda: est.svrg(est.monte_carlo(), jnp.zeros(3), every=0), "every"),
    ],
)
def test_bad_arguments_are_refused_with_advice(make, match):
    with pytest.raises(ValueError, match=match):
        make()


def test_tables_and_snapshots_want_all_of_the_data(key):
    objective, params, data = problem(key)
    part = take(data, jnp.arange(2))
    with pytest.raises(ValueError, match="data: expected the 4 points"):
        est.svrg(est.monte_carlo(), part)(objective)
    with pytest.raises(ValueError, match="batch: expected all 4 points"):
        est.joint()(objective).init(key, params, part)
    with pytest.raises(ValueError, match="index"):
        est.joint()(objective).init(key, params, {"x": data["x"], "y": data["y"]})


def test_the_table_of_the_joint_variate_counts_a_repeated_point_once(x64, key):
    objective, params, data = problem(key)
    estimator = est.joint()(objective)
    state = quick_jit(estimator.init)(key, params, data)
    moved = jax.tree.map(lambda p: p + 1.0, params)
    repeated = take(data, jnp.array([1, 1, 3]))
    state = quick_jit(estimator.estimate)(key, moved, repeated, state)[2]
    assert state.table["mean"][:, 0].tolist() == pytest.approx([0.4, 1.4, 0.4, 1.4])
    for total, rows in zip(jax.tree.leaves(state.total), jax.tree.leaves(state.expected)):
        np.testing.assert_allclose(total, rows.sum(0), rtol=1e-12)


def test_a_batch_that_is_not_finite_teaches_an_ensemble_nothing(key):
    objective, params, data = problem(key)
    estimator = est.taylor()(objective)
    state = quick_jit(lambda key: wander(key, estimator, params, data, 3))(key)
    broken = {**data, "x": data["x"].at[0].set(jnp.nan)}
    after = quick_jit(estimator.estimate)(key, params, broken, state)[2]
    jax.tree.map(np.testing.assert_array_equal, after[1:5], state[1:5])


@pytest.mark.parametrize(
    "make",
    [
        lambda data: controlled(est.antithetic()),
        lambda data: est.svrg(controlled(est.antithetic()), data),
        lambda data: est.ensemble(est.quasi_monte_carlo(2), est.svrg(est.taylor(), data)),
    ],
    ids=["antithetic + controlled", "svrg + controlled", "ensemble of svrg + taylor"],
)
def test_compositions_train(key, make):
    objective, params, data = problem(key)
    result = fit(
        objective,
        data,
        params=params,
        optimizer=optax.adam(0.05),
        num_steps=30,
        batch_size=BATCH,
        key=key,
        estimator=make(data),
    )
    assert np.isfinite(result.history.objective).all()
    assert not np.allclose(result.params["mean"], params["mean"])
