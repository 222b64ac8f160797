"""Ways to estimate the gradient of a doubly stochastic objective, under one protocol."""

from quell.estimators._closed_form import closed_form as closed_form
from quell.estimators._controlled import controlled as controlled
from quell.estimators._ensemble import ensemble as ensemble
from quell.estimators._joint import joint as joint
from quell.estimators._learned_surrogate import learned_surrogate as learned_surrogate
from quell.estimators._pooling import one_coefficient as one_coefficient
from quell.estimators._pooling import per_entry as per_entry
from quell.estimators._pooling import per_leaf as per_leaf
from quell.estimators._quadratic import quadratic_surrogate as quadratic_surrogate
from quell.estimators._sampling import antithetic as antithetic
from quell.estimators._sampling import monte_carlo as monte_carlo
from quell.estimators._sampling import quasi_monte_carlo as quasi_monte_carlo
from quell.estimators._score import score_function as score_function
from quell.estimators._sticking import sticking_the_landing as sticking_the_landing
from quell.estimators._svrg import svrg as svrg
from quell.estimators._taylor import taylor as taylor
