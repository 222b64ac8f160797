"""Models: the two of the paper, and two more that its introduction names."""

from quell.models._deep_gp import deep_gp as deep_gp
from quell.models._logistic import logistic_regression as logistic_regression
from quell.models._neural_network import bayesian_neural_network as bayesian_neural_network
from quell.models._neural_network import categorical as categorical
from quell.models._neural_network import gaussian as gaussian
from quell.models._vae import vae as vae
