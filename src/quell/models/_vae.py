"""A small variational autoencoder."""

import math

import jax
import jax.numpy as jnp

from quell._gaussian import check_size
from quell.models._types import Model, predictor
from quell.noise import normal


def vae(dim: int, *, latent: int = 5, hidden: int = 50) -> Model:
    """p(x | z) Bernoulli with logits decoder(z), z ~ N(0, I), q(z | x) = N(m(x), diag s(x)²).

    Encoder and decoder have one hidden layer each. The objective has no regulariser: the divergence
    of q(z | x) from the prior belongs to the example, in closed form.

    Args:
      dim: d, the number of pixels, each in [0, 1].
      latent: K, the number of latent variables.
      hidden: H, hidden units of encoder and decoder.

    Returns:
      A model for examples `{"x": [d]}` (other leaves are ignored) with noise `[K]`. Its `predict`
      reconstructs the inputs.
    """
    d, K, H = check_size(dim, "dim"), check_size(latent, "latent"), check_size(hidden, "hidden")
    noise = normal(K)

    def init(key):
        encoder_key, decoder_key = jax.random.split(key)
        return {
            "encoder": _init_network(encoder_key, d, H, 2 * K),
            "decoder": _init_network(decoder_key, K, H, d),
        }

    def encode(params, x):
        mean, log_scale = jnp.split(_network(params["encoder"], x), 2)
        return mean, log_scale

    def decode(params, eps, mean, log_scale):
        return _network(params["decoder"], mean + jnp.exp(log_scale) * eps)

    def loss(params, eps, example):
        x = example["x"]
        mean, log_scale = encode(params, x)
        logits = decode(params, eps, mean, log_scale)
        # −log p(x | z) + KL[q(z | x) ‖ N(0, I)]
        reconstruction = (jax.nn.softplus(logits) - x * logits).sum()
        kl = (0.5 * (mean**2 + jnp.exp(2 * log_scale) - 1) - log_scale).sum()
        return reconstruction + kl

    def moments(params, eps, x):
        p = jax.nn.sigmoid(decode(params, eps, *encode(params, x)))
        return p, p * (1 - p)

    return Model(init, loss, noise, None, predictor(moments, noise))


def _init_network(key, inputs, hidden, outputs):
    hidden_key, output_key = jax.random.split(key)
    return {
        "hidden_weights": jax.random.normal(hidden_key, (inputs, hidden)) / math.sqrt(inputs),
        "hidden_bias": jnp.zeros(hidden),
        "output_weights": jax.random.normal(output_key, (hidden, outputs)) / math.sqrt(hidden),
        "output_bias": jnp.zeros(outputs),
    }


def _network(params, x):
    h = jnp.tanh(x @ params["hidden_weights"] + params["hidden_bias"])
    return h @ params["output_weights"] + params["output_bias"]
