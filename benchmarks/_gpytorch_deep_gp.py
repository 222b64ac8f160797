"""GPyTorch's deep Gaussian process, in the shape of `quell.models.deep_gp`'s defaults."""

from collections.abc import Callable

import gpytorch
import numpy as np
import torch
from gpytorch.mlls import DeepApproximateMLL, VariationalELBO
from gpytorch.models.deep_gps import DeepGP, DeepGPLayer
from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy


class _Layer(DeepGPLayer):
    def __init__(self, inputs: int, outputs: int | None, inducing: int):
        batch = torch.Size([] if outputs is None else [outputs])
        points = torch.randn(*batch, inducing, inputs)
        distribution = CholeskyVariationalDistribution(inducing, batch_shape=batch)
        strategy = VariationalStrategy(self, points, distribution, learn_inducing_locations=False)
        super().__init__(strategy, inputs, outputs)
        linear = gpytorch.means.LinearMean(inputs)
        self.mean_module = gpytorch.means.ConstantMean() if outputs is None else linear
        self.covar_module = gpytorch.kernels.ScaleKernel(
            gpytorch.kernels.RBFKernel(batch_shape=batch), batch_shape=batch
        )

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


class _TwoLayers(DeepGP):
    def __init__(self, inputs: int, inner: int, inducing: int):
        super().__init__()
        self.inner = _Layer(inputs, inner, inducing)
        self.last = _Layer(inner, None, inducing)
        self.likelihood = gpytorch.likelihoods.GaussianLikelihood()

    def forward(self, x):
        return self.last(self.inner(x))


def steps(
    x: np.ndarray, y: np.ndarray, *, num_steps: int, batch_size: int, inducing: int = 25
) -> Callable[[], None]:
    """A function that takes so many steps of Adam on the variational parameters.

    As in the paper, and as in the model it is compared with, kernels, likelihood, means and
    inducing inputs stay fixed; one draw per example. One thread: with more, matrices this small
    take longer.
    """
    torch.manual_seed(0)
    torch.set_num_threads(1)
    inputs, targets = torch.from_numpy(np.array(x)), torch.from_numpy(np.array(y))
    model = _TwoLayers(inputs.shape[1], 5, inducing)
    trained = [p for name, p in model.named_parameters() if "variational_distribution" in name]
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for parameter in trained:
        parameter.requires_grad_(True)
    optimizer = torch.optim.Adam(trained, lr=1e-2)
    bound = DeepApproximateMLL(VariationalELBO(model.likelihood, model, len(targets)))
    model.train()

    def run() -> None:
        with gpytorch.settings.num_likelihood_samples(1):
            for _ in range(num_steps):
                batch = torch.randint(len(targets), (batch_size,))
                optimizer.zero_grad()
                loss = -bound(model(inputs[batch]), targets[batch])
                loss.backward()
                optimizer.step()

    return run
