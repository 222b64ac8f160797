"""What the command line refuses: one line, exit code 2, before any work is done."""

import subprocess
import sys
import time

import pytest

from quell_cli.catalogue import problem
from quell_cli.main import main

ROWS = "\n".join(f"{i % 5},{(i * 7) % 11},{i % 3},{i * 0.37:.2f}" for i in range(40))
TABLES = {
    "good.csv": f"age,height,kind,weight\n{ROWS}\n".encode(),
    "header.csv": b"age,height,kind\n",
    "empty.csv": b"",
    "latin.csv": "âge,größe\n1,2\n".encode("latin-1"),
    "semicolons.csv": f"age,height,kind,weight\n{ROWS}\n".replace(",", ";").encode(),
    "decimals.csv": b"age;height;kind\n1,5;2,5;0\n2,5;1,5;1\n",
    "binary.csv": bytes(range(256)),
}


def refused(arguments, capsys):
    """The line on standard error of a command that is refused."""
    try:
        code = main(arguments)
    except SystemExit as error:
        code = error.code
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("compare --seconds -3", "argument --seconds: expected a positive number, got '-3'"),
        ("compare --seconds nan", "argument --seconds: expected a positive number, got 'nan'"),
        ("compare --seconds soon", "argument --seconds: expected a positive number, got 'soon'"),
        ("compare --steps -5", "argument --steps: expected a whole number from 0 on, got '-5'"),
        ("compare --steps 1e3", "argument --steps: expected a whole number from 0 on, got '1e3'"),
        ("compare --batch-sizes 10,x", "argument --batch-sizes: expected positive whole numbers"),
        ("compare --batch-sizes 0", "argument --batch-sizes: expected positive whole numbers"),
        ("compare --batch-sizes ,", "argument --batch-sizes: expected positive whole numbers"),
        ("compare --estimators ,", "argument --estimators: expected names separated by commas"),
        ("compare --objective inf", "argument --objective: expected a finite number"),
        ("compare --seed -1", "argument --seed: expected a whole number from 0 on"),
        ("compare --model gan", "model: expected one of"),
        ("compare --estimators magic", "estimators: expected some of"),
        ("compare --out good.csv", "--out: expected a directory that can be written to"),
        ("compare --out good.csv/deep", "--out: expected a directory that can be written to"),
        ("compare --out /proc/none", "--out: expected a directory that can be written to"),
        ("bench --out good.csv", "--out: expected a directory that can be written to"),
        ("bench --rounds 0", "argument --rounds: expected a whole number from 1 on, got '0'"),
        ("bench --only nothing", "argument --only: invalid choice"),
        ("reproduce --seeds 0", "argument --seeds: expected a whole number from 1 on, got '0'"),
        ("reproduce --minutes -3", "argument --minutes: expected a number from 0 on, got '-3'"),
        ("reproduce --out good.csv", "--out: expected a directory that can be written to"),
        ("compare --data good.csv", "target: expected the name of the target column"),
        ("compare --data good.csv --target age --model deep", "model: expected one of"),
        ("compare --data . --target y", "expected a CSV file, got a directory"),
        ("compare --data missing.csv --target y", "no such file"),
        ("compare --data header.csv --target kind", "expected rows after the header"),
        ("compare --data empty.csv --target kind", "got an empty file"),
        ("compare --data latin.csv --target kind", "expected text in UTF-8, got the byte 0xe2 on"),
        ("compare --data binary.csv --target kind", "binary.csv: expected"),
        ("compare --data semicolons.csv --target kind", "look separated by ';'"),
        ("compare --data decimals.csv --target kind", "look separated by ';'"),
        ("compare --data good.csv --target colour", "target: expected one of the columns"),
        ("compare --data good.csv --target kind", "got a target of 3 classes (0, 1, 2)"),
        ("compare --data good.csv --target weight", "got a target of 40 different numbers in 40"),
        ("compare --data airfoil", "expected a target of two classes, got a target of 1456 diff"),
        ("compare --model deep-gp --data titanic", "expected a target of numbers, got a target"),
        ("compare --model vae --data good.csv --target kind", "expected inputs from 0 to 1"),
        ("shout", "invalid choice: 'shout'"),
        ("", "the following arguments are required: COMMAND"),
    ],
)
def test_mistakes_are_one_line(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, text in TABLES.items():
        (tmp_path / name).write_bytes(text)
    line = refused(arguments.split(), capsys)
    assert words in line
    assert line.startswith("quell: ")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(TABLES)


@pytest.mark.parametrize(("target", "outputs"), [("kind", 3), ("weight", 1)])
def test_a_network_takes_classes_and_numbers(tmp_path, target, outputs):
    path = tmp_path / "good.csv"
    path.write_bytes(TABLES["good.csv"])
    given = problem("bnn", str(path), target)
    assert given.objective.noise.size == 3 * 50 + 50 + 50 * outputs + outputs


def test_version_and_help_need_no_jax():
    script = (
        "import sys; from quell_cli.main import main\n"
        "try: main(['--{}'])\n"
        "except SystemExit as error: assert error.code == 0\n"
        "assert 'jax' not in sys.modules and 'numpy' not in sys.modules"
    )
    for option, words in (("version", "quell 0."), ("help", "compare")):
        began = time.monotonic()
        command = [sys.executable, "-c", script.format(option)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        assert words in done.stdout
        assert time.monotonic() - began < 5  # alone it takes a tenth of a second
