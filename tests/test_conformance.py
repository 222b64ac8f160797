"""Every basis and every coefficient model goes through the same checks.

Unbiasedness of every combination is in test_unbiased.py.
"""

import jax
import jax.numpy as jnp
import pytest
from _exact import EXACT, SAME32, SAME64, expectation, max_error, nodes
from conformance import (
    BASES,
    BATCH,
    COEFFICIENTS,
    DIM,
    control_for,
    dtypes,
    problem,
    save_and_restore,
    take,
    trace_counting_step,
)

from quell import bases, coefficients, criteria
from quell.control_variate import apply_then_learn, started_control
from quell.types import Basis, Coefficients

pytestmark = pytest.mark.usefixtures("quick")

ROWS = [
    *(pytest.param(make, COEFFICIENTS["context_free"], id=name) for name, make in BASES.items()),
    *(pytest.param(BASES["polynomial"], make, id=name) for name, make in COEFFICIENTS.items()),
]
every_row = pytest.mark.parametrize(("basis", "model"), ROWS)


def case(key, basis, model, dtype=float):
    objective, params, data = problem(key)
    params = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
    parts = (basis(), model(), criteria.partial_gradients)
    control = control_for(key, objective, params, data, *parts)
    batch = take(data, slice(0, BATCH))
    return objective, params, batch, control, objective.sample_noise(key, BATCH)


@pytest.mark.parametrize("name", BASES)
def test_bases_have_mean_zero(x64, key, name):
    objective, params, data = problem(key)
    eps, weights = nodes(objective.noise, 4)
    example = take(data, 0)
    w = jax.vmap(lambda e: BASES[name]().apply(objective.noise, e, params, example))(eps[:, 0])
    assert jnp.abs(expectation(w, weights)).max() < EXACT
    assert jnp.all(expectation(w**2, weights) > 1e-3)


@every_row
def test_one_trace_serves_a_thousand_steps_and_a_restored_state(key, basis, model, tmp_path):
    objective, params, batch, control, noise = case(key, basis, model)
    step, traces = trace_counting_step(objective, control)
    state = control.init(params)
    for _ in range(1000):
        gradient, state = step(params, state, noise, batch)
    assert jax.tree.all(jax.tree.map(lambda leaf: jnp.isfinite(leaf).all(), (gradient, state)))
    restored = save_and_restore(state, tmp_path / "state.npz")
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    assert max_error(step(params, restored, noise, batch), step(params, state, noise, batch)) == 0.0
    assert len(traces) == 1


def keeps_dtypes(key, basis, model, dtype):
    objective, params, batch, control, noise = case(key, basis, model, dtype)
    step, _ = trace_counting_step(objective, control)
    state = control.init(params)
    gradient, after = jax.eval_shape(step, params, state, noise, batch)
    assert dtypes(gradient) == dtypes(params)
    assert dtypes(after) == dtypes(state)
    assert dtype in jax.tree.leaves(dtypes(state))


@every_row
def test_dtypes_are_those_of_the_parameters(key, basis, model):
    keeps_dtypes(key, basis, model, jnp.float32)
    with jax.enable_x64(True):
        keeps_dtypes(key, basis, model, jnp.float64)
        keeps_dtypes(key, basis, model, jnp.float32)


@every_row
def test_vmap_over_seeds_changes_nothing(x64, key, basis, model):
    objective, params, data = problem(key)
    batch, noise = take(data, slice(0, BATCH)), objective.sample_noise(key, BATCH)
    parts = (model(), basis(), criteria.partial_gradients, None, apply_then_learn)
    control = started_control(key, objective, params, data, *parts)
    step, _ = trace_counting_step(objective, control)
    init = jax.jit(control.init)
    keys = jax.random.split(key, 2)
    steps = jax.jit(jax.vmap(step, in_axes=(None, 0, None, None)))
    together = jax.vmap(init)(keys)
    alone = [init(k) for k in keys]
    for scale in (1.0, 0.5):
        gradients, together = steps(params, together, scale * noise, batch)
        alone = [step(params, state, scale * noise, batch) for state in alone]
        assert max_error((take(gradients, 1), take(together, 1)), alone[1]) < SAME64
        alone = [state for _, state in alone]


@every_row
def test_bad_shapes_are_refused_with_advice(key, basis, model):
    _, params, batch, control, noise = case(key, basis, model)
    state, gradient = control.init(params), params
    examples = jax.tree.map(lambda leaf: jnp.zeros((BATCH, *leaf.shape)), params)
    good = {"noise": noise, "batch": batch, "per_example": examples}
    wrong = {
        "noise": jnp.zeros((1, BATCH, DIM + 1)),
        "batch": jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf[:1]]), batch),
        "per_example": jax.tree.map(lambda leaf: leaf[:, :1], examples),
    }
    for argument, value in wrong.items():
        with pytest.raises(ValueError, match=r"expected .*, got .*\. \w+"):
            jax.eval_shape(
                lambda s, argument=argument, value=value: control.update(
                    gradient, s, params, **{**good, argument: value}
                ),
                state,
            )


def test_the_tables_name_every_factory():
    """A new basis or coefficient model that has no row is found."""

    def factories(module, kind):
        made = {n: f for n, f in vars(module).items() if callable(f) and n[0] != "_"}
        return {
            n for n, f in made.items() if getattr(f, "__annotations__", {}).get("return") is kind
        }

    assert factories(bases, Basis) - set(BASES) == {"no_basis"}
    assert factories(coefficients, Coefficients) - set(COEFFICIENTS) == set()


def test_float32_and_float64_agree(key):
    def run():
        objective, params, batch, control, noise = case(
            key, BASES["polynomial"], COEFFICIENTS["running_average"]
        )
        noise = jnp.array([[[0.3, -1.2], [0.8, 0.1]]])
        params = {"mean": jnp.array([0.5, -0.2]), "scale": jnp.array([-0.3, -0.4])}
        batch = {"x": jnp.array([[1.0, 2.0], [-0.5, 0.3]]), "y": jnp.array([1.0, -1.0])}
        step, _ = trace_counting_step(objective, control)
        state = control.init(params)
        for scale in (1.0, 0.5, -0.7):
            gradient, state = step(params, state, scale * noise, batch)
        return gradient

    single = run()
    with jax.enable_x64(True):
        assert max_error(jax.tree.map(jnp.float64, single), run()) < 10 * SAME32
