"""Every doctest, README block and name in the docs is run or looked up."""

import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
OPTIONAL = {"matplotlib", "rich", "pandas", "jinja2", "numpyro", "sklearn", "gpytorch"}


def modules() -> list[str]:
    found = pkgutil.walk_packages([str(ROOT / "src")])
    return [m.name for m in found if not m.name.endswith("__main__")]


def load(name: str):
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] in OPTIONAL:
            pytest.skip(f"{name} needs {error.name}")
        raise


@pytest.mark.parametrize("name", modules())
def test_doctests_hold(name):
    failures, _ = doctest.testmod(load(name), optionflags=doctest.ELLIPSIS)
    assert failures == 0


def python_blocks(page: Path) -> str:
    """The Python blocks of a page as one script that keeps the page's line numbers."""
    lines, inside = [], False
    for line in page.read_text().splitlines():
        fence = line.startswith("```")
        if fence:
            inside = line.strip() == "```python" if not inside else False
        lines.append(line if inside and not fence else "")
    return "\n".join(lines)


PAGES_WITH_CODE = [page for page in PAGES if python_blocks(page).strip()]


@pytest.mark.parametrize("page", PAGES_WITH_CODE, ids=lambda page: page.name)
def test_python_blocks_run(page, tmp_path):
    """In a process of their own, as a reader would run them."""
    script = tmp_path / f"{page.stem}.py"
    script.write_text(python_blocks(page))
    command = [sys.executable, "-W", "error", script.name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def first_block(page: Path) -> str:
    return re.search(r"```python\n(.*?)```", page.read_text(), re.S).group(1)


def test_the_first_example_of_the_readme_makes_the_gradient_quieter(tmp_path):
    """The number that it prints, in a process of its own, and the number on the page."""
    page = ROOT / "README.md"
    command = [sys.executable, "-W", "error", "-c", first_block(page)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pattern = r"remaining noise: plain 1, closed form (0\.\d+)"
    printed, claimed = (
        float(re.search(pattern, t).group(1)) for t in (done.stdout, page.read_text())
    )
    assert printed < 0.1
    assert claimed / 3 < printed < 3 * claimed  # two seconds of measuring are not exact
    assert "quell.closed_form()" in first_block(page)


def test_the_readme_has_the_optax_chain():
    assert "optax.chain(control, " in python_blocks(ROOT / "README.md")


def quoted(page: Path) -> list[str]:
    return re.findall(r"`([^`\n]+)`", page.read_text())


def exists_in_package(name: str) -> bool:
    parts = name.split("(")[0].split(".")
    for cut in range(len(parts), 0, -1):
        try:
            thing = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[cut:]:
            if not hasattr(thing, attribute):
                return False
            thing = getattr(thing, attribute)
        return True
    return False


def exists_as_test(name: str) -> bool:
    path, _, function = name.partition("::")
    if not (ROOT / path).exists():
        return False
    return (
        not function
        or re.search(rf"^def {function}\(", (ROOT / path).read_text(), re.M) is not None
    )


def exists_as_target(name: str) -> bool:
    target = name.split()[1]
    return re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M) is not None


def exists_as_command(name: str) -> bool:
    """Whether the command line takes it; `--help` keeps it from running."""
    with pytest.raises(SystemExit) as left:
        load("quell_cli.main").main([*name.split()[1:], "--help"])
    return left.value.code == 0


CHECKS = (
    (re.compile(r"quell(_paper)?\.[A-Za-z_.]+(\(.*\))?$"), exists_in_package),
    (re.compile(r"(tests|benchmarks|examples|docs)/[\w/.]+(::\w+)?$"), exists_as_test),
    (re.compile(r"make [a-z-]+$"), exists_as_target),
    (re.compile(r"quell [a-z-]+( [a-z0-9-]+)*( --[a-z-]+)*$"), exists_as_command),
)


def missing(text: list[str]) -> list[str]:
    return [
        name
        for name in text
        for pattern, exists in CHECKS
        if pattern.match(name) and not exists(name)
    ]


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_names_in_the_docs_exist(page):
    assert missing(quoted(page)) == []


def test_a_name_that_does_not_exist_is_found():
    wrong = [
        "quell.bases.linnear",
        "tests/test_docs.py::test_nothing",
        "make nothing",
        "quell reproduce nothing",
    ]
    right = [
        "quell.bases.linear()",
        "tests/test_docs.py::test_doctests_hold",
        "make test",
        "quell reproduce all --quick",
    ]
    assert missing(wrong + right) == wrong


def test_the_map_names_every_label_of_the_paper():
    text = (ROOT / "docs" / "paper_map.md").read_text()
    labels = [
        "fig:illustration",
        "eqn:doubly_stochastic1",
        "sec:control_variates",
        "eqn:basic_cv",
        "eqn:variance-reduction",
        "sec:controlling",
        "eqn:gradient",
        "eqn:gradient_cv",
        "eqn:controlled_estimator",
        "eqn:recognition_network",
        "sec:training_recognition_network",
        "eqn:cv_objective",
        "eqn:partial_grads_objective",
        "eqn:partial_grads_objective1",
        "eqn:partial_grads_objective2",
        "eqn:start_from",
        "eqn:gradient_sum_objective",
        "eqn:squared_difference",
        "sec:gaussian_base_randomness",
        "eqn:linear_cv",
        "eqn:linear_jacobian",
        "eqn:quadratic_cv",
        "eqn:quadratic_cv2",
        "sec:experiments",
        "fig:static_variance_reducion",
        "section:static_variance_reduction",
        "sec:dynamic_variance_reduction",
        "fig:dynamic_variance_reduction",
        "fig:diff_trace",
        "tab:cpu-timing",
    ]
    assert [label for label in labels if label not in text] == []
