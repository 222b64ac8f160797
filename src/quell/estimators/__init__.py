"""Ways to estimate the gradient of a doubly stochastic objective, under one protocol."""

from quell.estimators._closed_form import closed_form as closed_form
from quell.estimators._controlled import controlled as controlled
from quell.estimators._sampling import antithetic as antithetic
from quell.estimators._sampling import monte_carlo as monte_carlo
from quell.estimators._sampling import quasi_monte_carlo as quasi_monte_carlo
