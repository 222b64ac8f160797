"""A small variational autoencoder."""

import jax
import jax.numpy as jnp

from quell._arguments import checked
from quell._mlp import apply_layers, init_layers
from quell.models._types import Model, predictor
from quell.noise import normal

# Normal with variance 1 / inputs, so that every layer keeps the size of its inputs.
_KERNEL = jax.nn.initializers.variance_scaling(1.0, "fan_in", "normal")


@checked()
def vae(dim: int, *, latent: int = 5, hidden: int = 50) -> Model:
    """An autoencoder: p(x | z) Bernoulli with logits decoder(z), q(z | x) = N(m(x), diag s(x)²).

    The prior of z is N(0, I). Encoder and decoder have one hidden layer each. The objective has no
    regulariser: the divergence of q(z | x) from the prior belongs to the example, without noise.

    Args:
      dim: d, the number of pixels, each in [0, 1].
      latent: K, the number of latent variables.
      hidden: H, the number of hidden units of encoder and decoder.

    Returns:
      A model for examples `{"x": [d]}` (other leaves are ignored) with noise `[K]`. Its `predict`
      reconstructs the inputs.
    """
    noise = normal(latent)

    def init(key):
        encoder_key, decoder_key = jax.random.split(key)
        return {
            "encoder": init_layers(encoder_key, (dim, hidden, 2 * latent), _KERNEL),
            "decoder": init_layers(decoder_key, (latent, hidden, dim), _KERNEL),
        }

    def encode(params, x):
        mean, log_scale = jnp.split(apply_layers(params["encoder"], x, jnp.tanh), 2)
        return mean, log_scale

    def decode(params, eps, mean, log_scale):
        return apply_layers(params["decoder"], mean + jnp.exp(log_scale) * eps, jnp.tanh)

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
