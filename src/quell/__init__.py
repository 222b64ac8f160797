"""quell: quieter gradients for doubly stochastic objectives.

The command line is a package of its own, `quell_cli`, so that `quell --help` need not import JAX.
"""

from quell import bases as bases
from quell import coefficients as coefficients
from quell import contexts as contexts
from quell import criteria as criteria
from quell import datasets as datasets
from quell import estimators as estimators
from quell import models as models
from quell import noise as noise
from quell import types as types
from quell.coefficients import recognition_network as recognition_network
from quell.control_variate import apply_then_learn as apply_then_learn
from quell.control_variate import control_variate as control_variate
from quell.control_variate import learn_then_apply as learn_then_apply
from quell.diagnostics.compare import compare as compare
from quell.diagnostics.measure import measure as measure
from quell.diagnostics.recommend import recommend as recommend
from quell.estimators import antithetic as antithetic
from quell.estimators import closed_form as closed_form
from quell.estimators import controlled as controlled
from quell.estimators import monte_carlo as monte_carlo
from quell.estimators import svrg as svrg
from quell.gaussian import full_covariance as full_covariance
from quell.gaussian import mean_field as mean_field
from quell.natural_gradient import natural_gradient as natural_gradient
from quell.noise import normal as normal
from quell.objective import Objective as Objective
from quell.objective import negative_elbo as negative_elbo
from quell.training.batches import reshuffle as reshuffle
from quell.training.batches import with_replacement as with_replacement
from quell.training.fit import fit as fit
from quell.training.hooks import callback as callback
from quell.training.hooks import checkpoint as checkpoint
from quell.training.hooks import monitor as monitor
from quell.training.hooks import silent as silent
from quell.training.monitors import variance_ratio as variance_ratio
