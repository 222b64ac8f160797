"""A budget of time, compilation included."""

import time
from functools import partial

import jax

quick_jit = partial(
    jax.jit,
    compiler_options={
        "xla_backend_optimization_level": 0,
        "xla_llvm_disable_expensive_passes": True,
    },
)
"""Compile in a third of the time: for work that is neither timed nor long."""


class Budget:
    """So many seconds from now on, to be shared out.

    >>> Budget(10.0).left() <= 10.0
    True
    """

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    def left(self) -> float:
        """The seconds that are left; below zero if they are over."""
        return self._until - time.monotonic()

    def share(self, part: float) -> float:
        """A part of the seconds that are left, or zero."""
        return part * max(0.0, self.left())
