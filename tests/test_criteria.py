"""The three criteria: the paper's formulas, the variance they estimate, and their own noise."""

import jax
import jax.numpy as jnp
import pytest
from _exact import EXACT, SAME32, SAME64, expectation, max_error, nodes
from conformance import evidence_of

import quell
from quell import criteria

pytestmark = pytest.mark.usefixtures("quick")

CRITERIA = {
    "partial_gradients": criteria.partial_gradients,
    "gradient_sum": criteria.gradient_sum,
    "squared_difference": criteria.squared_difference,
}


def dense_variates(theta, h, w):
    """c_bᵀ w_b for every example and parameter `[B, P]`, from the whole c `[B, P, D]`."""
    D, H = w.shape[1], h.shape[1]
    c = jnp.einsum("dhp,bh->bpd", theta.reshape(D, H, -1), h)
    return jnp.einsum("bpd,bd->bp", c, w)


def dense(name, theta, h, evidence, shared=False):
    """The criteria as the paper writes them, sums over the batch of gradients that carry N/|B|."""
    B = evidence.w.shape[0]
    cw, g, G = dense_variates(theta, h, evidence.w) / B, evidence.per_example / B, evidence.total
    if name == "squared_difference":
        return ((G - cw.sum(0)) ** 2).sum()
    if shared:  # one draw for the batch: the cross terms between examples do not vanish
        return (cw.sum(0) ** 2 - 2 * G * cw.sum(0)).sum()
    target = g if name == "partial_gradients" else G
    return (cw**2 - 2 * target * cw).sum()


def random_case(key, B=5, D=3, H=4, P=6, shared=False):
    keys = jax.random.split(key, 4)
    w = jax.random.normal(keys[0], (1 if shared else B, D)) * jnp.ones((B, 1))
    rows = jax.random.normal(keys[1], (B, P))
    evidence = evidence_of(w, rows, shared=shared)
    return jax.random.normal(keys[2], (D * H, P)), jax.random.normal(keys[3], (B, H)), evidence


def compare_with_dense(key, name, shared, tolerance):
    theta, h, evidence = random_case(key, shared=shared)
    ours, paper = (
        jax.jit(jax.value_and_grad(value, argnums=(0, 1)))(theta, h)
        for value in (
            lambda t, h: CRITERIA[name].value(t, h, evidence),
            lambda t, h: dense(name, t, h, evidence, shared),
        )
    )
    assert max_error(ours, paper) < tolerance


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("name", CRITERIA)
def test_values_and_gradients_are_those_of_the_dense_formulas(key, name, shared):
    compare_with_dense(key, name, shared, SAME32)
    with jax.enable_x64(True):
        compare_with_dense(key, name, shared, SAME64)


def gradients(eps, slopes):
    """g_b(ε) `[B, P]` for one draw of the batch `[B, 1]`: curved in ε, different for each b."""
    return jnp.sin(slopes * eps) + slopes * eps + 0.3 * eps**2 + 1.0


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("name", CRITERIA)
def test_the_expected_criterion_is_the_variance_up_to_a_constant(x64, key, name, shared):
    """Exactly, for both kinds of noise: E[V(Θ₁)] − E[V(Θ₂)] = tr Var[G̃(Θ₁)] − tr Var[G̃(Θ₂)]."""
    B, P = 2, 3
    theta_key, h_key, slope_key = jax.random.split(key, 3)
    thetas = jax.random.normal(theta_key, (2, 4, P))
    h, slopes = jax.random.normal(h_key, (B, 2)), jax.random.normal(slope_key, (B, P))
    eps, weights = nodes(quell.normal(1), 7, count=1 if shared else B)

    def one(theta, draw):
        draw = jnp.broadcast_to(draw, (B, 1))
        w = jnp.concatenate([draw, draw**2 - 1], axis=1)
        rows = gradients(draw, slopes)
        evidence = evidence_of(w, rows, shared=shared)
        controlled = rows.mean(0) - dense_variates(theta, h, w).mean(0)
        return CRITERIA[name].value(theta, h, evidence), controlled

    def both(theta):
        values, controlled = jax.vmap(one, in_axes=(None, 0))(theta, eps)
        mean = expectation(controlled, weights)
        return expectation(values, weights), expectation((controlled - mean) ** 2, weights).sum()

    (value_1, variance_1), (value_2, variance_2) = both(thetas[0]), both(thetas[1])
    assert abs((value_1 - value_2) - (variance_1 - variance_2)) < EXACT
    assert abs(variance_1 - variance_2) > 0.1


def test_treating_a_shared_draw_as_many_would_be_seen(x64, key):
    """A negative control: the form for draws of their own is wrong for a shared one."""
    theta, h, evidence = random_case(key, shared=True)
    for name in ("partial_gradients", "gradient_sum"):
        wrong = CRITERIA[name].value(theta, h, evidence._replace(shared=False))
        assert abs(wrong - dense(name, theta, h, evidence, shared=True)) > 1e-2


@pytest.mark.parametrize("centred", [False, True], ids=["raw", "centred"])
@pytest.mark.parametrize("learned", [False, True], ids=["at_the_start", "once_learned"])
def test_partial_gradients_has_the_least_noise(key, learned, centred, record_property):
    """The variance of ∂V/∂Θ on the same draws, logistic-like gradients, batches of ten."""
    B, P, draws = 10, 3, 2000
    slope_key, eps_key = jax.random.split(key)
    slopes = jax.random.normal(slope_key, (B, P))
    eps = jax.random.normal(eps_key, (draws, B, 1))
    rows = jax.vmap(gradients, in_axes=(0, None))(eps, slopes)
    if centred:
        rows = rows - rows.mean((0, 1))
    best = (eps * rows).mean((0, 1))[None]
    theta, h = best if learned else jnp.zeros_like(best), jnp.ones((B, 1))

    def noise_of(criterion):
        def one(eps, rows):
            return jax.grad(criterion.value)(theta, h, evidence_of(eps, rows))

        return jax.vmap(one)(eps, rows).var(0).sum()

    noise = {name: float(noise_of(criterion)) for name, criterion in CRITERIA.items()}
    ratios = {name: value / noise["partial_gradients"] for name, value in noise.items()}
    print("variance of dV/dTheta relative to partial gradients:", ratios)
    record_property("variance_relative_to_partial_gradients", ratios)
    assert ratios["gradient_sum"] > 1.2
    assert ratios["squared_difference"] > 1.2
