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
    NESTED,
    WRAPPERS,
    controlled,
    problem,
    wander,
)

import quell
from quell import estimators as est
from quell import noise
from quell._jit import quick_jit
from quell._tree import take
from quell.estimators._types import batch_of

pytestmark = pytest.mark.usefixtures("quick")


def shapes(tree):
    return jax.tree.map(jnp.shape, tree)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_it_keeps_the_protocol(key, name, tmp_path):
    """One trace, states that keep their types and survive a file, any batch size, `vmap`."""
    objective, params, data = problem(key)
    started = ESTIMATORS[name](est.monte_carlo()).start(key, objective, params, data)
    traces = []

    def estimate(key, rows, state):
        return started.estimate(key, objective, params, batch_of(data, rows), state)

    @quick_jit
    def step(key, rows, state):
        traces.append(1)
        return estimate(key, rows, state)

    state = quick_jit(started.init)(key, params)
    keys = jax.random.split(key, 3)
    first = step(keys[0], jnp.arange(BATCH), state)
    again = step(keys[1], jnp.arange(BATCH) + 1, first.state)
    assert len(traces) == 1
    assert shapes(first.gradient) == shapes(params)
    assert dtypes(first.gradient) == dtypes(params)
    assert dtypes(first.state) == dtypes(state)
    assert shapes(first.state) == shapes(state)
    assert first.value.shape == first.correction_norm.shape == ()

    restored = save_and_restore(first.state, tmp_path / "state.npz")
    jax.tree.map(
        np.testing.assert_array_equal, step(keys[1], jnp.arange(BATCH) + 1, restored), again
    )

    wider = jax.eval_shape(estimate, key, jnp.arange(BATCH + 1), first.state)
    assert shapes(wider.state) == shapes(state)
    several = jax.eval_shape(jax.vmap(lambda k: estimate(k, jnp.arange(BATCH), first.state)), keys)
    assert several.value.shape == (3,)


def traced(key, estimator):
    """The shapes of one estimate, and of its state."""
    objective, params, data = problem(key)
    started = estimator.start(key, objective, params, data)
    state = jax.eval_shape(started.init, key, params)
    batch = batch_of(data, jnp.arange(BATCH))
    found = jax.eval_shape(lambda s: started.estimate(key, objective, params, batch, s), state)
    return found, state, params


@pytest.mark.parametrize("name", NESTED)
def test_every_wrapper_takes_any_estimator(key, name):
    found, state, params = traced(key, NESTED[name](est.antithetic()))
    assert shapes(found.gradient) == shapes(params)
    assert (shapes(found.state), dtypes(found.state)) == (shapes(state), dtypes(state))


def test_names_say_how_estimators_are_nested():
    nested = est.svrg(est.taylor(est.antithetic(4)))
    assert repr(nested) == "svrg(taylor(antithetic(4)))"
    assert repr(est.ensemble(est.monte_carlo(), nested)) == f"ensemble(monte_carlo(1), {nested})"


@pytest.mark.parametrize("name", WRAPPERS)
def test_wrappers_refuse_anything_but_an_estimator(name):
    with pytest.raises(ValueError, match=r"(inner|base): expected an estimator.*Call the factory"):
        WRAPPERS[name](est.monte_carlo)


def test_the_correction_of_an_inner_estimator_is_passed_on(key):
    """Wrappers that only change the objective report the correction inside them."""
    objective, params, data = problem(key)
    moved = jax.tree.map(lambda p: p + 0.1, params)
    batch = batch_of(data, jnp.arange(BATCH))

    def norm(estimator):
        started = estimator.start(key, objective, params, data)
        state = started.init(key, params)
        return quick_jit(started.estimate, static_argnums=1)(
            key, objective, moved, batch, state
        ).correction_norm

    assert norm(est.svrg()) == 0
    assert norm(est.svrg(est.taylor())) > 0
    assert norm(est.joint(est.taylor(pooling=None))) == 0


@pytest.mark.parametrize("name", NEED_STRUCTURE)
def test_estimators_that_need_the_structure_of_the_objective_say_so(key, name):
    objective, params, data = problem(key)
    bare = quell.Objective(objective.loss, objective.noise, objective.num_data)
    with pytest.raises(ValueError, match=r"objective: .* variational structure.*negative_elbo"):
        ESTIMATORS[name](est.monte_carlo()).start(key, bare, params, data)


def test_draws_that_the_noise_cannot_give_are_refused(key):
    skewed = noise.from_moments(1, jax.random.exponential, [1.0, 2.0])
    objective = quell.Objective(lambda params, eps, y: params * eps[0], skewed, 4)
    for plain, lacking in ((est.antithetic(), "mirror"), (est.quasi_monte_carlo(), "quantile")):
        with pytest.raises(ValueError, match=lacking):
            plain.sampling.draw(key, objective, 2)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: est.antithetic(3), "draws: expected a positive multiple of 2"),
        (lambda: est.quasi_monte_carlo(6), "draws: expected a power of two.*Use draws=8"),
        (lambda: est.ensemble(est.monte_carlo()), "others: expected at least one"),
        (lambda: est.ensemble(est.monte_carlo(), est.taylor(), ridge=0.0), "ridge"),
        (lambda: est.taylor(decay=1.5), "decay"),
        (lambda: est.svrg(every=0), "every"),
        (lambda: est.svrg(held=est.taylor()), "held: expected draws alone"),
        (lambda: est.svrg(full_pass=est.closed_form()), "full_pass: expected draws alone"),
        (lambda: est.svrg(held=est.antithetic(), full_pass=est.antithetic()), "full_pass: .*None"),
    ],
)
def test_bad_arguments_are_refused_with_advice(make, match):
    with pytest.raises(ValueError, match=match):
        make()


@pytest.mark.parametrize("estimator", [est.svrg(), est.joint()], ids=repr)
def test_tables_and_snapshots_want_all_of_the_data(key, estimator):
    objective, params, data = problem(key)
    with pytest.raises(ValueError, match="data: expected the 4 rows"):
        estimator.start(key, objective, params, take(data, jnp.arange(2)))


def test_the_table_of_the_joint_variate_counts_a_repeated_point_once(x64, key):
    objective, params, data = problem(key)
    started = est.joint().start(key, objective, params, data)
    state = quick_jit(started.init)(key, params)
    moved = jax.tree.map(lambda p: p + 1.0, params)
    repeated = batch_of(data, jnp.array([1, 1, 3]))
    state = quick_jit(lambda s: started.estimate(key, objective, moved, repeated, s).state)(state)
    assert state.table["mean"][:, 0].tolist() == pytest.approx([0.4, 1.4, 0.4, 1.4])
    for total, rows in zip(jax.tree.leaves(state.total), jax.tree.leaves(state.expected)):
        np.testing.assert_allclose(total, rows.sum(0), rtol=1e-12)


def test_a_batch_that_is_not_finite_teaches_an_ensemble_nothing(key):
    objective, params, data = problem(key)
    started = est.taylor().start(key, objective, params, data)
    state = quick_jit(lambda key: wander(key, started, objective, params, data, 3))(key)
    broken = batch_of({**data, "x": data["x"].at[0].set(jnp.nan)}, jnp.arange(4))
    after = quick_jit(lambda s: started.estimate(key, objective, params, broken, s).state)(state)
    jax.tree.map(np.testing.assert_array_equal, after[1:], state[1:])


def test_a_variate_that_pairs_cancel_keeps_its_coefficient(key):
    """The difference is rounding alone; learned from it, the coefficient would be huge."""
    objective, params, data = problem(key, dim=3, num_data=8)
    started = est.taylor(est.antithetic()).start(key, objective, params, data)
    state = quick_jit(lambda k: wander(k, started, objective, params, data, 20, batch=5))(key)
    assert all(float(jnp.abs(A).max()) == 0 for A in state.gram)


@pytest.mark.parametrize(
    "estimator",
    [
        controlled(est.antithetic()),
        est.svrg(controlled(est.antithetic())),
        est.ensemble(est.quasi_monte_carlo(2), est.svrg(est.taylor())),
    ],
    ids=["antithetic + controlled", "svrg + controlled", "ensemble of svrg + taylor"],
)
def test_compositions_train(key, estimator):
    objective, params, data = problem(key)
    result = quell.fit(
        key,
        objective,
        params,
        data,
        optax.adam(0.05),
        num_steps=30,
        batch_size=BATCH,
        estimator=estimator,
    )
    assert np.isfinite(result.history["objective"]).all()
    assert not np.allclose(result.params["mean"], params["mean"])
