"""Ways to estimate the gradient of a doubly stochastic objective, under one protocol."""

from quell.estimators._controlled import controlled as controlled
from quell.estimators._ensemble import ensemble as ensemble
from quell.estimators._joint import joint as joint
from quell.estimators._learned_surrogate import learned_surrogate as learned_surrogate
from quell.estimators._pooling import Pooling as Pooling
from quell.estimators._pooling import per_entry as per_entry
from quell.estimators._pooling import per_leaf as per_leaf
from quell.estimators._pooling import together as together
from quell.estimators._quadratic import Quadratic as Quadratic
from quell.estimators._quadratic import minus_quadratic as minus_quadratic
from quell.estimators._quadratic import second_order as second_order
from quell.estimators._quadratic import surrogate as surrogate
from quell.estimators._sampling import Sampling as Sampling
from quell.estimators._sampling import antithetic as antithetic
from quell.estimators._sampling import monte_carlo as monte_carlo
from quell.estimators._sampling import quasi_monte_carlo as quasi_monte_carlo
from quell.estimators._score import black_box as black_box
from quell.estimators._score import score_function as score_function
from quell.estimators._sticking import sticking_the_landing as sticking_the_landing
from quell.estimators._svrg import held_draws as held_draws
from quell.estimators._svrg import paired_draws as paired_draws
from quell.estimators._svrg import svrg as svrg
from quell.estimators._taylor import minus_linear as minus_linear
from quell.estimators._taylor import taylor as taylor
from quell.estimators._types import Estimator as Estimator
from quell.estimators._types import MakeEstimator as MakeEstimator
