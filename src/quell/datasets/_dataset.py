"""The type of every data set: a training part, a test part, and the scaling of both."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from quell._errors import invalid


class Dataset(NamedTuple):
    """A table split into a training part (N rows) and a test part (T rows, none by default).

    Attributes:
      name: the name of the data set.
      x: training inputs `[N, d]`.
      y: training targets `[N]`: numbers, 0.0 and 1.0 for two classes, or class indices (ints).
      x_test: test inputs `[T, d]`, standardised by the training part.
      y_test: test targets `[T]`, standardised by the training part.
      features: the d names of the inputs.
      classes: the names of the classes, in the order of their codes; empty for regression.
      x_mean, x_scale: x = (raw input − x_mean) / x_scale, `[d]` each.
      y_mean, y_scale: the same scaling of the target; 0 and 1 for classes.
    """

    name: str
    x: Float[Array, "N d"]
    y: Shaped[Array, " N"]
    x_test: Float[Array, "T d"]
    y_test: Shaped[Array, " T"]
    features: tuple[str, ...]
    classes: tuple[str, ...]
    x_mean: Float[Array, " d"]
    x_scale: Float[Array, " d"]
    y_mean: float
    y_scale: float

    @property
    def data(self) -> dict[str, Array]:
        """The training part as the pytree that objectives take: leaves `[N, ...]`."""
        return {"x": self.x, "y": self.y}

    @property
    def test(self) -> dict[str, Array]:
        """The test part as the same pytree: leaves `[T, ...]`."""
        return {"x": self.x_test, "y": self.y_test}

    @property
    def num_data(self) -> int:
        """N, the number of training rows."""
        return self.x.shape[0]

    @property
    def dim(self) -> int:
        """d, the number of input columns."""
        return self.x.shape[1]

    def with_bias(self) -> "Dataset":
        """The same data with a last input column of ones."""

        def append(x, value):
            return jnp.concatenate([x, jnp.full((*x.shape[:-1], 1), value, x.dtype)], -1)

        return self._replace(
            x=append(self.x, 1.0),
            x_test=append(self.x_test, 1.0),
            features=(*self.features, "bias"),
            x_mean=append(self.x_mean, 0.0),
            x_scale=append(self.x_scale, 1.0),
        )


def from_arrays(
    name: str,
    x: np.ndarray,
    y: np.ndarray,
    features: tuple[str, ...],
    classes: tuple[str, ...] = (),
    *,
    test_fraction: float = 0.0,
    seed: int | None = None,
    x_scaling: tuple[float, float] | None = None,
) -> Dataset:
    """Split raw rows into a data set whose parts are both standardised by the training part.

    Args:
      x: raw inputs `[N + T, d]`.
      y: raw targets `[N + T]`; standardised unless there are `classes`.
      test_fraction: the share of rows held out, chosen by a permutation.
      seed: the seed of the permutation, required with a `test_fraction`.
      x_scaling: one fixed (mean, scale) for all inputs in place of standardisation.
    """
    train, held_out = _split(x.shape[0], test_fraction, seed)
    if x_scaling is None:
        x_mean, x_scale = x[train].mean(0), _deviation(x[train])
    else:
        x_mean, x_scale = (np.full(x.shape[1], value) for value in x_scaling)
    y_mean, y_scale = (0.0, 1.0) if classes else (y[train].mean(), float(_deviation(y[train])))

    def inputs(rows):
        return jnp.asarray((x[rows] - x_mean) / x_scale, float)

    def targets(rows):
        if len(classes) > 2:
            return jnp.asarray(y[rows], int)
        return jnp.asarray((y[rows] - y_mean) / y_scale, float)

    return Dataset(
        name=name,
        x=inputs(train),
        y=targets(train),
        x_test=inputs(held_out),
        y_test=targets(held_out),
        features=tuple(features),
        classes=tuple(classes),
        x_mean=jnp.asarray(x_mean, float),
        x_scale=jnp.asarray(x_scale, float),
        y_mean=float(y_mean),
        y_scale=float(y_scale),
    )


def _split(rows: int, test_fraction: float, seed: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Row indices of the training and test parts; in file order if nothing is held out."""
    if test_fraction == 0:
        return np.arange(rows), np.arange(0)
    if not 0 < test_fraction < 1:
        raise invalid(
            "test_fraction",
            expected="a number in [0, 1)",
            got=test_fraction,
            advice="For example 0.1 to hold out a tenth of the rows.",
        )
    if seed is None:
        raise invalid(
            "seed",
            expected="an int if test_fraction is given",
            got=seed,
            advice="For example seed=0; the same seed gives the same split.",
        )
    num_test = round(rows * test_fraction)
    if not 0 < num_test < rows:
        raise invalid(
            "test_fraction",
            expected=f"at least one row of {rows} on each side",
            got=test_fraction,
            advice="Choose a fraction nearer to one half.",
        )
    order = np.random.default_rng(seed).permutation(rows)
    return np.sort(order[num_test:]), np.sort(order[:num_test])  # rows keep the order of the file


def _deviation(values: np.ndarray) -> np.ndarray:
    """The standard deviation of each column; 1 for a column that is constant."""
    deviation = values.std(0)
    return np.where(deviation > 1e-12 * (1 + np.abs(values).max(0)), deviation, 1.0)  # rounding
