"""Properties that hold for any shapes, pytrees and dtypes."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import quell
from quell import _tree, bases, coefficients
from quell.criteria import example_features, mean_features

pytestmark = pytest.mark.usefixtures("quick")

sizes = st.integers(1, 3)
shapes = st.lists(st.integers(1, 3), max_size=2).map(tuple)
trees = st.recursive(
    shapes, lambda inner: st.dictionaries(st.sampled_from("abc"), inner, min_size=1), max_leaves=4
)
dtypes = st.sampled_from([np.float16, np.float32])
seeds = st.integers(0, 1000)


def is_shape(node):
    return isinstance(node, tuple)


def filled(tree, seed=0, dtype=np.float32, lead=()):
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda s: rng.normal(size=(*lead, *s)).astype(dtype), tree, is_leaf=is_shape
    )


@given(trees, dtypes)
def test_flattening_and_putting_back_is_the_identity(tree, dtype):
    params = filled(tree, dtype=dtype)
    flat = _tree.flattener(None, params)
    vector = flat.flatten(params)
    assert vector.shape == (flat.size,)
    back = flat.replace(jax.tree.map(np.zeros_like, params), vector)
    assert jax.tree.all(
        jax.tree.map(lambda a, b: (a == b).all() and a.dtype == b.dtype, params, back)
    )


@given(trees, seeds)
def test_chosen_leaves_change_and_the_rest_do_not(tree, seed):
    params = filled(tree)
    names = _tree.paths(params)
    picks = set(np.random.default_rng(seed).choice(names, max(1, len(names) // 2), replace=False))
    flat = _tree.flattener(lambda path: path in picks, params)
    moved = flat.replace(params, flat.flatten(params) + 1)
    for name, old, new in zip(names, jax.tree.leaves(params), jax.tree.leaves(moved), strict=True):
        assert np.allclose(new - old, 1.0 if name in picks else 0.0, atol=1e-5)


@given(sizes, sizes, sizes, seeds)
def test_mean_features_are_the_mean_of_the_features(B, D, H, seed):
    w, h = filled([(B, D), (B, H)], seed)
    outer = np.einsum("bd,bh->bdh", w, h).reshape(B, -1)
    every, mean = jax.jit(lambda w, h: (example_features(w, h), mean_features(w, h)))(w, h)
    assert np.allclose(every, outer, atol=1e-5)
    assert np.allclose(mean, outer.mean(0), atol=1e-5)


@given(trees, sizes, sizes)
def test_noise_of_any_shape_is_drawn_standardised_and_seen_by_a_basis(tree, S, B):
    noise = quell.normal(tree)
    draws = jax.eval_shape(lambda key: noise.sample(key, (S, B)), jax.random.key(0))
    got = [leaf.shape for leaf in jax.tree.leaves(draws)]
    assert got == [(S, B, *s) for s in jax.tree.leaves(tree, is_leaf=is_shape)]
    one = filled(noise.shape)
    flat = np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(one)])
    w = jax.jit(lambda e: bases.polynomial(2).apply(noise, e, None, None))(one)
    assert np.allclose(w, np.concatenate([flat, flat**2 - 1]), atol=1e-5)


@given(trees, shapes, sizes, sizes, st.booleans(), dtypes, seeds)
def test_a_control_variate_keeps_structure_shapes_and_dtypes(
    params, noise, S, B, shared, dtype, seed
):
    """And its first correction, with a fixed coefficient, is the one worked out by hand."""
    params = filled(params, seed, dtype)
    noise = quell.normal(noise)
    objective, data = quell.Objective(lambda params, eps, y: y, noise, num_data=B), np.ones(B)
    control = quell.control_variate(
        jax.random.key(seed), objective, params, data, coefficients.fixed(0.5)
    )
    draws = filled(noise.shape, seed, lead=(S, 1 if shared else B))
    state = control.init(params)
    controlled, after = jax.jit(control.update)(params, state, params, noise=draws, batch=data)
    by_hand = 0.5 * draws.reshape(-1, noise.size).mean(0).sum()
    for old, new in zip(jax.tree.leaves(params), jax.tree.leaves(controlled), strict=True):
        assert (new.shape, new.dtype) == (old.shape, dtype)
        assert np.allclose(np.float32(old) - np.float32(new), by_hand, atol=2e-2)
    assert jax.tree.structure(after) == jax.tree.structure(state)
