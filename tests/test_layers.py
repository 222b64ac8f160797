"""Lower layers never import higher ones, and the package is light to import."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import quell

ROOT = Path(quell.__file__).parent

# From the bottom up. `quell` is the package itself, for those that use the public names.
LAYERS = (
    {"_errors", "_automatic", "_products"},
    {"noise", "_leaves", "_features", "_gaussian", "_batches", "_progress", "_checkpoint"},
    {"datasets"},
    {"_objective", "bases", "criteria"},
    {"contexts", "_variational"},
    {"coefficients"},
    {"_control_variate"},
    {"estimators"},
    {"_loop", "_fit_checks", "_monitors"},
    {"_measure"},
    {"_recommend"},
    {"_fit"},
    {"_compare"},
    {"quell"},
    {"models", "adapters"},
    {"experiments", "plotting"},
    {"commands"},
    {"cli"},
    {"__main__"},
)
CONTROL = {"bases", "criteria", "coefficients", "_control_variate", "estimators"}
# What a part must not know, whatever its layer.
FORBIDDEN = {
    "models": CONTROL | {"quell", "_fit", "_measure", "_compare"},
    "plotting": {"quell", "_fit", "_loop", "_measure", "_compare", "experiments"},
    "datasets": {"_objective"},
}
# A result draws itself when asked to: imported inside the method, never with the module.
WHEN_ASKED = {("_measure", "plotting"), ("_compare", "plotting")}
MODULES = sorted(
    path.relative_to(ROOT) for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py"
)


def part(path: Path) -> str:
    """The layer a file belongs to: its module, or the package it lies in."""
    return path.parts[0].removesuffix(".py")


def imported_parts(source: str, here: Path, nested: bool = True) -> set[str]:
    """The parts of the package that a file imports: anywhere in it, or with the module alone."""
    found, tree = set(), ast.parse(source)
    for node in ast.walk(tree) if nested else tree.body:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = ["quell", *here.parts[:-1]]
                package = package[: len(package) - node.level + 1]
                base = ".".join([*package, *([base] if base else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            top, *rest = name.split(".")
            if top == "quell":
                known = rest and any(rest[0] in layer for layer in LAYERS)
                found.add(rest[0] if known else "quell")
    return found


def height(name: str) -> int:
    for level, layer in enumerate(LAYERS):
        if name in layer:
            return level
    raise AssertionError(f"quell.{name} has no layer: add it to LAYERS in tests/test_layers.py")


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_lower_layers_do_not_know_higher_ones(path):
    me = part(path)
    source = (ROOT / path).read_text()
    known = imported_parts(source, path) - {me}
    at_once = imported_parts(source, path, nested=False)
    later = {name for name in known - at_once if (me, name) in WHEN_ASKED}
    higher = {name for name in known - later if height(name) > height(me)}
    assert not higher, f"{path} imports {higher}, which lie above it"
    assert not known & FORBIDDEN.get(me, set())


def test_the_reader_of_imports_sees_every_form():
    source = "import quell\nfrom quell import _leaves, normal\nfrom quell.models import x\n"
    source += "def f():\n    from . import sibling\n    from .. import bases\n    import jax\n"
    here = Path("models/a.py")
    assert imported_parts(source, here) == {"quell", "_leaves", "models", "bases"}
    assert imported_parts(source, here, nested=False) == {"quell", "_leaves", "models"}


def test_importing_the_package_does_not_import_what_only_some_need():
    heavy = ["matplotlib", "rich", "numpyro", "orbax", "flax", "equinox", "sklearn", "quell.cli"]
    code = f"import sys, quell; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
