"""quell: quieter gradients for doubly stochastic objectives.

The public names are those of `quell._public`. They are imported when the first of them is asked
for, since they need JAX, while `quell --help` must answer at once.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quell._public import *  # noqa: F403


# The rooms of the package, which are modules.
_ROOMS = {
    *("bases", "coefficients", "contexts", "criteria", "datasets", "diagnostics", "estimators"),
    *("gaussian", "models", "noise", "objective", "plotting", "training", "types"),
}


class _Package(ModuleType):
    """A package whose public names are functions even if a module has the same name."""

    def __getattr__(self, name: str) -> object:
        if name in _ROOMS:
            return importlib.import_module(f"quell.{name}")
        if name == "__all__":
            return _names()
        if not name.startswith("_"):
            from quell import _public

            if hasattr(_public, name):
                return getattr(_public, name)
        raise AttributeError(f"module 'quell' has no attribute {name!r}")

    def __setattr__(self, name: str, value: object) -> None:
        if not isinstance(value, ModuleType) or name not in ("control_variate", "natural_gradient"):
            super().__setattr__(name, value)  # an import would hide the function of this name

    def __dir__(self) -> list[str]:
        own = (name for name in super().__dir__() if name.startswith("__"))
        return sorted({*own, *_ROOMS, *_names()})


def _names() -> list[str]:
    """The public names."""
    from quell import _public

    return [name for name in dir(_public) if not name.startswith("_")]


sys.modules[__name__].__class__ = _Package
