"""The covariance of a gradient, which a crossed design splits into draws and points."""

import math
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Key, PyTree
from scipy import special

from quell import _tree
from quell._jit import quick_jit
from quell.diagnostics.designs import crossed
from quell.diagnostics.metric import Metric
from quell.diagnostics.reference import Reference
from quell.diagnostics.statistics import Interval, Parts, parts_from
from quell.estimators._types import Started, batch_of
from quell.objective import Objective

_M = 4  # batches in a block: few, so that the blocks, which give the intervals, are many
_K = 4  # keys in a block, each used with every batch
_LENGTH = 256  # the most blocks of one call
_LENGTH_ROWS = 2**16  # the most indices computed at once
_LEAST = 4  # the fewest blocks that give an interval
_FEW = 64  # the fewest blocks whose spread can be trusted
_MOST = 50_000  # the most blocks: the intervals are then narrow enough
_VISIT = 0.1  # seconds between looks at the clock
_NOISIER, _DOUBT = 1.05, 2.0  # so much noisier than plain, by so many standard errors, counts
_ROUNDING = 1e-6  # of a coordinate's own mean, and of the root mean square of all
_WIDTH_NUMBERS = 2**19  # the most numbers in the gradients of examples computed at once


class Coordinates(NamedTuple):
    """The variance of each coordinate of a gradient.

    Attributes:
      variance: the variances, `[P]`.
      standard_error: their standard errors, `[P]`.
      rounding: variances below these are rounding, `[P]`.
    """

    variance: Float[np.ndarray, " P"]
    standard_error: Float[np.ndarray, " P"]
    rounding: Float[np.ndarray, " P"]

    @property
    def summed_sd(self) -> float:
        """(Σᵢ sdᵢ)², the noise for an optimiser that divides by each coordinate's own scale."""
        return float(np.sqrt(np.maximum(self.variance, 0.0)).sum() ** 2)

    def noisier(self, plain: "Coordinates") -> float:
        """The share of coordinates that are noisier than those of `plain`, beyond all doubt."""
        error = np.hypot(self.standard_error, plain.standard_error)
        more = self.variance - _NOISIER * np.maximum(plain.variance, 0.0)
        return float(np.mean((more > _DOUBT * error) & (self.variance > self.rounding)))


class VarianceComponents(NamedTuple):
    """The noise of a gradient estimator, found by a crossed design.

    Attributes:
      parts: the parts of the trace of the covariance.
      nats: the parts of ½ tr(H⁻¹Σ) in the metric of `quell.diagnostics.metric`.
      coordinates: the variance of each coordinate.
      leaves: the parts of each leaf of the parameters, by its path.
      norm_variance: Var‖G‖, the variance of the gradient's norm.
      squared_mean: an unbiased estimate of ‖E[G]‖².
      bias_z: the distance of the mean from the reference, as a z-score.
      squared_bias: an unbiased estimate of ‖E[G] − ∇L‖², which may be below zero.
      evaluations: the number of gradients computed.
      compilation: the seconds that passed before the first of them.
    """

    parts: Parts
    nats: Parts
    coordinates: Coordinates
    leaves: dict[str, Parts]
    norm_variance: Interval
    squared_mean: float
    bias_z: float
    squared_bias: float
    evaluations: int
    compilation: float = 0.0


def variance_components(
    key: Key[Array, ""],
    objective: Objective,
    params: PyTree[Array],
    data: PyTree[Array],
    started: Started,
    *,
    batch_size: int,
    state: PyTree[Array],
    metric: Metric,
    reference: Reference,
    seconds: float,
    least: int = _LEAST,
    precise: float = 0.0,
) -> VarianceComponents:
    """Measure an estimator with its state frozen, by independent blocks of 4 batches × 4 keys.

    See `quell.measure` for the formulas.

    Args:
      key: the key for batches and noise.
      objective: L.
      params: θ.
      data: leaves `[N, ...]`.
      started: the estimator.
      batch_size: |B|.
      state: the state of the estimator.
      metric: H.
      reference: the gradient with which the mean is compared.
      seconds: the time to take, with compilation.
      least: the blocks that are run whatever the time.
      precise: the relative standard error of the noise in nats that ends the measurement early.
    """
    flat = _tree.flattener(None, params)
    N = objective.num_data
    length = max(1, min(_LENGTH, _LENGTH_ROWS // (_M * batch_size)))
    offset = jnp.asarray(reference.mean, jnp.result_type(float))  # differences keep their digits
    blocks = quick_jit(_blocks(objective, started, metric, flat, batch_size, length))

    def run(start, count):
        at = jax.random.fold_in(key, start)
        design = crossed(at, count, length, (_M, _K), N, batch_size)
        outputs = blocks(design, params, data, state, offset, count)
        return [np.asarray(output, np.float64) for output in jax.block_until_ready(outputs)]

    until = time.monotonic() + seconds
    run(0, 0)  # compiles
    tables, sums = [], np.zeros((4, flat.size))
    began, done, count = time.monotonic(), 0, 1
    compilation = began - (until - seconds)
    while done < least or (done < _MOST and time.monotonic() < until):
        table, moved = run(done, count)
        tables.append(table[:count])
        sums, done = sums + moved, done + count
        pace = int(_VISIT * done / max(time.monotonic() - began, 1e-9))
        count = max(1, min(length, pace))
        if precise and done >= _FEW and _is_precise(tables, precise):
            break
    found = _summary(np.concatenate(tables), sums, reference, flat)
    return found._replace(compilation=compilation)


def _blocks(objective, started: Started, metric: Metric, flat: _tree.Flattener, batch_size, length):
    """A function that runs the first `count` blocks of a design.

    The function returns a table `[length, leaves + 2, 3]` of (points, draws, interaction) for each
    leaf, for the norm and in nats; and the sums `[4, P]` over blocks of (block mean − offset), of
    its square, of the variance of each coordinate and of its square.
    """
    most = max(1, _WIDTH_NUMBERS // (batch_size * flat.size))
    width = max(w for w in (1, 2, 4, 8, 16) if w <= most)  # divides M K, so none is padded

    def run(design, params, data, state, offset, count):
        def gradients(indices, keys):
            def one(pair):
                m, k = pair
                batch = batch_of(data, indices[m])
                estimate = started.estimate(keys[k], objective, params, batch, state)
                return flat.flatten(estimate.gradient)

            pairs = jnp.divmod(jnp.arange(_M * _K), _K)
            return lax.map(one, pairs, batch_size=width).reshape(_M, _K, -1)

        def whiten(g):
            return flat.flatten(metric.whiten(params, flat.replace(params, g)))

        def body(i, carried):
            table, sums = carried
            G = gradients(*(part[i] for part in design))
            moved = G.mean((0, 1)) - offset
            centred = (G - G.mean((0, 1))).reshape(_M * _K, -1)
            white = jax.vmap(whiten)(centred).reshape(G.shape)
            row, variances = _crossed(G, white, flat.sizes)
            sums = sums + jnp.stack([moved, moved**2, variances, variances**2])
            return table.at[i].set(row), sums

        table = jnp.zeros((length, len(flat.sizes) + 2, 3), offset.dtype)
        sums = jnp.zeros((4, *offset.shape), offset.dtype)
        return lax.fori_loop(0, count, body, (table, sums))  # traced count: one compilation

    return run


def _is_precise(tables: list[np.ndarray], precise: float) -> bool:
    nats = parts_from(np.concatenate(tables)[:, -1]).total
    return nats.standard_error <= precise * nats.value


def _crossed(
    G: Float[Array, "M K P"], white: Float[Array, "M K P"], sizes: tuple[int, ...]
) -> tuple[Float[Array, "leaves_and_two 3"], Float[Array, " P"]]:
    """Unbiased (points, draws, interaction) from one block, and the variance of each coordinate.

    The rows are the leaves, the norm, and half of all whitened coordinates: the noise in nats.
    """
    P = G.shape[-1]
    norm = jnp.sqrt((G**2).sum(-1, keepdims=True))
    G = jnp.concatenate([G, norm, white * math.sqrt(0.5)], axis=-1)  # as if they were more leaves
    g = G - G.mean((0, 1))
    by_batch, by_key = g.mean(1, keepdims=True), g.mean(0, keepdims=True)
    rest = g - by_batch - by_key  # the interaction, as g is centred
    # Mean squares of the two-way table, over their degrees of freedom. Their expectations are
    # K Q + I, M D + I and I, hence the three parts below (random-effects analysis of variance).
    points = _K * (by_batch**2).sum((0, 1)) / (_M - 1)
    draws = _M * (by_key**2).sum((0, 1)) / (_K - 1)
    interaction = (rest**2).sum((0, 1)) / ((_M - 1) * (_K - 1))
    parts = jnp.stack([(points - interaction) / _K, (draws - interaction) / _M, interaction])
    return _tree.leaf_sums(parts, (*sizes, 1, P)).T, parts[:, :P].sum(0)


def nested_parts(G: Float[Array, "M K P"]) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Unbiased draws given points, and points, from M batches with K draws of their own each."""
    K = G.shape[1]
    within = G.var(axis=1, ddof=1).mean(0).sum()
    # The mean of K draws keeps a K-th of the variance within a batch.
    return within, G.mean(1).var(axis=0, ddof=1).sum() - within / K


def _summary(table, sums, reference: Reference, flat: _tree.Flattener) -> VarianceComponents:
    R = len(table)
    moved, moved_squares, variances, variance_squares = sums / R
    error = np.maximum(moved_squares - moved**2, 0.0) / (R - 1)
    spread = np.sqrt(np.maximum(variance_squares - variances**2, 0.0) / (R - 1))
    mean = reference.mean + moved  # sums were of differences from the reference
    rounding = (_ROUNDING * (np.abs(mean) + np.sqrt((mean**2).mean()))) ** 2
    return VarianceComponents(
        parts=parts_from(table[:, :-2].sum(1)),
        nats=parts_from(table[:, -1]),
        coordinates=Coordinates(variances, spread, rounding),
        leaves={name: parts_from(table[:, i]) for i, name in enumerate(flat.names)},
        norm_variance=parts_from(table[:, -2]).total,
        squared_mean=float(max((mean**2).sum() - error.sum(), 0.0)),
        bias_z=_bias_z(moved, np.sqrt(error), mean, reference, R),
        # a square of a mean exceeds the square of its expectation by the variance of the mean
        squared_bias=float((moved**2 - error - reference.standard_error**2).sum()),
        evaluations=R * _M * _K,
    )


def _bias_z(moved, standard_error, mean, reference: Reference, R: int) -> float:
    """The largest |z| of all P entries as one z-score, with Bonferroni's correction."""
    # Single precision bounds each mean to about five digits, however many blocks there are.
    rounding = 1e-5 * (np.abs(mean) + np.sqrt((mean**2).mean()) / 100) + np.finfo(float).tiny
    error = np.sqrt(standard_error**2 + reference.standard_error**2 + rounding**2)
    freedom = min(R, reference.passes) - 1 if reference.standard_error.any() else R - 1
    worst = float(np.max(np.abs(moved) / error))  # Student's t, not normal: R may be 4
    tail = 2 * len(moved) * special.stdtr(freedom, -worst)  # two-sided, times P tries
    return abs(float(special.ndtri(np.clip(tail, 1e-300, 1.0) / 2)))
