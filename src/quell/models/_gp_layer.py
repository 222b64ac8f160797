"""One layer of a deep Gaussian process: a sparse variational GP with whitened inducing outputs.

Each of the D outputs is f_d(x) = m_d(x) + a(x)ᵀu_d + residual, with a(x) = L⁻¹k(Z, x) and
LLᵀ = k(Z, Z), and q(u_d) = N(μ_d, S_d) against the prior N(0, I).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from quell.gaussian import cholesky, packed_identity, whitened_kl

Params = dict[str, Array]

# Added to the diagonal of k(Z, Z), as a share of the kernel's variance. It bounds the entries of
# L⁻¹ by about 300, so that single precision keeps three digits or more of a projection.
_JITTER = 1e-5


class Layer(NamedTuple):
    """A layer as pure functions of its params.

    Attributes:
      init: `init()` gives the params: `mean` μ `[M, D]`, `scale` (S_d packed) `[D, M(M+1)/2]`, and
        the kernel's `log_variance` and `log_lengthscale` if the kernel is learned.
      project: `project(params, x)` gives a(x) `[M]`.
      marginal: `marginal(params, a, x)` gives mean and variance `[D]` of q(f(x)), for a = a(x).
      kl: `kl(params)` gives Σ_d KL[q(u_d) ‖ N(0, I)].
    """

    init: Callable[[], Params]
    project: Callable[[Params, Float[Array, " d"]], Float[Array, " M"]]
    marginal: Callable[
        [Params, Float[Array, " M"], Float[Array, " d"]],
        tuple[Float[Array, " D"], Float[Array, " D"]],
    ]
    kl: Callable[[Params], Float[Array, ""]]


def gp_layer(
    inducing: np.ndarray,
    mean_weights: np.ndarray,
    *,
    variance: float,
    lengthscale: float,
    initial_scale: float,
    learned: bool,
) -> Layer:
    """A layer with a squared exponential kernel and the linear mean function x ↦ xᵀW.

    Args:
      inducing: inducing inputs Z `[M, d]`, fixed.
      mean_weights: W `[d, D]` of the mean function.
      variance: the kernel's variance k(x, x).
      lengthscale: the kernel's lengthscale, the same along every input.
      initial_scale: the initial standard deviation: S_d starts as its square times the identity.
      learned: whether variance and lengthscales (one per input) are params. If not, L⁻¹ is a
        constant, computed here once in double precision.
    """
    M, d = inducing.shape
    D = mean_weights.shape[1]
    Z, W = jnp.asarray(inducing, float), jnp.asarray(mean_weights, float)
    whiten = jnp.asarray(_whitening(inducing, variance, lengthscale), float)

    def init():
        q = {
            "mean": jnp.zeros((M, D)),
            "scale": jnp.tile(packed_identity(M, initial_scale), (D, 1)),
        }
        if not learned:
            return q
        kernel = {
            "log_variance": jnp.log(jnp.asarray(variance, float)),
            "log_lengthscale": jnp.full(d, jnp.log(lengthscale)),
        }
        return q | kernel

    def correlation(x, inverse_lengthscale):
        # k(Z, x) / variance = exp(−½ |(z − x)/ℓ|²); products are faster than differences.
        z, x = Z * inverse_lengthscale, x * inverse_lengthscale
        return jnp.exp(z @ x - 0.5 * ((z**2).sum(-1) + x @ x))

    def project_fixed(params, x):
        return whiten @ correlation(x, 1 / lengthscale)

    def project_learned(params, x):
        # a = L⁻¹k(Z, x) = √variance R⁻¹c(x), with R the factor of the correlations.
        inverse = jnp.exp(-params["log_lengthscale"])
        c = jax.vmap(lambda z: correlation(z, inverse))(Z)
        R = jnp.linalg.cholesky(c + _JITTER * jnp.eye(M))
        a = solve_triangular(R, correlation(x, inverse), lower=True)
        return jnp.exp(0.5 * params["log_variance"]) * a

    def marginal(params, a, x):
        k_xx = jnp.exp(params["log_variance"]) if learned else variance
        L = jax.vmap(lambda scale: cholesky(scale, M))(params["scale"])
        mean = x @ W + a @ params["mean"]
        # k(x, x) − aᵀa + aᵀS_d a, whose first part rounding must not make negative.
        residual = jnp.maximum(k_xx - (a**2).sum(), _JITTER * k_xx)
        return mean, residual + (jnp.einsum("m,dmk->dk", a, L) ** 2).sum(-1)

    def kl(params):
        return jax.vmap(whitened_kl, in_axes=(1, 0))(params["mean"], params["scale"]).sum()

    return Layer(init, project_learned if learned else project_fixed, marginal, kl)


def _whitening(Z: np.ndarray, variance: float, lengthscale: float) -> np.ndarray:
    """The matrix variance · L⁻¹ `[M, M]`, which maps the correlations of x with Z to a(x)."""
    distance = ((Z[:, None] - Z[None]) ** 2).sum(-1)
    c = np.exp(-0.5 * distance / lengthscale**2) + _JITTER * np.eye(len(Z))
    return np.sqrt(variance) * np.linalg.inv(np.linalg.cholesky(c))
