"""The closed form: least squares against numpy, both noises unbiased, safe starts, choices."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _exact import EXACT, SAME32, max_error, nodes, over_batches_and_draws, total_variance
from conformance import contexts as context_of
from conformance import controlled_gradient, problem, take, train

import quell
from quell import bases, coefficients, criteria, estimators
from quell._recommend import _ranked
from quell.coefficients._cholesky import inverse_lower, solve
from quell.contexts import adaptive, constant, distinct, random_features, standardised
from quell.estimators._closed_form import paying_basis


def positive_definite(size):
    x = np.random.default_rng(size).normal(size=(2 * size + 3, size))
    return x.T @ x + 0.1 * np.eye(size)


@pytest.mark.parametrize("size", [1, 5, 32, 33, 100])
def test_the_blocked_solution_is_numpys(x64, size):
    A, R = positive_definite(size), np.random.default_rng(0).normal(size=(size, 3))
    np.testing.assert_allclose(solve(jnp.asarray(A), jnp.asarray(R)), np.linalg.solve(A, R), 1e-8)


def test_the_triangular_inverse_is_numpys(x64):
    L = np.linalg.cholesky(positive_definite(8))
    np.testing.assert_allclose(inverse_lower(jnp.asarray(L)), np.linalg.inv(L), atol=1e-12)


def control_of(key, objective, data, *, basis=None, points=True, **kwargs):
    model = coefficients.least_squares(standardised(), **{"every": 4, **kwargs})
    return quell.control_variate(
        bases.linear() if basis is None else basis,
        model,
        criteria.partial_gradients,
        noise=objective.noise,
        context=context_of(data),
        key=key,
        points=points,
    )


def test_candidates_solve_the_ridge_regression(x64, key):
    """After one block: (A + r mean(diag A) I) Θ = R, with x = [w ⊗ h, h] written out."""
    objective, params, data = problem(key, num_data=8)
    control = control_of(key, objective, data, memories=(3.0,), ridges=(1e-2,))
    state, xs, gs = control.init(params), [], []
    mean, scale = np.asarray(context_of(data)).mean(0), np.asarray(context_of(data)).std(0)
    learn = jax.jit(lambda *args: controlled_gradient(objective, control, params, *args)[2])
    for step in range(4):
        batch = take(data, np.arange(step, step + 3))
        noise = objective.sample_noise(jax.random.fold_in(key, step), 3)
        state = learn(state, noise, batch)
        h = np.concatenate([np.ones((3, 1)), (np.asarray(context_of(batch)) - mean) / scale], 1)
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
    control = control_of(key, objective, data, basis=basis, every=1)
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
    control = control_of(key, objective, data, basis=bases.none(), every=1)
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


def ratio(key, objective, params, data, make, learning, measuring=400, B=5):
    """Variance of the controlled gradient over that of its sampling, after so many steps."""
    estimator = make(objective)

    def step(state, key):
        row_key, noise_key = jax.random.split(key)
        batch = take(data, jax.random.randint(row_key, (B,), 0, objective.num_data))
        gradient, _, state = estimator.estimate(noise_key, params, batch, state)
        return state, gradient

    @jax.jit
    def run(key):
        init_key, learn_key, measure_key = jax.random.split(key, 3)
        state = estimator.init(init_key, params, data)
        state, early = jax.lax.scan(step, state, jax.random.split(learn_key, learning))
        frozen = jax.vmap(lambda key: step(state, key)[1])(jax.random.split(measure_key, measuring))
        return early, frozen

    return run(key)


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
    make = estimators.closed_form(key, objective, params, data, leaves=None)
    _, ours = ratio(key, objective, params, data, make, 600)
    _, pairs = ratio(key, objective, params, data, estimators.antithetic(), 1)
    _, plain = ratio(key, objective, params, data, estimators.monte_carlo(), 1)
    assert total_variance(ours) < 0.1 * total_variance(pairs) < 0.1 * total_variance(plain)


def test_without_evidence_it_does_nothing(quick, key, regression):
    """Until two blocks are full, the gradient is that of the sampling."""
    objective, params, data = regression
    make = estimators.closed_form(key, objective, params, data, leaves=None)
    early, _ = ratio(key, objective, params, data, make, 31, measuring=1)
    plain, _ = ratio(key, objective, params, data, estimators.antithetic(), 31, measuring=1)
    assert max_error(early, plain) < SAME32


@pytest.mark.slow
def test_useless_features_are_gated(key, regression):
    """Contexts that say nothing: never more than 5 % worse than the same sampling."""
    objective, params, data = regression
    make = estimators.closed_form(
        key, objective, params, data, basis=bases.none(),
        context=lambda batch: jnp.sin(1e4 * batch["x"]),
    )  # fmt: skip
    _, ours = ratio(key, objective, params, data, make, 300, measuring=2000)
    _, pairs = ratio(key, objective, params, data, estimators.antithetic(), 300, measuring=2000)
    assert total_variance(ours) < 1.05 * total_variance(pairs)


@pytest.mark.slow
def test_it_recovers_when_the_objective_jumps(key, regression):
    objective, params, data = regression
    make = estimators.closed_form(key, objective, params, data, leaves=None)
    estimator = make(objective)
    far = params | {"mean": params["mean"] + 5.0}

    def step(state, inputs):
        key, where = inputs
        row_key, noise_key = jax.random.split(key)
        batch = take(data, jax.random.randint(row_key, (5,), 0, 200))
        here = jax.tree.map(lambda a, b: jnp.where(where, a, b), far, params)
        gradient, _, state = estimator.estimate(noise_key, here, batch, state)
        return state, gradient

    jumped = jnp.arange(1200) >= 600
    state = estimator.init(key, params, data)
    _, seen = jax.jit(lambda s, k: jax.lax.scan(step, s, (k, jumped)))(
        state, jax.random.split(key, 1200)
    )
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(seen))
    _, pairs = ratio(key, objective, far, data, estimators.antithetic(), 1)
    assert total_variance(jax.tree.map(lambda g: g[1000:], seen)) < 0.3 * total_variance(pairs)


def test_a_system_that_cannot_be_solved_leaves_the_gradient_alone(key):
    """Contexts that repeat each other and no ridge to speak of: uncorrected, but never skipped."""
    objective, params, data = problem(key, num_data=6)
    doubled = quell.contexts.Context(
        init=lambda key, context: (), apply=lambda state, y: jnp.repeat(y * 0 + 1, 4, axis=1)
    )
    control = quell.control_variate(
        bases.none(),
        coefficients.least_squares(doubled, every=2, ridges=(1e-30,)),
        criteria.partial_gradients,
        noise=objective.noise,
        context=context_of(data),
        key=key,
        points=True,
    )
    state = train(key, objective, control, params, data, 9)
    assert int(state.skipped) == 0
    assert bool(jnp.isfinite(state.coefficients.theta).all())


def test_points_need_coefficients_that_can_control_them(key):
    objective, _, data = problem(key)
    with pytest.raises(ValueError, match=r"points.*least_squares"):
        quell.control_variate(
            bases.linear(),
            coefficients.running_average(),
            noise=objective.noise,
            context=context_of(data),
            points=True,
        )


@pytest.mark.parametrize(
    "make", [constant, standardised, lambda: random_features(6), distinct, adaptive]
)
def test_every_context_map_starts_with_one(key, make):
    y = jnp.asarray(np.random.default_rng(0).integers(0, 3, size=(40, 2)), jnp.float32)
    context = make()
    h = jax.jit(lambda key: context.apply(context.init(key, y), y))(key)
    assert h.shape[0] == 40
    np.testing.assert_array_equal(h[:, 0], 1.0)


def test_distinct_contexts_are_told_apart(key):
    y = jnp.asarray(list(itertools.product([0.0, 1.0], repeat=3)) * 2)
    h = adaptive().apply(adaptive().init(key, y), y)
    assert h.shape == (16, 8)
    assert np.linalg.matrix_rank(np.asarray(h)) == 8


def test_shapes_alone_are_refused_where_a_map_is_fitted(key):
    shapes = jax.ShapeDtypeStruct((10, 2), jnp.float32)
    with pytest.raises(ValueError, match=r"context: .*shapes alone"):
        random_features().init(key, shapes)


def test_the_leaves_that_carry_the_noise_are_chosen(key, regression):
    objective, params, data = regression
    loud = objective._replace(
        loss=lambda p, e, y: (
            objective.loss({k: p[k] for k in ("mean", "scale")}, e, y)
            + 1e-4 * p["quiet"].sum() * e.sum()
        )
    )
    params = params | {"quiet": jnp.zeros(50)}
    chosen = estimators.noisy_leaves(key, loud, params, data)
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
    pairs = estimators.antithetic()
    assert estimators.noisy_leaves(key, objective, params, data, pairs)["inner"]


def test_a_transformation_cannot_measure_leaves_by_itself(regression):
    objective, _, _ = regression
    with pytest.raises(ValueError, match=r"leaves: .*noisy_leaves.*closed_form"):
        quell.control_variate(
            bases.linear(),
            coefficients.running_average(),
            noise=objective.noise,
            leaves=quell.automatic,
        )


def test_the_basis_is_what_the_sampling_leaves_over():
    pair, one = estimators.antithetic(), estimators.monte_carlo()
    exponential = quell.from_moments(3, jax.random.exponential, [1.0, 2.0])
    cases = {
        "pairs": (quell.normal(4), pair, 5),
        "many": (quell.normal(50), pair, 5),
        "wide context": (quell.normal(4), pair, 64),
        "single": (quell.normal(4), one, 5),
        "no mirror": (exponential, one, 5),
    }
    size = {
        name: paying_basis(noise, *of).apply(noise, jnp.ones(noise.size), {}, None).size
        for name, (noise, *of) in cases.items()
    }
    assert size == {"pairs": 10, "many": 0, "wide context": 0, "single": 4, "no mirror": 3}


def test_plain_wins_where_nothing_beats_it():
    makers = {"plain": "p", "antithetic": "a"}
    won = _ranked(makers, {"plain": 2.0, "antithetic": 1.0}, {"plain": 1.0, "antithetic": 1.0}, 10)
    assert (won.name, won.estimator, won.candidates[0].efficiency) == ("antithetic", "a", 2.0)
    lost = _ranked(
        makers, {"plain": 1.0, "antithetic": 0.99}, {"plain": 1.0, "antithetic": 1.0}, 10
    )
    assert (lost.name, lost.estimator) == ("plain", "p")


@pytest.mark.slow
def test_recommend_measures_and_says_why(key, quick, regression):
    objective, params, data = regression
    found = quell.recommend(
        objective, data, params, key=key, batch_size=5, seconds=0.2, num_steps=40
    )
    names = [candidate.name for candidate in found.candidates]
    assert sorted(names) == ["antithetic", "closed-form", "closed-form-points", "plain"]
    assert found.name in names
    assert found.name in str(found)
    assert found.to_json()["name"] == found.name
    gradient, _, _ = found.estimator(objective).estimate(
        key, params, take(data, jnp.arange(5)), found.estimator(objective).init(key, params, data)
    )
    assert jax.tree.structure(gradient) == jax.tree.structure(params)
    with pytest.raises(ValueError, match="batch_size"):
        quell.recommend(objective, data, params, key=key, batch_size=201)
