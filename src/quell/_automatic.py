"""The word for «measure and choose for me»."""

from typing import NamedTuple


class Automatic(NamedTuple):
    """Left to a measurement."""


automatic = Automatic()
"""As `estimator` of `fit`, or as `leaves` of `estimators.closed_form`: measure, then choose."""
