"""Natural gradients: the inverse Fisher information, the exact posterior, steps that stay sane."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import quell
from quell.gaussian import cholesky, packed
from quell.models import deep_gp

T = 200  # steps of a short run


def gaussian_kl(family, p, q):
    """The divergence KL[p ‖ q] of two members of a family, written out."""
    S, R = family.covariance(p), family.covariance(q)
    z = p["mean"] - q["mean"]
    log_det = jnp.linalg.slogdet(R)[1] - jnp.linalg.slogdet(S)[1]
    inverse = jnp.linalg.inv(R)
    return 0.5 * (jnp.trace(inverse @ S) + z @ inverse @ z - len(z) + log_det)


def member(key, family):
    """Some member of a family, far from the start."""
    flat, unravel = jax.flatten_util.ravel_pytree(family.init(scale=0.7))
    return unravel(flat + 0.3 * jax.random.normal(key, flat.shape))


def one_update(optimizer, params, grads):
    return optimizer.update(grads, optimizer.init(params), params)[0]


def run(optimizer, gradient, params, steps=T):
    def step(carry, _):
        params, state = carry
        updates, state = optimizer.update(gradient(params), state, params)
        params = optax.apply_updates(params, updates)
        return (params, state), params

    return jax.lax.scan(step, (params, optimizer.init(params)), None, length=steps)


def regression(key, d=3, N=40):
    """The exact negative ELBO of Bayesian linear regression, and the posterior's moments."""
    at, noise, weights = jax.random.split(key, 3)
    X = jax.random.normal(at, (N, d)) @ (jnp.eye(d) + 0.5)
    y = X @ jax.random.normal(weights, (d,)) + jax.random.normal(noise, (N,))
    precision = X.T @ X + jnp.eye(d)

    def loss(family):
        def value(params):
            fit = 0.5 * ((y - X @ params["mean"]) ** 2).sum()
            return fit + 0.5 * jnp.trace(X @ family.covariance(params) @ X.T) + family.kl(params)

        return value

    return loss, jnp.linalg.solve(precision, X.T @ y), jnp.linalg.inv(precision)


@pytest.mark.parametrize("d", [1, 2, 3, 6])
def test_packing_inverts_unpacking(key, d):
    scale = jax.random.normal(key, (d * (d + 1) // 2,))
    np.testing.assert_array_equal(packed(cholesky(scale, d)), scale)


@pytest.mark.parametrize("make", [quell.full_covariance, quell.mean_field])
def test_a_small_step_is_the_inverse_fisher_information_times_the_gradient(key, x64, make):
    family = make(4)
    at, towards = jax.random.split(key)
    params = member(at, family)
    flat, unravel = jax.flatten_util.ravel_pytree(params)
    g = jax.random.normal(towards, flat.shape)
    fisher = jax.hessian(lambda t: gaussian_kl(family, unravel(t), params))(flat)
    rho = 1e-7
    update = one_update(quell.natural_gradient(None, rate=rho), params, unravel(g))
    step = jax.flatten_util.ravel_pytree(update)[0] / rho
    np.testing.assert_allclose(step, -jnp.linalg.solve(fisher, g), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [quell.full_covariance, quell.mean_field])
def test_the_bound_is_the_length_of_a_step_and_half_its_square_the_divergence(key, x64, make):
    family = make(4)
    params = member(key, family)
    grads = jax.tree.map(lambda leaf: 1e6 * jnp.cos(jnp.arange(leaf.size)), params)
    s = 1e-3
    update = one_update(quell.natural_gradient(None, bound=s), params, grads)
    moved = optax.apply_updates(params, update)
    assert abs(gaussian_kl(family, moved, params) / (s**2 / 2) - 1) < 0.01


def test_linear_regression_reaches_the_exact_posterior_at_the_rate_of_theory(key, x64):
    # Near the optimum a step of rate ρ multiplies every error by 1 − ρ, however ill-conditioned.
    loss, mean, covariance = regression(key)
    family = quell.full_covariance(3)
    optimizer = quell.natural_gradient(None, rate=0.1, bound=1.0)
    start = {"mean": jnp.full(3, 5.0), "scale": family.init()["scale"]}
    (params, _), path = run(optimizer, jax.grad(loss(family)), start, 300)
    np.testing.assert_allclose(params["mean"], mean, atol=1e-8)
    np.testing.assert_allclose(family.covariance(params), covariance, atol=1e-8)
    error = jnp.linalg.norm(path["mean"] - mean, axis=-1)
    assert abs(error[200] / error[199] - 0.9) < 1e-3
    off = jax.vmap(lambda p: jnp.linalg.norm(family.covariance(p) - covariance))(path)
    assert abs(off[200] / off[199] - 0.9) < 1e-3


def test_a_rate_of_one_squares_the_error(key, x64):
    loss, mean, _ = regression(key)
    family = quell.full_covariance(3)
    optimizer = quell.natural_gradient(None, rate=1.0, bound=1.0)
    (params, _), _ = run(optimizer, jax.grad(loss(family)), family.init(), 60)
    np.testing.assert_allclose(params["mean"], mean, atol=1e-12)


def test_a_run_is_the_same_after_a_triangular_change_of_the_weights(key, x64):
    # w' = Tw + c with T lower triangular, which maps Cholesky factors to Cholesky factors
    loss, _, _ = regression(key)
    family = quell.full_covariance(3)
    tri = jnp.tril(jax.random.normal(key, (3, 3))) + 2 * jnp.eye(3)
    shift = jnp.arange(3.0)

    def mapped(params):
        return {
            "mean": tri @ params["mean"] + shift,
            "scale": packed(tri @ cholesky(params["scale"], 3)),
        }

    def back(params):
        inverse = jnp.linalg.inv(tri)
        return {
            "mean": inverse @ (params["mean"] - shift),
            "scale": packed(inverse @ cholesky(params["scale"], 3)),
        }

    start, optimizer = family.init(), quell.natural_gradient(30)
    (here, _), _ = run(optimizer, jax.grad(loss(family)), start, 30)
    there_gradient = jax.grad(lambda p: loss(family)(back(p)))
    (there, _), _ = run(optimizer, there_gradient, mapped(start), 30)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-9), mapped(here), there)


@pytest.mark.parametrize("size", [1.0, 1e4, 1e30])
@pytest.mark.parametrize("make", [quell.full_covariance, quell.mean_field])
def test_every_step_leaves_a_positive_definite_covariance(key, make, size):
    family = make(5)
    optimizer = quell.natural_gradient(None, rate=10.0, bound=3.0)

    def step(params, key):
        keys = dict(zip(params, jax.random.split(key)))
        grads = {k: size * jax.random.normal(keys[k], leaf.shape) for k, leaf in params.items()}
        params = optax.apply_updates(params, one_update(optimizer, params, grads))
        return params, family.covariance(params)

    _, covariances = jax.lax.scan(step, family.init(), jax.random.split(key, 30))
    assert np.isfinite(covariances).all()
    for S in np.asarray(covariances, np.float64):
        assert (np.diagonal(S) > 0).all()
        root = np.sqrt(np.diagonal(S))
        assert np.linalg.eigvalsh(S / np.outer(root, root)).min() > -1e-5  # rounding of float32


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_a_standard_deviation_grows_by_an_eighth_at_most_and_shrinks_within_the_bound(sign):
    family = quell.mean_field(1)
    params = family.init()
    grads = {"mean": jnp.zeros(1), "scale": sign * jnp.full(1, 1e8)}
    optimizer = quell.natural_gradient(None, bound=1.0, family=quell.mean_field)
    change = one_update(optimizer, params, grads)["scale"]
    assert -np.log(2) < change[0] < np.log(9 / 8)
    assert -sign * change[0] > 0.1


@pytest.mark.parametrize("make", [quell.full_covariance, quell.mean_field])
def test_noise_of_mean_zero_leaves_the_precision_where_it_is(key, x64, make):
    # Otherwise noise alone narrows q, step by step, by ρ²AᵀA.
    family, rho = make(4), 1e-3
    params = member(key, family)
    noise = jax.random.normal(key, params["scale"].shape)

    def precision(sign):
        grads = {"mean": jnp.zeros(4), "scale": sign * noise}
        moved = one_update(quell.natural_gradient(None, rate=rho, bound=1e3), params, grads)
        return jnp.linalg.inv(family.covariance(optax.apply_updates(params, moved)))

    still = jnp.linalg.inv(family.covariance(params))
    up, down = precision(1) - still, precision(-1) - still
    assert jnp.abs(up + down).max() < 10 * rho * jnp.abs(up).max() ** 2 / jnp.abs(still).max()
    assert jnp.abs(up).max() > 0.1 * rho


def test_the_rate_follows_from_the_gradients_before_this_one(key, x64):
    # A rate that depends on a gradient would make the mean of its steps another than its own.
    params, optimizer = quell.full_covariance(3).init(), quell.natural_gradient(None, bound=0.1)
    lengths = jnp.array([8.0, 2.0, 4.0])
    state = optimizer.init(params)
    for length in lengths:  # the scale is the identity: the mean's gradient is its own length
        grads = {"mean": jnp.array([length, 0, 0]), "scale": jnp.zeros(6)}
        _, state = optimizer.update(grads, state, params)
    usual = jnp.exp(jnp.log(lengths).mean())
    np.testing.assert_allclose(jnp.exp(state.usual[0]), usual)
    for length in (1e-3, 1.0, 1.4 * usual):
        grads = {"mean": jnp.array([0, length, 0]), "scale": jnp.zeros(6)}
        updates, _ = optimizer.update(grads, state, params)
        np.testing.assert_allclose(updates["mean"][1], -0.1 * length / usual, rtol=1e-6)
    grads = {"mean": jnp.array([0, 1e9, 0]), "scale": jnp.zeros(6)}
    updates, _ = optimizer.update(grads, state, params)
    np.testing.assert_allclose(updates["mean"][1], -0.15, rtol=1e-6)


def test_every_gaussian_of_a_block_has_its_own_rate():
    params = {"mean": jnp.zeros((2, 3)), "scale": jnp.zeros((2, 3))}
    optimizer = quell.natural_gradient(None, rate=0.1, bound=1.0)
    grads = {"mean": jnp.array([[1e6, 0, 0], [0, 1.0, 0]]), "scale": jnp.zeros((2, 3))}
    updates = one_update(optimizer, params, grads)["mean"]
    np.testing.assert_allclose(updates, [[-1.0, 0, 0], [0, -0.1, 0]], rtol=1e-6, atol=0)


def test_mean_field_equals_full_covariance_on_a_diagonal_problem(key, x64):
    d, weights = 4, jnp.array([1.0, 10.0, 0.1, 3.0])
    full, diagonal = quell.full_covariance(d), quell.mean_field(d)

    def loss(family):
        def value(params):
            fit = (weights * (params["mean"] - 2) ** 2).sum()
            return (
                fit + (weights * jnp.diagonal(family.covariance(params))).sum() + family.kl(params)
            )

        return value

    optimizer = quell.natural_gradient(30)
    (a, _), _ = run(optimizer, jax.grad(loss(full)), full.init(), 30)
    (b, _), _ = run(optimizer, jax.grad(loss(diagonal)), diagonal.init(), 30)
    np.testing.assert_allclose(a["mean"], b["mean"], atol=1e-12)
    np.testing.assert_allclose(full.covariance(a), diagonal.covariance(b), atol=1e-12)


def test_the_bound_falls_by_a_cosine_and_a_schedule_is_taken_as_it_is():
    family = quell.mean_field(2)
    push = {"mean": jnp.full(2, 1e6), "scale": jnp.zeros(2)}
    optimizer = quell.natural_gradient(10, bound=2.0)
    _, path = run(optimizer, lambda params: push, family.init(), 20)
    steps = np.linalg.norm(np.diff(path["mean"], axis=0), axis=1)
    falling = 1 + np.cos(np.pi * np.minimum(np.arange(1, 20), 10) / 10)
    np.testing.assert_allclose(steps, 2e-3 + (1 - 1e-3) * falling, rtol=1e-3)
    optimizer = quell.natural_gradient(10, bound=lambda step: 0.5)
    _, path = run(optimizer, lambda params: push, family.init(), 20)
    np.testing.assert_allclose(
        np.linalg.norm(np.diff(path["mean"], axis=0), axis=1), 0.5, rtol=1e-3
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_moves_nothing_and_is_counted(bad):
    params = {"q": quell.full_covariance(2).init(), "rate": jnp.ones(())}
    optimizer = quell.natural_gradient(10, others=optax.adam(1e-2))
    good = jax.tree.map(jnp.ones_like, params)
    _, before = optimizer.update(good, optimizer.init(params), params)
    for where in (("q", "mean"), ("q", "scale"), ("rate",)):
        grads = jax.tree.map(jnp.copy, good)
        node = grads["q"] if "q" in where else grads
        node[where[-1]] = jnp.full_like(node[where[-1]], bad)
        updates, state = optimizer.update(grads, before, params)
        assert all((leaf == 0).all() for leaf in jax.tree.leaves(updates))
        assert state.skipped == 1
        jax.tree.map(np.testing.assert_array_equal, state.others, before.others)
        jax.tree.map(np.testing.assert_array_equal, state.usual, before.usual)
    assert before.skipped == 0


def test_chain_partition_and_hyperparameters_give_the_same_steps(key):
    loss, _, _ = regression(key)
    family = quell.full_covariance(3)
    gradient = jax.grad(lambda p: loss(family)(p["q"]) + (p["other"] ** 2).sum())
    params = {"q": family.init(), "other": jnp.ones(2)}
    plain = quell.natural_gradient(T)
    q = {"q": family.init()}
    (alone, _), _ = run(plain, jax.grad(lambda p: loss(family)(p["q"])), q)
    labels = {"q": {"mean": "natural", "scale": "natural"}, "other": "adam"}
    both = {"natural": plain, "adam": optax.adam(1e-2)}
    rest = optax.adam(1e-2)
    ways = {
        "others": quell.natural_gradient(T, others=rest),
        "partition": optax.partition(both, labels),
        "chain": optax.chain(optax.identity(), quell.natural_gradient(T, others=rest)),
        "hyperparameters": optax.inject_hyperparams(quell.natural_gradient)(T, others=rest),
    }
    ends = {}
    for name, optimizer in ways.items():
        (end, _), _ = jax.jit(lambda p, o=optimizer: run(o, gradient, p))(params)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
            end["q"],
            alone["q"],
        )
        ends[name] = end["other"]
    for end in ends.values():
        np.testing.assert_allclose(end, ends["others"], rtol=1e-5)
        assert (end < 1).all()


def test_vmap_over_seeds_changes_nothing(key):
    family = quell.full_covariance(3)
    optimizer = quell.natural_gradient(20)

    def noisy_run(key):
        def step(carry, key):
            params, state = carry
            w = family.sample(params, jax.random.normal(key, (3,)))
            grads = jax.tree.map(lambda leaf: leaf + w.sum(), params)
            updates, state = optimizer.update(grads, state, params)
            return (optax.apply_updates(params, updates), state), None

        params = family.init()
        return jax.lax.scan(step, (params, optimizer.init(params)), jax.random.split(key, 20))[0]

    keys = jax.random.split(key, 3)
    many = jax.vmap(noisy_run)(keys)
    one = noisy_run(keys[1])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[1], b, rtol=1e-4, atol=1e-5), many, one)


def test_several_gaussians_in_a_block_may_have_their_weights_on_either_axis(key):
    scale = jnp.stack([quell.full_covariance(3).init(scale=s)["scale"] for s in (0.5, 2.0)])
    rows = {"mean": jnp.zeros((2, 3)), "scale": scale}
    columns = {"mean": jnp.zeros((3, 2)), "scale": scale}
    grads = jax.random.normal(key, (2, 3))
    optimizer = quell.natural_gradient(None)
    a = one_update(optimizer, rows, {"mean": grads, "scale": scale})
    b = one_update(optimizer, columns, {"mean": grads.T, "scale": scale})
    np.testing.assert_allclose(a["mean"], b["mean"].T, rtol=1e-6)
    np.testing.assert_allclose(a["scale"], b["scale"], rtol=1e-6)


def test_the_deep_gp_trains_with_and_without_hyperparameters(key):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    data = {"x": jnp.asarray(x, float), "y": jnp.asarray(np.sin(2 * x[:, 0]), float)}
    for learned in (False, True):
        model = deep_gp(key, x, inner_dim=2, num_inducing=8, learn_hyperparameters=learned)
        objective = model.objective(60)
        others = optax.adam(1e-2) if learned else None
        fitted = quell.fit(
            jax.random.split(key, 2),
            objective,
            model.init,
            model.prepare(data),
            quell.natural_gradient(150, others=others),
            num_steps=150,
            batch_size=20,
            estimator=quell.antithetic(),
            hooks=[quell.silent],
        )
        history = fitted.history["objective"]
        assert history[:, -20:].mean() < 0.5 * history[:, :5].mean()
        assert (np.asarray(fitted.optimizer_state.skipped) == 0).all()


def test_leaves_outside_blocks_are_refused_with_both_remedies():
    params = {"q": quell.mean_field(3).init(), "noise": jnp.ones(())}
    with pytest.raises(ValueError, match=r"params\['noise'\].*others=.*optax.partition"):
        quell.natural_gradient(10).init(params)


def test_shapes_that_fit_nothing_or_two_readings_are_refused():
    with pytest.raises(ValueError, match=r"scale \[4\] in params\['q'\].*quell.full_covariance"):
        quell.natural_gradient(10).init({"q": {"mean": jnp.zeros(3), "scale": jnp.zeros(4)}})
    one = quell.mean_field(1).init()
    with pytest.raises(ValueError, match=r"family=quell\.mean_field"):
        quell.natural_gradient(10).init(one)
    quell.natural_gradient(10, family=quell.mean_field).init(one)
    square = {"mean": jnp.zeros((3, 3)), "scale": jnp.zeros((3, 6))}
    with pytest.raises(ValueError, match="axis=-1 or axis=0"):
        quell.natural_gradient(10).init(square)
    quell.natural_gradient(10, axis=0).init(square)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_steps": 0}, "num_steps: expected 1 to"),
        ({"num_steps": 10, "rate": -1.0}, "rate: expected a positive number or a schedule"),
        ({"num_steps": 10, "bound": "1"}, "bound: expected a positive number or a schedule"),
        ({"num_steps": 10, "family": dict}, "family: expected quell.full_covariance"),
        ({"num_steps": 10, "axis": 1}, "axis: expected -1 or 0"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        quell.natural_gradient(**arguments)


def test_an_update_without_params_is_refused():
    params = quell.mean_field(3).init()
    optimizer = quell.natural_gradient(10)
    with pytest.raises(ValueError, match="params: expected the current parameters"):
        optimizer.update(params, optimizer.init(params))
