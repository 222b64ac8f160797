"""Coefficients Θ: the size of each part of the correction, and ways to learn it."""

from quell.coefficients._fixed import fixed as fixed
from quell.coefficients._learned import context_free as context_free
from quell.coefficients._learned import recognition_network as recognition_network
from quell.coefficients._least_squares import least_squares as least_squares
from quell.coefficients._running_average import running_average as running_average
from quell.coefficients._targets import raw_targets as raw_targets
from quell.coefficients._targets import unit_scale as unit_scale
