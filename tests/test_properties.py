"""Properties that hold for any shapes, pytrees and dtypes.

The short run draws a few cases of each; `make properties` draws thousands.
"""

import warnings
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import quell
from quell import _tree, bases, coefficients, criteria, noise
from quell import estimators as est
from quell.criteria import example_features, mean_features
from quell.estimators._types import batch_of
from quell.training import checkpoint
from quell.training.batches import reshuffle, with_replacement
from quell.training.checkpoint import in_directory
from quell.training.identity import _WORDS, differences

pytestmark = pytest.mark.usefixtures("quick")


def compiled(test):
    """A property that compiles or traces for every case, which takes a hundred times as long."""
    fewer = settings(max_examples=max(3, settings().max_examples // 10))
    return pytest.mark.compiled(fewer(test))


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


@compiled
@given(sizes, sizes, sizes, seeds)
def test_mean_features_are_the_mean_of_the_features(B, D, H, seed):
    w, h = filled([(B, D), (B, H)], seed)
    outer = np.einsum("bd,bh->bdh", w, h).reshape(B, -1)
    every, mean = jax.jit(lambda w, h: (example_features(w, h), mean_features(w, h)))(w, h)
    assert np.allclose(every, outer, atol=1e-5)
    assert np.allclose(mean, outer.mean(0), atol=1e-5)


@compiled
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


@compiled
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


def toy_loss(params, eps, example):
    """Curved in everything: a product of squashed parameters, draws and data."""
    flat = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(params)])
    draw = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(eps)])
    return (jnp.tanh(flat) * (1 + example["x"].mean())).sum() * jnp.sin(draw + 1).sum()


def toy(params, shape, family, num_data, width, seed, dtype):
    """An objective over any parameters and any noise, with its data."""
    data = {"x": filled((width,), seed, lead=(num_data,)), "group": np.arange(num_data) % 2}
    objective = quell.Objective(toy_loss, family(shape), num_data)
    return objective, filled(params, seed, dtype), jax.tree.map(jnp.asarray, data)


families = st.sampled_from([noise.normal, noise.uniform, noise.laplace])
any_basis = st.sampled_from(
    [bases.linear, lambda: bases.polynomial(2), lambda: bases.polynomial(3)]
)
any_coefficients = st.sampled_from(
    [
        lambda: coefficients.fixed(0.5),
        lambda: coefficients.running_average(0.9),
        lambda: coefficients.context_free(optax.adam(0.1)),
        lambda: coefficients.recognition_network((2,), optax.adam(0.1)),
        lambda: coefficients.least_squares(every=1),
    ]
)
any_criterion = st.sampled_from(
    [criteria.partial_gradients, criteria.gradient_sum, criteria.squared_difference]
)
samplings = st.one_of(
    st.integers(1, 3).map(est.monte_carlo),
    st.sampled_from([2, 4]).map(est.antithetic),
    st.sampled_from([1, 2, 4]).map(est.quasi_monte_carlo),
)
wide_dtypes = st.sampled_from([np.float16, np.float32, jnp.bfloat16])


def described(tree):
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)


def assert_keeps_everything(estimator, objective, params, data, batch_size, seed):
    """Gradients are like params, states stay of their type, values are scalars."""
    key = jax.random.key(seed)
    started = estimator.start(key, objective, params, data)
    state = jax.eval_shape(started.init, key, params)
    batch = batch_of(data, jnp.arange(batch_size))
    found = jax.eval_shape(
        lambda p, s: started.estimate(key, objective, p, batch, s), params, state
    )
    assert described(found.gradient) == described(params)
    assert described(found.state) == described(state)
    assert found.value.shape == ()
    if started.refresh:
        args = key, objective, params, data, batch_size
        assert described(
            jax.eval_shape(lambda s: started.refresh.run(*args, s), state)
        ) == described(state)


@compiled
@given(trees, trees, families, samplings, sizes, sizes, wide_dtypes, seeds)
def test_draws_of_any_kind_and_number_give_gradients_like_the_params(
    params, shape, family, sampling, B, width, dtype, seed
):
    objective, params, data = toy(params, shape, family, B + 2, width, seed, dtype)
    assert_keeps_everything(sampling, objective, params, data, B, seed)


@compiled
@given(trees, trees, families, samplings, sizes, sizes, seeds)
def test_the_closed_form_of_any_problem_keeps_its_types(
    params, shape, family, sampling, B, width, seed
):
    objective, params, data = toy(params, shape, family, B + 2, width, seed, np.float32)
    assert_keeps_everything(quell.closed_form(sampling=sampling), objective, params, data, B, seed)


@compiled
@given(trees, trees, families, samplings, sizes, st.sampled_from([est.svrg, est.taylor]), seeds)
def test_wrappers_of_any_problem_keep_its_types(params, shape, family, sampling, B, wrapper, seed):
    objective, params, data = toy(params, shape, family, B + 2, 2, seed, np.float32)
    assert_keeps_everything(wrapper(sampling), objective, params, data, B, seed)


@compiled
@given(trees, shapes, families, samplings, any_basis, any_coefficients, any_criterion, seeds)
def test_control_variates_of_any_make_keep_the_types(
    params, shape, family, sampling, basis, model, criterion, seed
):
    objective, params, data = toy(params, shape, family, 4, 2, seed, np.float32)
    control = est.controlled(model(), basis=basis(), criterion=criterion, sampling=sampling)
    assert_keeps_everything(control, objective, params, data, 2, seed)


@compiled
@given(trees, shapes, sizes, st.sampled_from([2, 4, 6]), seeds)
def test_pairs_cancel_whatever_is_odd_in_the_noise(params, shape, B, draws, seed):
    def odd(params, eps, example):
        total = sum(leaf.sum() for leaf in jax.tree.leaves(params))
        return total * (example + eps.sum() + (eps**3).sum())

    params, data = filled(params, seed), jnp.asarray(filled((), seed, lead=(B,)))
    objective = quell.Objective(odd, quell.normal(shape), B)
    started = est.antithetic(draws).start(jax.random.key(seed), objective, params, data)
    batch = batch_of(data, jnp.arange(B))
    found = started.estimate(jax.random.key(seed), objective, params, batch, ())
    for leaf in jax.tree.leaves(found.gradient):
        assert np.allclose(leaf, data.sum(), atol=1e-3)


@cache
def batches_of(stream, N, B):
    return jax.jit(lambda key, step: stream(key, step, 2 * N, N, B))


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**31 - 1), seeds)
def test_every_epoch_visits_every_point_once(N, B, step, seed):
    assume(B <= N)
    epochs_before = -(-step * B // N) * N - step * B  # indices until the next epoch begins
    found = np.ravel(batches_of(reshuffle, N, B)(jax.random.key(seed), np.uint32(step)))
    for begin in range(epochs_before, len(found) - N + 1, N):
        assert sorted(found[begin : begin + N]) == list(range(N))
    drawn = batches_of(with_replacement, N, B)(jax.random.key(seed), np.uint32(step))
    assert drawn.shape == (2 * N, B)
    assert ((drawn >= 0) & (drawn < N)).all()


NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(8)


@compiled
@given(sizes, sizes, st.booleans(), st.booleans(), seeds)
def test_hermite_functions_are_orthonormal_for_any_gaussian(D, order, cross, odd, seed):
    assume(odd or order > 1)
    rng = np.random.default_rng(seed)
    lower = np.tril(rng.normal(size=(D, D))) + 2 * np.eye(D)
    mean = rng.normal(size=D).astype(np.float32)
    family = noise.normal(D, mean=mean, covariance=(lower @ lower.T).astype(np.float32))
    grid = np.stack(np.meshgrid(*[NODES] * D, indexing="ij"), -1).reshape(-1, D)
    weights = np.stack(np.meshgrid(*[WEIGHTS] * D, indexing="ij"), -1).reshape(-1, D).prod(-1)
    weights /= weights.sum()
    draws = (mean + grid @ lower.T).astype(np.float32)
    basis = bases.hermite(order, cross=cross, odd=odd)
    w = np.float64(jax.vmap(lambda e: basis.apply(family, e, None, None))(draws))
    scale = 1 + np.abs(w).max() ** 2
    assert np.abs(weights @ w).max() < 1e-4 * scale
    assert np.abs((w.T * weights) @ w - np.eye(w.shape[1])).max() < 1e-4 * scale


stored = st.sampled_from([np.float32, np.float16, np.int8, np.uint32, np.bool_, jnp.bfloat16])
some_shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
leaves = st.lists(st.tuples(some_shapes, stored, seeds), min_size=1, max_size=4)
IDENTITY = dict.fromkeys(_WORDS, "the same")


def leaf_of(shape, dtype, seed):
    return (100 * np.random.default_rng(seed).normal(size=shape)).astype(dtype)


@pytest.fixture(scope="module")
def unsynced():
    """Thousands of files need not reach the disk itself."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(checkpoint.os, "fsync", lambda descriptor: None)
        yield


@given(leaves, leaves, st.sampled_from(["arrays.npz", "manifest.json", "SHA256SUMS"]), st.data())
def test_checkpoints_of_any_arrays_come_back_and_any_flipped_bit_is_noticed(
    unsynced, tmp_path_factory, before, after, name, data
):
    directory = tmp_path_factory.mktemp("run")
    early = {str(i): leaf_of(*each) for i, each in enumerate(before)}
    late = {"key": jax.random.key(len(after)), "a": [leaf_of(*each) for each in after]}
    with in_directory(directory, IDENTITY) as opened:
        assert opened.save(1, early)
        assert opened.save(2, late)
    with in_directory(directory, IDENTITY) as opened:
        back = opened.restore(late)
    assert back["key"] == late["key"]
    for a, b in zip(late["a"], back["a"], strict=True):
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())

    content = bytearray((directory / "2" / name).read_bytes())
    place = data.draw(st.integers(0, 8 * len(content) - 1))
    content[place // 8] ^= 1 << place % 8
    (directory / "2" / name).write_bytes(content)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with in_directory(directory, IDENTITY) as opened:
            assert opened.latest == 1
            back = opened.restore(early)
    assert [w for w in told if f"{directory / '2'}" in str(w.message)]
    assert all(early[k].tobytes() == back[k].tobytes() for k in early)


@given(leaves, seeds)
def test_one_changed_number_is_other_data(many, seed):
    """And the same data in other arrays is the same."""
    from quell.training.identity import _fingerprint

    data = [leaf_of(*each) for each in many]
    facts = IDENTITY | {"data": _fingerprint(data)}
    assert differences(facts, IDENTITY | {"data": _fingerprint([np.copy(a) for a in data])}) == []
    assume(any(leaf.size for leaf in data))
    chance = np.random.default_rng(seed)
    leaf = chance.choice([i for i, leaf in enumerate(data) if leaf.size])
    changed = np.copy(data[leaf])
    place = chance.integers(changed.size)
    changed.reshape(-1).view(np.uint8)[place * changed.itemsize] ^= 1
    data[leaf] = changed
    assert differences(facts, IDENTITY | {"data": _fingerprint(data)}) == ["other data"]
