"""Lower layers never import higher ones, and the package is light to import."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import quell

SOURCE = Path(quell.__file__).parents[1]

# From the bottom up; docs/architecture.md draws them. `quell` is the public face.
LAYERS = (
    {"_errors", "_tree", "_checks", "_arguments", "_jit", "_mlp", "plotting"},
    {"noise", "gaussian", "datasets"},
    {"objective", "bases", "contexts", "criteria", "natural_gradient"},
    {"coefficients", "models"},
    {"control_variate"},
    {"estimators", "training"},
    {"diagnostics"},
    {"quell", "types"},
    {"quell_cli", "__main__"},
    {"quell_paper"},
)
# Rooms that a room must not know, whatever its layer.
FORBIDDEN = {"models": {"bases", "criteria", "contexts"}, "contexts": {"objective", "bases"}}
# Imported inside a function, never with the module: a result draws itself when asked to, and
# `quell reproduce` calls the laboratory when it runs.
WHEN_ASKED = {("diagnostics", "plotting"), ("quell_cli", "quell_paper")}
PACKAGES = ("quell", "quell_cli", "quell_paper")
MODULES = sorted(
    path.relative_to(SOURCE)
    for package in PACKAGES
    for path in (SOURCE / package).rglob("*.py")
    if path != SOURCE / "quell" / "__init__.py"
)


def room(path: Path) -> str:
    """The room a file belongs to: its module, or the package it lies in."""
    return path.parts[0] if path.parts[0] != "quell" else path.parts[1].removesuffix(".py")


def imported_rooms(source: str, nested: bool = True) -> set[str]:
    """The rooms that a file imports: anywhere in it, or with the module alone."""
    found, tree = set(), ast.parse(source)
    for node in ast.walk(tree) if nested else tree.body:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            top, *rest = name.split(".")
            if top == "quell":
                known = rest and any(rest[0] in layer for layer in LAYERS)
                found.add(rest[0] if known else "quell")
            elif top in PACKAGES:
                found.add(top)
    return found


def height(name: str) -> int:
    for level, layer in enumerate(LAYERS):
        if name in layer:
            return level
    raise AssertionError(f"quell.{name} has no layer: add it to LAYERS in tests/test_layers.py")


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_lower_layers_do_not_know_higher_ones(path):
    me = room(path)
    source = (SOURCE / path).read_text()
    known = imported_rooms(source) - {me}
    at_once = imported_rooms(source, nested=False)
    later = {name for name in known - at_once if (me, name) in WHEN_ASKED}
    higher = {name for name in known - later if height(name) > height(me)}
    assert not higher, f"{path} imports {higher}, which lie above it"
    assert not known & FORBIDDEN.get(me, set())


def test_the_library_knows_neither_the_laboratory_nor_the_command_line():
    """Apart from `python -m quell`; and of the command line, `quell reproduce` alone knows both."""
    users = {name: [] for name in PACKAGES[1:]}
    for path in MODULES:
        for name in imported_rooms((SOURCE / path).read_text()) & set(users) - {path.parts[0]}:
            users[name].append(path.as_posix())
    assert [path for path in users["quell_cli"] if path.startswith("quell/")] == [
        "quell/__main__.py"
    ]
    assert users["quell_paper"] == ["quell_cli/reproduce.py"]


def test_the_reader_of_imports_sees_every_form():
    source = "import quell\nfrom quell import _tree, normal\nfrom quell.models import x\n"
    source += "def f():\n    from quell_paper import config\n    import jax\n"
    assert imported_rooms(source) == {"quell", "_tree", "models", "quell_paper"}
    assert imported_rooms(source, nested=False) == {"quell", "_tree", "models"}


def test_importing_the_package_does_not_import_what_only_some_need():
    heavy = ["matplotlib", "rich", "numpyro", "orbax", "flax", "equinox", "sklearn", "pandas"]
    heavy += ["jinja2", "quell_cli", "quell_paper"]
    code = f"import sys, quell; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
