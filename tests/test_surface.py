"""The public surface: few names, one order of arguments, every type importable, short reprs."""

import importlib
import inspect
import subprocess
import sys
import typing

import jax
import optax
import pytest
from conformance import problem

import quell
from quell import types

MODULES = (
    "bases",
    "coefficients",
    "contexts",
    "criteria",
    "estimators",
    "noise",
    "models",
    "datasets",
)
RULE = ["key", "objective", "params", "data"]


def public(module) -> dict[str, object]:
    """The names that a module offers: those it exports, or defines without an underscore."""
    if module.__name__ == "quell" or hasattr(module, "__path__"):
        tree = inspect.getsource(module)
        names = [line.split(" as ")[1] for line in tree.splitlines() if " as " in line]
        return {name: getattr(module, name) for name in names}
    exported = getattr(module, "__all__", None)
    assert exported is not None, f"{module.__name__} lists no __all__"
    return {name: getattr(module, name) for name in exported}


def everything() -> dict[int, tuple[str, object]]:
    """Every public object once, apart from types and from the rooms themselves."""
    top = {n: thing for n, thing in public(quell).items() if not inspect.ismodule(thing)}
    found = {id(thing): (name, thing) for name, thing in top.items()}
    for name in MODULES:
        module = importlib.import_module(f"quell.{name}")
        found |= {id(thing): (n, thing) for n, thing in public(module).items()}
    return found


def test_at_most_26_names_at_the_top_beside_its_rooms_and_73_in_all():
    assert sum(not inspect.ismodule(thing) for thing in public(quell).values()) <= 26
    assert len(everything()) <= 73, sorted(name for name, _ in everything().values())


def test_a_star_gives_the_public_names_and_beside_them_rooms_alone():
    names = set(public(quell))
    found = {}
    exec("from quell import *", found)
    found = {name: thing for name, thing in found.items() if not name.startswith("__")}
    assert names <= set(found)
    assert all(found[name] is getattr(quell, name) for name in names)
    assert all(inspect.ismodule(found[name]) for name in set(found) - names)


@pytest.mark.parametrize("name", MODULES)
def test_rooms_are_there_as_soon_as_the_package_is(name):
    script = f"import quell; quell.{name}"
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("name", ["control_variate", "natural_gradient"])
def test_a_module_does_not_hide_the_function_of_its_name(name):
    importlib.import_module(f"quell.{name}")
    assert inspect.isfunction(getattr(quell, name))


FUNCTIONS = [(n, f) for n, f in everything().values() if inspect.isfunction(f)]


@pytest.mark.parametrize(("name", "function"), FUNCTIONS, ids=[name for name, _ in FUNCTIONS])
def test_functions_of_a_problem_take_the_four_in_order_and_factories_none(name, function):
    names = list(inspect.signature(function).parameters)
    exempt = {"reshuffle", "with_replacement", "deep_gp"}
    if names[:4] == RULE or name in exempt:
        return
    assert not {"key", "objective", "params", "data"} & set(names), names


def test_fit_has_at_most_ten_parameters():
    assert len(inspect.signature(quell.fit).parameters) <= 10


def own_classes(annotation) -> set[type]:
    """The classes of quell in an annotation, at any depth."""
    found = {annotation} if inspect.isclass(annotation) else set()
    for inner in typing.get_args(annotation):
        if isinstance(inner, list):
            found |= set().union(*(own_classes(one) for one in inner))
        else:
            found |= own_classes(inner)
    return {c for c in found if getattr(c, "__module__", "").startswith("quell")}


@pytest.mark.parametrize(("name", "function"), FUNCTIONS, ids=[name for name, _ in FUNCTIONS])
def test_every_type_of_a_public_signature_can_be_imported(name, function):
    importable = {getattr(types, n) for n in dir(types) if not n.startswith("_")}
    importable |= {thing for _, thing in everything().values() if inspect.isclass(thing)}
    importable |= set(typing.get_args(types.Hook))
    hints = typing.get_type_hints(function)
    missing = set().union(*(own_classes(hint) for hint in hints.values())) - importable
    assert not missing, missing


def test_the_fields_of_public_types_can_be_imported_too():
    importable = {getattr(types, n) for n in dir(types) if not n.startswith("_")} | {
        quell.Objective
    }
    classes = [c for c in importable if inspect.isclass(c)]
    fields = [h for c in classes for h in typing.get_type_hints(c).values()]
    missing = set().union(*(own_classes(hint) for hint in fields)) - importable
    assert not missing, missing


def test_results_have_short_reprs(key):
    objective, params, data = problem(key, num_data=32)
    fit = quell.fit(
        key,
        objective,
        params,
        data,
        optax.sgd(1e-3),
        num_steps=3,
        batch_size=4,
        hooks=[quell.silent],
    )
    results = [fit, quell.closed_form(), quell.svrg(quell.antithetic())]
    settings = {"batch_size": 4, "seconds": 0.05}
    results.append(quell.measure(key, objective, params, data, quell.antithetic(), **settings))
    results.append(quell.recommend(key, objective, params, data, num_steps=5, **settings))
    small = {"batch_sizes": (4,), "seconds": 0.05}
    results.append(quell.compare(key, objective, params, data, {}, **small))
    for result in results:
        assert len(repr(result)) <= 120, repr(result)
        assert "\n" not in repr(result)


def test_the_progress_bar_can_be_silenced(key, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    objective, params, data = problem(key, num_data=32)
    settings = {"num_steps": 10, "batch_size": 4, "hooks": [quell.silent]}
    quell.fit(jax.random.key(0), objective, params, data, optax.sgd(1e-3), **settings)
    assert capsys.readouterr().err == ""
