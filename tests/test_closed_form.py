"""The closed form: least squares against numpy, both noises unbiased, safe starts, choices."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _exact import EXACT, SAME32, max_error, nodes, over_batches_and_draws, total_variance
from conformance import controlled_gradient, problem, take, train

import quell
from quell import bases, coefficients, criteria, estimators
from quell import noise as noises
from quell.coefficients._least_squares import _solve_halves
from quell.contexts import (
    adaptive,
    as_matrix,
    computed,
    distinct,
    random_features,
    raw,
    standardised,
)
from quell.estimators._closed_form import affordable_basis, noisy_leaves
from quell.estimators._types import batch_of
from quell.types import Context


def positive_definite(size):
    x = np.random.default_rng(size).normal(size=(2 * size + 3, size))
    return x.T @ x + 0.1 * np.eye(size)


@pytest.mark.parametrize("size", [1, 5, 32, 33, 100])
def test_the_solution_by_halves_is_numpys(x64, size):
    A = positive_definite(size)
    R = np.random.default_rng(1).standard_normal((size, 3))
    found = _solve_halves(jnp.asarray(A), jnp.asarray(R))
    np.testing.assert_allclose(found, np.linalg.solve(A, R), rtol=1e-7, atol=1e-12)


def control_of(key, objective, params, data, *, basis=None, points=True, **kwargs):
    model = coefficients.least_squares(standardised(), **{"every": 4, **kwargs})
    return quell.control_variate(
        key,
        objective,
        params,
        data,
        model,
        basis=bases.linear() if basis is None else basis,
        criterion=criteria.partial_gradients,
        points=points,
    )


def test_candidates_solve_the_ridge_regression(x64, key):
    """After one block: (A + r mean(diag A) I) Θ = R, with x = [w ⊗ h, h] written out."""
    objective, params, data = problem(key, num_data=8)
    control = control_of(key, objective, params, data, memories=(3.0,), ridges=(1e-2,))
    state, xs, gs = control.init(params), [], []
    y = np.asarray(as_matrix(data))
    mean, scale = y.mean(0), y.std(0)
    learn = jax.jit(lambda *args: controlled_gradient(objective, control, params, *args)[2])
    for step in range(4):
        batch = take(data, np.arange(step, step + 3))
        noise = objective.sample_noise(jax.random.fold_in(key, step), 3)
        state = learn(state, noise, batch)
        h = np.concatenate([np.ones((3, 1)), (np.asarray(as_matrix(batch)) - mean) / scale], 1)
        x = np.einsum("bd,bh->bdh", np.asarray(noise)[0], h).reshape(3, -1)
        xs.append(np.concatenate([x, h], axis=1))
        rows = objective.per_example_gradients(params, noise, batch)
        gs.append(np.concatenate([rows["mean"], rows["scale"]], axis=1))
    x, g = np.concatenate(xs), np.concatenate(gs)
    A = x.T @ x
    theta = np.linalg.solve(A + 1e-2 * np.trace(A) / len(A) * np.eye(len(A)), x.T @ g)
    np.testing.assert_allclose(state.coefficients.candidates[0], theta, atol=1e-8)


def elsewhere(key, state):
    """The state with another Θ in use: what is learned never decides whether it is unbiased."""
    theta = jax.random.normal(key, state.coefficients.theta.shape)
    return state._replace(coefficients=state.coefficients._replace(theta=theta))


@pytest.mark.parametrize("sampling", ["one draw", "a pair"])
def test_both_noises_are_unbiased_over_all_batches_and_draws(x64, key, sampling):
    """Every mini-batch and every draw of a small problem, at a learned state."""
    objective, params, data = problem(key, dim=1, num_data=4)
    basis = bases.linear() if sampling == "one draw" else bases.hermite(2, odd=False)
    control = control_of(key, objective, params, data, basis=basis, every=1)
    state = elsewhere(key, train(key, objective, control, params, data, 12))
    eps, weights = nodes(objective.noise, 5, count=2)
    eps = eps[:, None]  # [Q, S, B, D]
    if sampling == "a pair":
        eps = jnp.concatenate([eps, -eps], axis=1)

    def gradients(noise, index):
        batch = take(data, index)
        return controlled_gradient(objective, control, params, state, noise, batch)[:2]

    (plain, controlled), first = over_batches_and_draws(gradients, eps, weights, 4, 2)
    assert max_error(controlled, plain) < EXACT
    assert max_error(*first) > 1e-3, "single batches are moved"


@pytest.mark.slow
def test_the_correction_of_the_points_sums_to_zero_over_an_epoch(x64, key):
    objective, params, data = problem(key, num_data=6)
    control = control_of(key, objective, params, data, basis=bases.no_basis(), every=1)
    state = elsewhere(key, train(key, objective, control, params, data, 12))
    moved = []
    for rows in ([0, 3], [5, 1], [2, 4]):
        batch = take(data, np.array(rows))
        noise = objective.sample_noise(key, 2)
        plain, controlled, _ = controlled_gradient(objective, control, params, state, noise, batch)
        moved.append(jax.tree.map(jnp.subtract, plain, controlled))
    assert (
        max_error(jax.tree.map(lambda *m: sum(m), *moved), jax.tree.map(jnp.zeros_like, params))
        < EXACT
    )
    assert max(max_error(m, jax.tree.map(jnp.zeros_like, params)) for m in moved) > 1e-3


def gradients_of(key, objective, params, data, estimator, learning, measuring=400, B=5):
    """The gradients of the first steps, and of a state frozen after them."""
    started = estimator.start(key, objective, params, data)

    def step(state, key):
        row_key, noise_key = jax.random.split(key)
        rows = jax.random.randint(row_key, (B,), 0, objective.num_data)
        found = started.estimate(noise_key, objective, params, batch_of(data, rows), state)
        return found.state, found.gradient

    @jax.jit
    def run(key):
        init_key, learn_key, measure_key = jax.random.split(key, 3)
        state = started.init(init_key, params)
        state, early = jax.lax.scan(step, state, jax.random.split(learn_key, learning))
        frozen = jax.vmap(lambda key: step(state, key)[1])(jax.random.split(measure_key, measuring))
        return early, frozen

    return run(key)


def every_leaf(path):
    return True


@pytest.fixture(scope="module")
def regression():
    """A linear regression with noise in its weights: both noises are there to remove."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(200, 2)), jnp.float32)
    data = {"x": x, "y": x @ jnp.array([1.0, -2.0])}

    def loss(params, noise, example):
        w = params["mean"] + jnp.exp(params["scale"]) * noise
        return 0.5 * (w @ example["x"] - example["y"]) ** 2

    params = {"mean": jnp.zeros(2), "scale": jnp.full(2, -1.0)}
    return quell.Objective(loss, quell.normal(2), 200), params, data


@pytest.mark.slow
def test_it_learns_to_remove_nearly_everything(key, regression):
    objective, params, data = regression
    closed_form = estimators.closed_form(leaves=every_leaf)
    _, ours = gradients_of(key, objective, params, data, closed_form, 600)
    _, pairs = gradients_of(key, objective, params, data, estimators.antithetic(), 1)
    _, plain = gradients_of(key, objective, params, data, estimators.monte_carlo(), 1)
    assert total_variance(ours) < 0.1 * total_variance(pairs) < 0.1 * total_variance(plain)


def test_without_evidence_it_does_nothing(quick, key, regression):
    """Until two blocks are full, the gradient is that of the sampling."""
    objective, params, data = regression
    closed_form = estimators.closed_form(leaves=every_leaf)
    early, _ = gradients_of(key, objective, params, data, closed_form, 31, measuring=1)
    plain, _ = gradients_of(key, objective, params, data, estimators.antithetic(), 31, measuring=1)
    assert max_error(early, plain) < SAME32


@pytest.mark.slow
def test_useless_features_are_gated(key, regression):
    """Contexts that say nothing: never more than 5 % worse than the same sampling."""
    objective, params, data = regression
    random = adaptive(select=lambda example: jnp.sin(1e4 * example["x"]))
    closed_form = estimators.closed_form(
        basis=bases.no_basis(), coefficients=coefficients.least_squares(random)
    )
    _, ours = gradients_of(key, objective, params, data, closed_form, 300, measuring=2000)
    _, pairs = gradients_of(
        key, objective, params, data, estimators.antithetic(), 300, measuring=2000
    )
    assert total_variance(ours) < 1.05 * total_variance(pairs)


@pytest.mark.slow
def test_it_recovers_when_the_objective_jumps(key, regression):
    objective, params, data = regression
    started = estimators.closed_form(leaves=every_leaf).start(key, objective, params, data)
    far = params | {"mean": params["mean"] + 5.0}

    def step(state, inputs):
        key, where = inputs
        row_key, noise_key = jax.random.split(key)
        batch = batch_of(data, jax.random.randint(row_key, (5,), 0, 200))
        here = jax.tree.map(lambda a, b: jnp.where(where, a, b), far, params)
        found = started.estimate(noise_key, objective, here, batch, state)
        return found.state, found.gradient

    jumped = jnp.arange(1200) >= 600
    state = started.init(key, params)
    _, seen = jax.jit(lambda s, k: jax.lax.scan(step, s, (k, jumped)))(
        state, jax.random.split(key, 1200)
    )
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(seen))
    _, pairs = gradients_of(key, objective, far, data, estimators.antithetic(), 1)
    assert total_variance(jax.tree.map(lambda g: g[1000:], seen)) < 0.3 * total_variance(pairs)


def test_a_system_that_cannot_be_solved_leaves_the_gradient_alone(key):
    """Contexts that repeat each other and no ridge to speak of: uncorrected, but never skipped."""
    objective, params, data = problem(key, num_data=6)
    doubled = Context(
        fit=lambda key, data: (),
        apply=lambda fitted, params, batch: jnp.ones((len(batch["y"]), 4)),
    )
    control = quell.control_variate(
        key,
        objective,
        params,
        data,
        coefficients.least_squares(doubled, every=2, ridges=(1e-30,)),
        basis=bases.no_basis(),
        criterion=criteria.partial_gradients,
        points=True,
    )
    state = train(key, objective, control, params, data, 9)
    assert int(state.skipped) == 0
    assert bool(jnp.isfinite(state.coefficients.theta).all())


def test_points_need_coefficients_that_can_control_them(key):
    objective, params, data = problem(key)
    model = coefficients.running_average()
    with pytest.raises(ValueError, match=r"points.*least_squares"):
        quell.control_variate(key, objective, params, data, model, points=True)


def test_points_need_a_context_that_does_not_follow_the_parameters(key):
    objective, params, data = problem(key)
    model = coefficients.least_squares(computed(lambda params, example: params["mean"]))
    with pytest.raises(ValueError, match=r"parameters"):
        quell.control_variate(key, objective, params, data, model, points=True)


@pytest.mark.parametrize(
    "make", [raw, standardised, lambda: random_features(6), distinct, adaptive]
)
def test_every_context_map_starts_with_one(key, make):
    y = jnp.asarray(np.random.default_rng(0).integers(0, 3, size=(40, 2)), jnp.float32)
    context = make()
    fitted = context.fit(key, y)
    h = jax.jit(lambda y: context.apply(fitted, {}, y))(y)
    assert h.shape[0] == 40
    np.testing.assert_array_equal(h[:, 0], 1.0)


def test_distinct_contexts_are_told_apart(key):
    y = jnp.asarray(list(itertools.product([0.0, 1.0], repeat=3)) * 2)
    h = adaptive().apply(adaptive().fit(key, y), {}, y)
    assert h.shape == (16, 8)
    assert np.linalg.matrix_rank(np.asarray(h)) == 8


def test_shapes_alone_are_refused_where_a_map_is_fitted(key):
    shapes = jax.ShapeDtypeStruct((10, 2), jnp.float32)
    with pytest.raises(ValueError, match=r"data: .*shapes alone"):
        random_features().fit(key, shapes)


def test_the_leaves_that_carry_the_noise_are_chosen(key, regression):
    objective, params, data = regression
    loud = objective._replace(
        loss=lambda p, e, y: (
            objective.loss({k: p[k] for k in ("mean", "scale")}, e, y)
            + 1e-4 * p["quiet"].sum() * e.sum()
        )
    )
    params = params | {"quiet": jnp.zeros(50)}
    chosen = noisy_leaves(key, loud, params, data, estimators.monte_carlo().sampling)
    assert chosen == {"mean": True, "scale": chosen["scale"], "quiet": False}


def test_leaves_that_are_quiet_only_at_first_are_chosen(key):
    """As in deep models: while `outer` is zero, `inner` has no gradient at all."""
    x_key, y_key = jax.random.split(key)
    x = jax.random.normal(x_key, (200, 2))
    data = {"x": x, "y": x[:, 0] + jax.random.normal(y_key, (200,))}

    def loss(params, noise, example):
        outer = params["outer"] + 0.1 * noise[0]
        return (outer * (params["inner"] @ example["x"]) - example["y"]) ** 2

    objective = quell.Objective(loss, quell.normal(1), 200)
    params = {"inner": jnp.ones(2), "outer": jnp.zeros(())}
    pairs = estimators.antithetic().sampling
    assert noisy_leaves(key, objective, params, data, pairs)["inner"]


def test_the_basis_is_affordable_and_not_cancelled_by_the_sampling():
    pair, one = estimators.antithetic().sampling, estimators.monte_carlo().sampling
    exponential = noises.from_moments(3, jax.random.exponential, [1.0, 2.0])
    cases = {
        "pairs": (quell.normal(4), pair, 5),
        "many": (quell.normal(50), pair, 5),
        "wide context": (quell.normal(4), pair, 64),
        "single": (quell.normal(4), one, 5),
        "no mirror": (exponential, one, 5),
    }
    size = {
        name: affordable_basis(noise, *of).apply(noise, jnp.ones(noise.size), {}, None).size
        for name, (noise, *of) in cases.items()
    }
    assert size == {"pairs": 10, "many": 0, "wide context": 0, "single": 4, "no mirror": 3}
