"""Noise in nats: the Fisher information, the limit of a run, and the verdict."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from test_natural_gradient import gaussian_kl, member

import quell
from quell.diagnostics.metric import Metric, fisher_metric, optimizer_metric, signal
from quell.diagnostics.nats import Nats, left_after, noise_limits, steps_to, verdict
from quell.diagnostics.reference import Reference
from quell.diagnostics.statistics import Interval, Parts
from quell.diagnostics.variance import Coordinates, variance_components
from quell.models import deep_gp


@pytest.mark.parametrize("make", [quell.full_covariance, quell.mean_field])
@pytest.mark.parametrize("d", [1, 2])
def test_the_whitened_square_is_that_of_the_inverse_fisher_information(key, x64, make, d):
    family = make(d)
    at, towards = jax.random.split(key)
    params = member(at, family)
    flat, unravel = jax.flatten_util.ravel_pytree(params)
    g = jax.random.normal(towards, flat.shape)
    fisher = jax.hessian(lambda t: gaussian_kl(family, unravel(t), params))(flat)
    objective = quell.negative_elbo(lambda w, y: -((w - y) ** 2).sum(), family, num_data=9)
    metric = fisher_metric(objective, params)
    assert metric is not None
    assert metric.nats
    white = metric.whiten(params, unravel(g))
    square = sum((leaf**2).sum() for leaf in jax.tree.leaves(white))
    np.testing.assert_allclose(square, g @ jnp.linalg.solve(fisher, g), rtol=1e-8)


def test_every_layer_of_a_deep_gaussian_process_is_measured_in_nats(key):
    x = jax.random.normal(key, (20, 3))
    model = deep_gp(key, x, inner_dim=2, num_inducing=5)
    assert fisher_metric(model.objective(20), model.init(key)) is not None


def test_other_params_have_no_fisher_information():
    objective = quell.Objective(lambda p, e, y: (p["w"] * e * y).sum(), quell.normal(3), 4)
    assert fisher_metric(objective, {"w": jnp.ones(3)}) is None
    mixed = {"mean": jnp.ones(3), "scale": jnp.ones(6), "w": jnp.ones(3)}
    assert fisher_metric(objective, mixed) is None


def test_the_noise_in_nats_is_half_the_trace_of_the_whitened_covariance(key, quick):
    family, N, B = quell.full_covariance(2), 16, 4
    data = {"y": jax.random.normal(key, (N, 2))}
    objective = quell.negative_elbo(lambda w, y: -((w - y["y"]) ** 2).sum(), family, num_data=N)
    params = member(key, family)
    metric = fisher_metric(objective, params)
    started = quell.monte_carlo().start(key, objective, params, data)
    flat, unravel = jax.flatten_util.ravel_pytree(params)
    zero = np.zeros(len(flat))
    found = variance_components(
        key, objective, params, data, started, batch_size=B, state=(), metric=metric,
        reference=Reference(zero, zero, 3, zero[None]), seconds=0.0, least=2000,
    )  # fmt: skip

    @jax.vmap
    def gradient(key):
        row_key, noise_key = jax.random.split(key)
        rows = jax.random.choice(row_key, N, (B,), replace=False)
        batch = jax.tree.map(lambda y: y[rows], data)
        g = objective.gradient(params, objective.sample_noise(noise_key, B), batch)
        return jax.flatten_util.ravel_pytree(g)[0]

    sigma = np.cov(np.asarray(gradient(jax.random.split(key, 8000)), float).T)
    fisher = jax.hessian(lambda t: gaussian_kl(family, unravel(t), params))(flat)
    nu = 0.5 * np.trace(np.linalg.solve(np.asarray(fisher, float), sigma))
    assert found.nats.total.standard_error < 0.1 * nu
    assert abs(found.nats.total.value - nu) < 4 * found.nats.total.standard_error + 0.03 * nu
    assert found.coordinates.variance == pytest.approx(np.diag(sigma), rel=0.3)


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (optax.sgd(0.3), 0.3),
        (optax.sgd(0.3, momentum=0.5), 0.6),
        (optax.chain(optax.scale(2.0), optax.sgd(0.3)), 0.6),
    ],
)
def test_the_metric_of_an_optimiser_is_its_whole_response_to_a_gradient(optimizer, expected):
    params = {"w": jnp.ones(3)}
    metric = optimizer_metric(optimizer, optimizer.init(params), params)
    white = metric.whiten(params, {"w": jnp.array([1.0, 2.0, 0.0])})["w"]
    np.testing.assert_allclose(white**2, [expected, 4 * expected, 0.0], rtol=1e-5)


def test_adam_divides_by_the_root_of_its_second_moments(key):
    params, optimizer, sd = {"w": jnp.zeros(3)}, optax.adam(0.01), jnp.array([1.0, 10.0, 0.0])

    def step(state, key):
        return optimizer.update({"w": sd * jax.random.normal(key, (3,))}, state)[1], None

    state = jax.lax.scan(step, optimizer.init(params), jax.random.split(key, 5000))[0]
    metric = optimizer_metric(optimizer, state, params)
    P = metric.whiten(params, {"w": jnp.ones(3)})["w"] ** 2
    np.testing.assert_allclose(P[:2], 0.01 / sd[:2], rtol=0.1)
    assert jnp.isfinite(P).all()


def test_the_signal_has_no_bias_from_the_noise_of_the_gradients():
    rng, g = np.random.default_rng(0), np.array([1.0, -2.0, 0.5])
    unit = Metric("unit", False, lambda params, gradient: gradient)
    params = {"w": jnp.zeros(3)}
    seen = [signal(unit, params, g + 3 * rng.standard_normal((8, 3))) for _ in range(60)]
    values = np.array([one.value for one in seen])
    truth = 0.5 * (g**2).sum()
    assert abs(values.mean() - truth) < 4 * values.std() / math.sqrt(60)
    covered = np.mean([one.low <= truth <= one.high for one in seen])
    assert covered > 0.8


def test_reshuffled_points_fall_as_one_over_the_square_of_the_epochs():
    """The noise of points in an average with a smooth window, exactly, for exchangeable orders."""
    n = 50  # steps of an epoch
    for epochs in (2, 4, 8):
        w = np.sin(np.pi * (np.arange(epochs * n) + 0.5) / (epochs * n)).reshape(epochs, n)
        # points of an epoch add up to nothing, so that only w minus its mean over the epoch counts
        share = ((w - w.mean(1, keepdims=True)) ** 2).sum() / (w**2).sum()
        assert share * epochs**2 == pytest.approx(math.pi**2 / 12, rel=0.1)
        model = left_after(0.0, 1.0, epochs * n, n) * epochs * n
        assert model == pytest.approx(epochs**-2)


@pytest.mark.parametrize("epoch", [math.inf, 5.0, 100.0, 3000.0])
@pytest.mark.parametrize(("draws", "points"), [(1.0, 2000.0), (500.0, 0.0), (0.2, 0.1)])
def test_steps_and_nats_are_inverse(draws, points, epoch):
    for nats in (0.1, 1.0, 10.0):
        T = steps_to(draws, points, nats, epoch)
        assert left_after(draws, points, T, epoch) <= nats * (1 + 1e-6)
        if T > 1:
            assert left_after(draws, points, 0.98 * T, epoch) > nats * 0.99


def known(draws, points, seen, *, epoch=math.inf, exact=True, doubt=0.01):
    def at(value):
        return Interval(value, value, value)

    parts = Parts(at(draws + points), at(points), at(draws), at(0.0), at(draws))
    half = 2 * doubt * seen
    return Nats(parts, Interval(seen, seen - half, seen + half), "test", exact, epoch)


def test_the_verdict_names_noise_its_source_and_by_how_much_it_could_fall():
    found = known(900.0, 100.0, 1.5)
    assert noise_limits(found, 1000)
    text = verdict(found, 1e-5, 1000)
    assert "within 1 nat takes at least 1,000 steps (10 ms)" in text
    assert "Noise limits the run" in text
    assert "90 % of it comes from the draws" in text
    assert "10 % would be left" in text
    assert "choice of points" in verdict(known(10.0, 990.0, 1.5), 1e-5, 1000)


def test_the_verdict_names_the_steps_if_the_signal_is_far_above_the_noise():
    found = known(900.0, 100.0, 500.0)
    assert not noise_limits(found, 1000)
    assert "The steps limit the run: the signal is 500 nats, 500 times" in verdict(
        found, 1e-5, 1000
    )
    assert "a longer run was held back by its steps" in verdict(found, 1e-5, None)
    assert "signal of a single step" in verdict(known(1.0, 1.0, 500.0), 1e-5, None)


def test_a_signal_that_is_not_seen_is_no_signal():
    assert noise_limits(known(900.0, 100.0, 500.0, doubt=0.8), 1000)
    assert noise_limits(known(900.0, 100.0, -3.0), 1000)
    assert "no signal is seen" in verdict(known(900.0, 100.0, -3.0), 1e-5, None)


def test_without_noise_the_steps_limit():
    assert "no noise" in verdict(known(0.0, 0.0, 1.0), 1e-5, 100)


def test_the_share_of_noisier_coordinates():
    def coordinates(*variances):
        values = np.array(variances)
        return Coordinates(values, 0.01 * values, np.full(len(values), 1e-12))

    plain = coordinates(1.0, 1.0, 1.0, 1.0)
    assert plain.noisier(plain) == 0
    assert coordinates(0.5, 1.04, 1.2, 1.5).noisier(plain) == 0.5
    silent = coordinates(0.0, 0.0, 0.0, 0.0)
    assert silent.noisier(silent) == coordinates(1e-14, 0.0, 0.0, 0.0).noisier(silent) == 0
    assert coordinates(4.0, 9.0).summed_sd == 25.0


def test_a_warm_up_that_was_cut_is_said(key, quick):
    family = quell.mean_field(2)
    data = {"y": jax.random.normal(key, (16, 2))}
    objective = quell.negative_elbo(lambda w, y: -((w - y["y"]) ** 2).sum(), family, num_data=16)
    found = quell.measure(
        key, objective, family.init(), data, quell.svrg(), batch_size=4, warm_up=10**6, seconds=0.3
    )
    assert any("of 1000000 steps" in note for note in found.notes)
    assert "Note: the time ended the warm-up" in str(found)
