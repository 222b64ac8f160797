"""Mini-batch streams: permutations, uniform, resumable, and right far beyond 32 bits."""

import zlib

import jax
import numpy as np
import pytest
from scipy import stats

from quell.training.batches import _epoch_and_offset, reshuffle, with_replacement

pytestmark = pytest.mark.usefixtures("quick")

STREAMS = [reshuffle, with_replacement]


def key_of(name):
    return jax.random.key(zlib.crc32(name.encode()))


@pytest.mark.parametrize(
    ("N", "B"),
    [
        (1, 1), (2, 1), (2, 2), (3, 2), (5, 3), (5, 5), (7, 4), (10, 10), (64, 10), (65, 10),
        (97, 10), (101, 101), (1009, 7), (2201, 10), (10_007, 500),
    ],
)  # fmt: skip
def test_every_epoch_is_a_permutation(N, B):
    steps = 3 * N // B + 1
    indices = np.asarray(reshuffle(key_of("permutation"), 0, steps, N, B))
    assert indices.shape == (steps, B)
    assert indices.dtype == np.int32
    for epoch in indices.reshape(-1)[: 3 * N].reshape(3, N):
        assert sorted(epoch) == list(range(N))


def test_epochs_and_keys_have_orders_of_their_own():
    N, B = 1009, 1009
    one = np.asarray(reshuffle(key_of("one"), 0, 4, N, B))
    other = np.asarray(reshuffle(key_of("other"), 0, 4, N, B))
    orders = [*one, *other, np.arange(N)]
    for i in range(len(orders)):
        for j in range(i):
            agreements = np.sum(orders[i] == orders[j])  # Poisson(1) for two random orders
            assert agreements < 10


@pytest.mark.parametrize("N", [2, 3, 4])
def test_every_order_of_a_few_points_is_equally_likely(N):
    epochs = 20_000
    orders = np.asarray(reshuffle(key_of("orders"), 0, epochs, N, N))
    codes = orders @ (N ** np.arange(N))
    counts = np.unique(codes, return_counts=True)[1]
    assert len(counts) == np.prod(np.arange(1, N + 1))
    assert stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize("N", [10, 26, 37])
def test_positions_and_neighbouring_pairs_are_uniform(N):
    epochs = 20_000
    orders = np.asarray(reshuffle(key_of("uniform"), 0, epochs, N, N))
    for position in (0, 1, N // 2, N - 1):
        assert stats.chisquare(np.bincount(orders[:, position], minlength=N)).pvalue > 1e-4
    for i, j in ((0, 1), (0, N - 1), (N // 2, N // 2 + 1)):
        pairs = np.bincount(orders[:, i] * N + orders[:, j], minlength=N * N).reshape(N, N)
        assert np.trace(pairs) == 0
        assert stats.chisquare(pairs[~np.eye(N, dtype=bool)]).pvalue > 1e-4


def test_an_index_in_one_epoch_says_nothing_of_the_next():
    N, epochs = 10, 20_001
    orders = np.asarray(reshuffle(key_of("successive"), 0, epochs, N, N))
    pairs = np.bincount(orders[:-1, 3] * N + orders[1:, 3], minlength=N * N)
    assert stats.chisquare(pairs).pvalue > 1e-4


@pytest.mark.parametrize("keys", [20_000])
def test_an_index_is_uniform_over_keys(keys):
    N, B = 23, 2
    firsts = jax.vmap(lambda k: reshuffle(k, 5, 1, N, B))(
        jax.random.split(key_of("over keys"), keys)
    )
    assert stats.chisquare(np.bincount(np.asarray(firsts)[:, 0, 1], minlength=N)).pvalue > 1e-4


def test_with_replacement_is_uniform_and_independent():
    N = 13
    indices = np.asarray(with_replacement(key_of("replacement"), 0, 20_000, N, 3))
    assert stats.chisquare(np.bincount(indices.reshape(-1), minlength=N)).pvalue > 1e-4
    pairs = np.bincount(indices[:, 0] * N + indices[:, 1], minlength=N * N)
    assert stats.chisquare(pairs).pvalue > 1e-4


@pytest.mark.parametrize("stream", STREAMS)
def test_a_stream_resumes_at_any_step(stream):
    N, B = 101, 7
    key = key_of("resume")
    whole = np.asarray(stream(key, 0, 200, N, B))
    part = jax.jit(stream, static_argnums=(2, 3, 4))
    for step in (0, 1, 14, 15, 77, 199):
        np.testing.assert_array_equal(part(key, step, 1, N, B), whole[step : step + 1])
    np.testing.assert_array_equal(part(key, 13, 50, N, B), whole[13:63])


@pytest.mark.parametrize(
    ("step", "N", "B"),
    [(0, 1, 1), (123, 7, 3), (2**31 - 1, 10_000_019, 9999), (2**31 - 1, 2**31 - 1, 2**31 - 2)],
)
def test_epoch_and_offset_do_not_overflow(step, N, B):
    epoch, offset = _epoch_and_offset(step, N, B)
    assert (int(epoch) % 2**32, int(offset)) == (step * B // N % 2**32, step * B % N)


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("N", [10_000_019, 2**31 - 1])
def test_indices_of_large_data_are_in_range_and_spread(stream, N):
    indices = np.asarray(stream(key_of("large"), 2**30, 1000, N, 10)).reshape(-1)
    assert indices.min() >= 0
    assert indices.max() < N
    assert stats.kstest(indices / N, "uniform").pvalue > 1e-4
