"""quell: quieter gradients for doubly stochastic objectives."""

from quell import bases as bases
from quell import coefficients as coefficients
from quell import contexts as contexts
from quell import criteria as criteria
from quell import estimators as estimators
from quell._compare import Comparison as Comparison
from quell._compare import compare as compare
from quell._control_variate import ControlVariate as ControlVariate
from quell._control_variate import apply_then_learn as apply_then_learn
from quell._control_variate import control_variate as control_variate
from quell._control_variate import learn_then_apply as learn_then_apply
from quell._gaussian import full_covariance as full_covariance
from quell._gaussian import mean_field as mean_field
from quell._measure import Measurement as Measurement
from quell._measure import measure as measure
from quell._objective import Objective as Objective
from quell._variational import Variational as Variational
from quell._variational import closed_form_kl as closed_form_kl
from quell._variational import sampled_entropy as sampled_entropy
from quell._variational import variational as variational
from quell.noise import Noise as Noise
from quell.noise import from_moments as from_moments
from quell.noise import laplace as laplace
from quell.noise import normal as normal
from quell.noise import uniform as uniform
