"""Streams of mini-batch indices: pure functions of a key and a step, without a state to save.

A stream is any function `indices(key, step, num_steps, num_data, batch_size)` that returns the
indices of the batches `step, …, step + num_steps − 1`.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int, Int32, Key, UInt32

Batches = Callable[
    [Key[Array, ""], Int[Array, ""] | int, int, int, int], Int32[Array, "num_steps batch_size"]
]

_ROUNDS = 8  # four suffice with ideal round functions (Luby and Rackoff, 1988); `_mixed` is not


def reshuffle(
    key: Key[Array, ""],
    step: Int[Array, ""] | int,
    num_steps: int,
    num_data: int,
    batch_size: int,
) -> Int32[Array, "num_steps batch_size"]:
    """Indices by random reshuffling: every epoch visits every point once, in its own order.

    The epochs form one endless stream that is cut into batches of exactly `batch_size`, so a batch
    may hold the end of one epoch and the start of the next. There is no ragged tail: every index is
    uniform over the data, and N/|B| is the right scale for every batch. The cost of a batch does
    not depend on N, since each epoch's order is a permutation computed position by position.

    Args:
      key: the key from which all orders are drawn.
      step: the first step; may be traced.
      num_steps: the number of batches.
      num_data: N, below 2³¹.
      batch_size: |B|, at most N, with `num_steps · batch_size + num_data` below 2³².

    Returns:
      The indices of each batch.
    """
    N = jnp.uint32(num_data)
    epoch, offset = _epoch_and_offset(step, num_data, batch_size)
    t = offset + jnp.arange(num_steps * batch_size, dtype=jnp.uint32)
    indices = _permuted(key, epoch + t // N, t % N, num_data)
    return indices.astype(jnp.int32).reshape(num_steps, batch_size)


def with_replacement(
    key: Key[Array, ""],
    step: Int[Array, ""] | int,
    num_steps: int,
    num_data: int,
    batch_size: int,
) -> Int32[Array, "num_steps batch_size"]:
    """Indices drawn independently and uniformly; `reshuffle` explains the arguments."""
    steps = jnp.asarray(step, jnp.uint32) + jnp.arange(num_steps, dtype=jnp.uint32)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, steps)  # a step needs no step before it
    bits = jax.vmap(lambda k: jax.random.bits(k, (batch_size,), jnp.uint32))(keys)
    return _scaled(bits, num_data).astype(jnp.int32)


def _epoch_and_offset(
    step: Int[Array, ""] | int, num_data: int, batch_size: int
) -> tuple[UInt32[Array, ""], UInt32[Array, ""]]:
    """Quotient and remainder of step·|B| by N, without the product, which may overflow.

    Long division, one bit of `step` after the other: 64-bit integers are off by default in JAX.
    """
    step = jnp.asarray(step, jnp.uint32)
    N, B = jnp.uint32(num_data), jnp.uint32(batch_size)

    def carry(epoch, offset):
        over = offset >= N
        return epoch + over, jnp.where(over, offset - N, offset)  # keeps offset below N

    def add_bit(i, state):
        epoch, offset = state
        bit = (step >> (31 - i).astype(jnp.uint32)) & 1
        epoch, offset = carry(2 * epoch, 2 * offset)  # below 2N < 2³²: no overflow
        return carry(epoch, offset + bit * B)

    return lax.fori_loop(0, 32, add_bit, (jnp.uint32(0), jnp.uint32(0)))


def _permuted(
    key: Key[Array, ""],
    epoch: UInt32[Array, " T"],
    position: UInt32[Array, " T"],
    num_data: int,
) -> UInt32[Array, " T"]:
    """The index at each position of each epoch's order.

    A Feistel network permutes Z_a × Z_a, a = ⌈√N⌉. Positions that land outside 0 … N − 1 are sent
    through again until they land inside (Black and Rogaway, 2002), which stays a permutation. A
    share below 2/√N lands outside.
    """
    a = math.isqrt(num_data - 1) + 1  # the least square that holds N positions
    round_keys = jax.random.bits(key, (_ROUNDS + 1,), jnp.uint32)
    seed = _mixed(epoch + round_keys[0])  # mixed, so that epochs in a row are unrelated

    def one_round(i, halves):
        left, right = halves
        shifted = left + _scaled(_mixed(seed ^ (right + round_keys[i])), a)
        return right, jnp.where(shifted >= a, shifted - a, shifted)

    def walk(state):
        x, outside = state
        left, right = lax.fori_loop(1, _ROUNDS + 1, one_round, (x // a, x % a))
        x = jnp.where(outside, left * a + right, x)  # positions inside wait
        return x, x >= num_data

    everything = jnp.ones_like(position, bool)  # each walks at least once
    return lax.while_loop(lambda state: jnp.any(state[1]), walk, (position, everything))[0]


def _mixed(x: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """A bijection of 32-bit words in which every input bit affects every output bit."""
    # the multipliers of lowbias32 (C. Wellons, 2018), found by search for the least bias
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def _scaled(bits: UInt32[Array, "..."], a: int) -> UInt32[Array, "..."]:
    """⌊bits·a / 2³²⌋ in 32-bit arithmetic, a below 2³¹: uniform bits become uniform on 0 … a−1."""
    # schoolbook multiplication by halves of 16 bits, whose products fit into 32 bits
    low, high = bits & 0xFFFF, bits >> 16
    a_low, a_high = jnp.uint32(a & 0xFFFF), jnp.uint32(a >> 16)
    middle = high * a_low + ((low * a_low) >> 16)
    carry = (low * a_high + (middle & 0xFFFF)) >> 16
    return high * a_high + (middle >> 16) + carry
