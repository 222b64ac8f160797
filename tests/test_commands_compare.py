"""`quell compare` and `quell bench` on the command line."""

import json

import jax
import pytest

from quell.contexts import as_matrix
from quell_cli import benchmarks
from quell_cli.catalogue import MODELS, estimators, problem
from quell_cli.main import main


@pytest.mark.slow
def test_compare_writes_table_json_and_figure(tmp_path, capsys):
    arguments = "compare --estimators antithetic --batch-sizes 10 --steps 20 --seconds 40 --json"
    assert main([*arguments.split(), "--out", str(tmp_path)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads((tmp_path / "comparison.json").read_text())
    rows = {row["name"]: row for row in document["estimators"]}
    assert set(rows) == {"plain", "plain-4", "antithetic", "antithetic-8"}
    wanted = "variance_total variance_draws variance_points seconds_per_step"
    for row in rows.values():
        for name in (*wanted.split(), "efficiency_vs_plain", "efficiency_vs_best"):
            assert isinstance(row[name], float)
    assert rows["plain"]["efficiency_vs_plain"] == 1.0
    assert rows["plain-4"]["variance_draws"] < rows["plain"]["variance_draws"]
    best = max(row["efficiency_vs_best"] for row in rows.values())
    assert document["estimators"][0]["efficiency_vs_best"] == best == 1.0
    assert "logistic on titanic" in (tmp_path / "comparison.txt").read_text()
    assert (tmp_path / "frontier.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--model gan", ("model", "deep-gp")),
        ("--estimators magic", ("estimators", "taylor")),
        ("--data people.csv", ("target", "--target")),
        ("--data people.csv --target age", ("no such file",)),
        ("--data nothing", ("name", "spambase")),
    ],
)
def test_compare_says_what_is_wrong(arguments, words, capsys):
    assert main(["compare", *arguments.split()]) == 2
    message = capsys.readouterr().err
    assert all(word in message for word in words)


def test_an_interrupted_comparison_ends_without_a_traceback(monkeypatch, capsys):
    def interrupted(*args, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr("quell.diagnostics.compare.compare", interrupted)
    assert main(["compare"]) == 130
    assert "before anything was measured" in capsys.readouterr().err


def test_a_csv_file_is_compared_by_its_target(tmp_path):
    path = tmp_path / "people.csv"
    lines = [f"{i % 5},{(i * 7) % 11},{'yes' if i % 3 else 'no'}" for i in range(40)]
    path.write_text("\n".join(["age,height,tall", *lines]))
    given = problem("logistic", str(path), "tall")
    assert given.name == "logistic on people.csv"
    assert given.data["x"].shape == (40, 3)  # with a column of ones
    assert given.objective.num_data == 40


@pytest.mark.slow
@pytest.mark.parametrize("model", ["logistic", "deep-gp"])
def test_the_estimators_start_or_say_why_not(model, key):
    given = problem(model)
    started, refused = {}, {}
    for name, estimator in estimators(given).items():
        try:
            started[name] = estimator.start(key, given.objective, given.init(key), given.data)
        except ValueError as error:
            refused[name] = str(error)
    assert {"plain", "antithetic", "recognition-network", "taylor", "svrg"} <= set(started)
    structured = {"sticking-the-landing", "score-function", "black-box", "surrogate", "joint"}
    if model == "logistic":
        assert not refused
    else:
        assert structured <= set(refused)
    batch = jax.tree.map(lambda leaf: leaf[:4], given.data)
    assert as_matrix(batch, given.select).shape == (4, given.data["x"].shape[1] + 1)


def test_every_model_of_the_command_exists():
    assert set(MODELS) == {"logistic", "deep-gp", "bnn", "vae"}


@pytest.mark.slow
def test_bench_prints_tables_and_json(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(benchmarks, "STEPS", 20)
    monkeypatch.setattr(benchmarks, "SIZES", (20, 40))
    assert main(["bench", "--only", "growth", "--rounds", "2", "--out", str(tmp_path)]) == 0
    assert "N = 40" in capsys.readouterr().out
    rows = json.loads((tmp_path / "bench.json").read_text())["growth"]["rows"]
    assert [row["data"] for row in rows] == ["N = 20", "N = 40"]
    assert all(row["µs per step, median"] >= row["least"] > 0 for row in rows)
