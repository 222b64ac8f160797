"""Models: the two of the paper, and others that its introduction names or that users bring."""

from quell.models._crossed import crossed_effects as crossed_effects
from quell.models._deep_gp import deep_gp as deep_gp
from quell.models._likelihoods import categorical as categorical
from quell.models._likelihoods import gaussian as gaussian
from quell.models._logistic import logistic_regression as logistic_regression
from quell.models._neural_network import bayesian_neural_network as bayesian_neural_network
from quell.models._neural_network import local_neural_network as local_neural_network
from quell.models._poisson import poisson_regression as poisson_regression
from quell.models._vae import vae as vae
