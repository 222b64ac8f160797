"""Measurements against answers known in closed form."""

import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import quell
from quell.diagnostics import reference, variance
from quell.diagnostics.ceilings import ceilings, default_bases
from quell.diagnostics.measure import measure
from quell.diagnostics.metric import Metric
from quell.diagnostics.reference import Reference, full_gradient
from quell.diagnostics.variance import variance_components
from quell.estimators import monte_carlo
from quell.noise import laplace
from quell.objective import Objective
from quell.types import Estimator, Started

pytestmark = pytest.mark.usefixtures("quick")

N, B = 12, 3
UNIT = Metric("unit", False, lambda params, gradient: gradient)


def linear_loss(params, noise, example):
    """Gradient a + bε for one leaf and cε for the other: every part is known."""
    slope = params["slope"] * (example["a"] + example["b"] * noise[0])
    return slope + (params["other"] * example["c"] * noise[1]).sum()


@pytest.fixture
def toy(key):
    a_key, b_key, c_key = jax.random.split(key, 3)
    data = {
        "a": 3.0 + jax.random.normal(a_key, (N,)),
        "b": 0.7 + jax.random.normal(b_key, (N,)),
        "c": jax.random.normal(c_key, (N, 2)),
    }
    params = {"slope": jnp.ones(()), "other": jnp.ones(2)}
    return Objective(linear_loss, quell.normal(2), N), params, data


def analytic(data):
    """(points, draws, interaction) of both leaves, for batches without replacement."""
    a, b, c = (np.asarray(data[name], float) for name in "abc")
    points = N**2 / B * (1 - B / N) * a.var(ddof=1)
    scale = N**2 / B
    return {
        "slope": (points, scale * b.mean() ** 2, scale * b.var()),
        "other": (0.0, scale * (c.mean(0) ** 2).sum(), scale * c.var(0).sum()),
    }


def assert_matches(estimate, truth, scale):
    """Within four standard errors, and precise enough for that to mean something."""
    assert estimate.standard_error < 0.03 * scale
    assert abs(estimate.value - truth) < 4 * estimate.standard_error + 1e-5 * scale


def noise_of(
    key, objective, params, data, estimator, batch_size=B, state=(), seconds=0.0, least=40_000
):
    """The part of a measurement that most tests are about, against the exact gradient."""
    exact = np.array([0.0, 0.0, N * float(data["a"].mean())])
    return variance_components(
        key,
        objective,
        params,
        data,
        estimator.start(key, objective, params, data),
        batch_size=batch_size,
        state=state,
        metric=UNIT,
        reference=Reference(exact, np.zeros(3), 1000, exact[None]),
        seconds=seconds,
        least=least,
    )


def changed(init, gradient, next_state):
    """Plain, with the gradient of one leaf changed."""

    def start(key, objective, params, data):
        plain = monte_carlo().start(key, objective, params, data)

        def estimate(key, objective, params, batch, state):
            found = plain.estimate(key, objective, params, batch, ())
            moved = {**found.gradient, "slope": gradient(found.gradient["slope"], state)}
            return found._replace(gradient=moved, state=next_state(state))

        return Started(lambda key, params: init, estimate)

    return Estimator("changed", start)


# A tenth too much; and fifty times the number of steps taken.
BIASED = changed((), lambda slope, state: slope * 1.1, lambda state: state)
COUNTING = changed(
    jnp.zeros(()), lambda slope, steps: slope + 50.0 * steps, lambda steps: steps + 1
)


def test_parts_match_the_analytic_decomposition(key, toy):
    objective, params, data = toy
    found = noise_of(key, objective, params, data, monte_carlo())
    truth = analytic(data)
    for leaf, (points, draws, interaction) in truth.items():
        parts, total = found.leaves[leaf], points + draws + interaction
        assert_matches(parts.points, points, total)
        assert_matches(parts.draws, draws, total)
        assert_matches(parts.interaction, interaction, total)
        assert_matches(parts.draws_given_points, draws + interaction, total)
        assert_matches(parts.total, total, total)
    everything = np.sum([sum(parts) for parts in truth.values()])
    assert_matches(found.parts.total, everything, everything)
    assert found.squared_mean == pytest.approx((N * float(data["a"].mean())) ** 2, rel=0.1)
    assert abs(found.bias_z) < 4


@pytest.mark.slow
def test_parts_add_up_to_the_variance_of_independent_gradients(key, toy):
    objective, params, data = toy
    found = noise_of(key, objective, params, data, monte_carlo(2)).parts
    assert sum(part.value for part in found[1:4]) == pytest.approx(found.total.value, rel=1e-9)

    @jax.vmap
    def gradient(key):
        row_key, noise_key = jax.random.split(key)
        rows = jax.random.choice(row_key, N, (B,), replace=False)
        batch = jax.tree.map(lambda y: y[rows], data)
        noise = objective.sample_noise(noise_key, B, draws=2)
        return jnp.hstack(jax.tree.leaves(objective.gradient(params, noise, batch)))

    direct = np.asarray(gradient(jax.random.split(key, 20_000)), float).var(0, ddof=1).sum()
    assert direct == pytest.approx(found.total.value, rel=0.05)


def test_a_shared_draw_is_all_main_effect_and_interaction(key, toy):
    objective, params, data = toy
    found = noise_of(key, objective, params, data, monte_carlo(shared=True)).leaves["slope"]
    b = np.asarray(data["b"], float)
    # One ε for the batch: its main effect no longer averages out over the examples.
    draws = (N * b.mean()) ** 2
    interaction = N**2 / B * (1 - B / N) * b.var(ddof=1)
    assert_matches(found.draws, draws, found.total.value)
    assert_matches(found.interaction, interaction, found.total.value)


@pytest.mark.slow
def test_the_whole_data_as_batch_has_no_noise_from_points(key, toy):
    objective, params, data = toy
    found = noise_of(key, objective, params, data, monte_carlo(), batch_size=N).parts
    assert abs(found.points.value) < 4 * found.points.standard_error
    assert found.points.standard_error < 0.05 * found.total.value


def test_variance_of_the_norm_equals_the_variance_when_the_sign_is_fixed(key, toy):
    objective, params, data = toy
    data = {**data, "a": data["a"] + 100.0, "c": jnp.zeros_like(data["c"])}
    found = noise_of(key, objective, params, data, monte_carlo())
    assert found.norm_variance.value == pytest.approx(found.parts.total.value, rel=1e-3)


def test_the_full_gradient_is_exact_up_to_its_standard_error(key, toy, monkeypatch):
    objective, params, data = toy
    monkeypatch.setattr(reference, "_CHUNK_NUMBERS", 15)  # 12 points as 5, 5 and 2
    regularised = objective._replace(regulariser=lambda p: 3.0 * p["slope"])
    one_sided = regularised._replace(noise=regularised.noise._replace(reflect=None))
    found = full_gradient(key, one_sided, params, data, seconds=0.2)
    exact = np.array([0.0, 0.0, N * float(data["a"].mean()) + 3.0])
    assert (np.abs(found.mean - exact) < 4.5 * found.standard_error).all()
    # One draw per point and pass: the variance of a pass is known as well.
    b = np.asarray(data["b"], float)
    expected = np.sqrt((b**2).sum() / found.passes)
    assert found.standard_error[2] == pytest.approx(expected, rel=0.2)
    np.testing.assert_allclose(found.groups.mean(0), found.mean, rtol=0.1, atol=1.0)
    pairs = full_gradient(key, regularised, params, data, seconds=0.01)  # cancel linear noise
    np.testing.assert_allclose(pairs.mean, exact, rtol=1e-5, atol=1e-4)


def test_a_small_bias_is_flagged(key, toy):
    objective, params, data = toy
    found = noise_of(key, objective, params, data, BIASED)
    assert found.bias_z > 4
    assert found.squared_bias == pytest.approx((0.1 * N * float(data["a"].mean())) ** 2, rel=0.3)


def test_the_state_is_frozen(key, toy):
    objective, params, data = toy
    found = noise_of(key, objective, params, data, COUNTING, state=jnp.full((), 7.0))
    truth = sum(sum(parts) for parts in analytic(data).values())
    assert_matches(found.parts.total, truth, truth)
    signal = N * float(data["a"].mean()) + 350.0
    assert found.squared_mean == pytest.approx(signal**2, rel=0.1)


def test_ceilings_are_those_of_the_noise_expansion(key):
    def loss(params, noise, example):
        # ε₁, ε₁² and ε₁ε₂ are uncorrelated, with variances 1, 2/4 and 1.
        return params * example["y"] * (noise[0] + noise[0] ** 2 / 2 + noise[0] * noise[1])

    data = {"y": 1.0 + jnp.arange(5.0)}
    objective = Objective(loss, quell.normal(2), 5)
    bases = default_bases(objective.noise)
    found = ceilings(key, objective, jnp.ones(()), data, bases=bases, seconds=0.5)
    linear, quadratic, cross = found.values()
    assert linear.value == pytest.approx(1.5 / 2.5, abs=4 * linear.standard_error)
    assert quadratic.value == pytest.approx(1.0 / 2.5, abs=4 * quadratic.standard_error)
    assert linear.standard_error < 0.05
    assert 0 <= cross.value < 1e-6


def test_a_basis_that_does_not_fit_is_not_available(key):
    objective = Objective(lambda p, e, y: p * e[0] * y["y"], laplace(1), 4)
    bases = {"hermite": quell.bases.hermite(2), "linear": quell.bases.linear()}
    data = {"y": jnp.ones(4)}
    found = ceilings(key, objective, jnp.ones(()), data, bases=bases, seconds=0.05)
    assert found["hermite"].startswith("not available: basis: expected a basis for the noise")
    assert found["linear"].value < 1e-6


def test_a_gradient_without_noise_is_no_trouble(key):
    objective = Objective(lambda p, e, y: p**2 * y["y"], quell.normal(1), 4)
    problem = (objective, jnp.ones(()), {"y": jnp.ones(4)})
    found = variance_components(
        key,
        *problem,
        monte_carlo().start(key, *problem),
        batch_size=2,
        state=(),
        metric=UNIT,
        reference=Reference(np.array([8.0]), np.zeros(1), 3, np.array([[8.0]])),
        seconds=0.1,
    )
    assert found.parts.total.value == 0
    assert found.bias_z < 4


def test_the_budget_ends_the_measurement(key, toy, monkeypatch):
    objective, params, data = toy
    clock = itertools.count()
    monkeypatch.setattr(variance.time, "monotonic", lambda: float(next(clock)))
    hasty = noise_of(key, objective, params, data, monte_carlo(), seconds=1.0, least=4)
    assert hasty.evaluations == 16 * variance._LEAST


@pytest.mark.slow
def test_a_measurement_prints_plots_and_saves(key, toy, tmp_path):
    objective, params, data = toy
    found = measure(
        key, objective, params, data, COUNTING, batch_size=B, warm_up=7, seconds=6.0,
        num_steps=20, bases=default_bases(objective.noise),
    )  # fmt: skip
    # The default state has learned for seven steps, and was then frozen.
    truth = sum(sum(parts) for parts in analytic(data).values())
    assert_matches(found.parts.total, truth, truth)
    signal = N * float(data["a"].mean()) + 350.0
    assert found.signal_to_noise == pytest.approx(signal**2 / truth, rel=0.1)
    assert found.seconds_per_step > 0
    assert found.ceilings["linear"].value < 1e-5
    assert not any("warm-up" in note for note in found.notes)

    text = str(found)
    for word in (
        "points",
        "draws",
        "interaction",
        "slope",
        "z-score",
        "time per step",
        "linear",
        "limits",
    ):
        assert word in text
    assert repr(found).startswith("Measurement(total=")
    assert "\n" not in repr(found)
    found.save(tmp_path / "found.json")
    loaded = json.loads((tmp_path / "found.json").read_text())
    assert loaded["parts"]["total"]["value"] == found.parts.total.value
    assert loaded["leaves"]["other"]["draws"]["high"] == found.leaves["other"].draws.high
    found.plot(tmp_path / "found.png")
    assert (tmp_path / "found.png").stat().st_size > 1000
    itself = found.ratio_to(found)
    assert itself.total.value == itself.norm_variance.value == 1.0
    assert itself.draws_given_points.low < 1.0 < itself.draws_given_points.high


def test_more_draws_divide_the_draws_and_leave_the_points(key, toy):
    objective, params, data = toy
    one = noise_of(key, objective, params, data, monte_carlo(1))
    four = noise_of(key, objective, params, data, monte_carlo(4))
    draws = four.parts.draws_given_points.value / one.parts.draws_given_points.value
    assert draws == pytest.approx(0.25, abs=0.03)
    assert four.parts.points.value == pytest.approx(one.parts.points.value, rel=0.1)


def test_bad_arguments_are_refused(key, toy):
    objective, params, data = toy
    arguments = (key, objective, params, data, monte_carlo())
    with pytest.raises(ValueError, match="batch_size"):
        measure(*arguments, batch_size=N + 1)
    with pytest.raises(ValueError, match="seconds"):
        measure(*arguments, batch_size=B, seconds=0.0)
    with pytest.raises(ValueError, match="num_data"):
        measure(key, objective._replace(num_data=5), *arguments[2:], batch_size=B)
    with pytest.raises(ValueError, match="order of arguments"):
        measure(key, params, objective, data, monte_carlo(), batch_size=B)
    with pytest.raises(ValueError, match="Call the factory"):
        measure(*arguments[:-1], monte_carlo, batch_size=B)  # pyright: ignore
    with pytest.raises(ValueError, match="state: expected a state of this estimator"):
        measure(*arguments, batch_size=B, state=jnp.zeros(3))
