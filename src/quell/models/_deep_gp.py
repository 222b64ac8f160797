"""The doubly stochastic deep Gaussian process of Salimbeni & Deisenroth (2017)."""

import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Key
from scipy.cluster.vq import kmeans2

from quell._arguments import KEY, checked
from quell._errors import invalid
from quell.models._gp_layer import Layer, gp_layer
from quell.models._types import Model, predictor
from quell.noise import normal


@checked(key=KEY)
def deep_gp(
    key: Key[Array, ""],
    x_train: Float[ArrayLike, "N d"],
    *,
    num_layers: int = 2,
    inner_dim: int = 5,
    num_inducing: int = 25,
    variance: float = 1.0,
    lengthscale: float = 1.0,
    noise_variance: float = 0.1,
    inner_scale: float = 1e-2,
    last_scale: float = 1.0,
    learn_hyperparameters: bool = False,
) -> Model:
    """A regression by stacked sparse variational GPs; the noise draws the inner layers' outputs.

    Kernels are squared exponential, posteriors whitened with full covariance per output. Inner
    layers have linear mean functions (the identity when sizes agree, principal directions when they
    shrink, padding by zeros when they grow), the last layer has none. The inducing inputs of the
    first layer are k-means centroids, those of later layers the images of the centroids under the
    mean functions. The Gaussian likelihood is integrated exactly over the last layer.

    The defaults of the five hyperparameters suit standardised inputs and targets; the paper fixes
    these numbers without stating them.

    Args:
      key: the key for the k-means clustering.
      x_train: training inputs, for inducing inputs and mean functions.
      num_layers: the number of layers; one is the sparse variational GP, without noise.
      inner_dim: the number of outputs of each inner layer.
      num_inducing: M, inducing points per layer. The paper does not say; 25 makes a step cheap
        while the first layer still separates the clusters of its data sets.
      variance: the variance of each kernel. One, since the targets have unit variance, and since an
        inner layer should be able to bend its input by about the input's own size.
      lengthscale: the lengthscale of each kernel, in units of √d for d inputs: √d is about the
        distance of a standardised input from the middle, so 25 inducing points overlap.
      noise_variance: the variance of the likelihood. A tenth of the targets' variance: below the
        share that 25 inducing points leave unexplained, yet high enough that the variance term
        does not rule the bound.
      inner_scale: the standard deviation of the inner layers' inducing outputs at the start. Small,
        so that training starts from the mean function: about one step of Adam at 0.01. The
        original code takes 1e-5.
      last_scale: the same standard deviation for the last layer. One, the prior.
      learn_hyperparameters: whether kernels and likelihood are params, too. If not, all quantities
        that depend on them alone are computed once, and `prepare(data)` adds the first layer's
        projection of every input, a leaf `projection` `[N, M]`.

    Returns:
      A model for examples `{"x": [d], "y": []}`, with noise `[(num_layers − 1) inner_dim]` and
      params `{"layer0": {"mean": [M, D], "scale": [D, M(M+1)/2]}, …}`.
    """
    x = _check_inputs(x_train, num_inducing)
    scales = (*[inner_scale] * (num_layers - 1), last_scale)
    centroids = _centroids(key, x, num_inducing)
    layers = _stack(x, centroids, inner_dim, variance, lengthscale, scales, learn_hyperparameters)
    inner = num_layers - 1
    noise = normal(inner * inner_dim)
    names = [f"layer{i}" for i in range(num_layers)]

    def init(key):
        params = {name: layer.init() for name, layer in zip(names, layers)}
        if learn_hyperparameters:
            params["likelihood"] = {"log_noise": jnp.log(jnp.asarray(noise_variance, float))}
        return params

    def propagate(params, eps, example):
        """Mean and variance of the last layer, given draws of the inner layers."""
        h = example["x"]
        a = example.get("projection")
        draws = eps.reshape(inner, inner_dim)
        for i, (name, layer) in enumerate(zip(names, layers)):
            a = layer.project(params[name], h) if a is None else a
            mean, variance = layer.marginal(params[name], a, h)
            if i < inner:
                h, a = mean + jnp.sqrt(variance) * draws[i], None  # only the first a was prepared
        return mean[0], variance[0]

    def likelihood_variance(params):
        if learn_hyperparameters:
            return jnp.exp(params["likelihood"]["log_noise"])
        return noise_variance

    def loss(params, eps, example):
        # −E[log N(y | f, s²)] over f ~ N(mean, variance): exact, so the last layer needs no draw
        mean, variance = propagate(params, eps, example)
        s2 = likelihood_variance(params)
        square = (example["y"] - mean) ** 2 + variance
        return 0.5 * (jnp.log(2 * math.pi * s2) + square / s2)

    def moments(params, eps, x):
        mean, variance = propagate(params, eps, {"x": x})
        return mean, variance + likelihood_variance(params)

    def regulariser(params):
        return sum((layer.kl(params[n]) for n, layer in zip(names, layers)), jnp.zeros(()))

    def prepare(data):
        if learn_hyperparameters:
            return data
        return data | {"projection": jax.vmap(lambda x: layers[0].project({}, x))(data["x"])}

    return Model(init, loss, noise, regulariser, predictor(moments, noise), prepare)


def _stack(
    x: np.ndarray, Z: np.ndarray, inner_dim, variance, lengthscale, scales, learned
) -> list[Layer]:
    """The layers, one per initial scale; data and inducing inputs pass through mean functions."""
    layers = []
    for i, initial_scale in enumerate(scales):
        last = i == len(scales) - 1
        W = np.zeros((x.shape[1], 1)) if last else _mean_weights(x, inner_dim)
        layer = gp_layer(
            Z,
            W,
            variance=variance,
            lengthscale=lengthscale * math.sqrt(x.shape[1]),
            initial_scale=initial_scale,
            learned=learned,
        )
        layers.append(layer)
        x, Z = x @ W, Z @ W  # as if the GP were its mean
    return layers


def _mean_weights(x: np.ndarray, outputs: int) -> np.ndarray:
    """W `[d, D]`: the identity, the D leading principal directions, or padding by zeros."""
    d = x.shape[1]
    if d <= outputs:
        return np.eye(d, outputs)
    directions = np.linalg.svd(x - x.mean(0), full_matrices=False)[2]
    return directions[:outputs].T


def _centroids(key: Key[Array, ""], x: np.ndarray, M: int) -> np.ndarray:
    """k-means centroids `[M, d]`, started from M distinct rows."""
    distinct = np.unique(x, axis=0)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    start = distinct[rng.choice(len(distinct), M, replace=False)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an emptied cluster keeps its centroid
        return kmeans2(x, start, minit="matrix", iter=50)[0]


def _check_inputs(x_train: ArrayLike, num_inducing: int) -> np.ndarray:
    x = np.asarray(x_train, np.float64)
    if x.ndim != 2 or not np.isfinite(x).all():
        raise invalid(
            "x_train",
            expected="finite inputs [N, d]",
            got=f"shape {x.shape}" if x.ndim != 2 else "non-finite values",
            advice="Give one row per example; drop or fill rows with missing values.",
        )
    distinct = len(np.unique(x, axis=0))
    if num_inducing > distinct:
        raise invalid(
            "num_inducing",
            expected=f"at most {distinct}, the number of distinct inputs",
            got=num_inducing,
            advice="Use fewer inducing points.",
        )
    return x
