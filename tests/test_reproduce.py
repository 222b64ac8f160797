"""The command that reproduces the paper: the files that it leaves, and the faults it survives."""

import csv
import errno
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest
from reproduce_tiny import TINY, reproduce

from quell_cli import reproduce as command
from quell_cli.main import main
from quell_paper import reproduce as laboratory
from quell_paper import static, store
from quell_paper.config import EXPERIMENTS, PAPER


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run of everything."""
    out = tmp_path_factory.mktemp("whole")
    jax.config.update("jax_disable_most_optimizations", True)
    assert reproduce(out) == 0
    yield out
    jax.config.update("jax_disable_most_optimizations", False)


def rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_every_experiment_leaves_a_tidy_table_with_its_setting_seed_and_versions(whole):
    for experiment in EXPERIMENTS:
        table = rows(whole / f"{experiment}.csv")
        assert table
        assert all("jax=" in row["versions"] for row in table)
    static = rows(whole / "static.csv")
    # Two networks, one stage, two measurements, two seeds.
    assert len(static) == 2 * 1 * 2 * 2
    assert {row["seed"] for row in static} == {"0", "1"}
    assert {(row["network"], row["criterion"]) for row in static} == {
        ("none", "squared_difference"),
        ("4", "squared_difference"),
    }
    assert all(float(row["plain_draws"]) > 0 for row in static)


def test_coefficients_change_the_variance_once_they_have_learned(whole):
    static = rows(whole / "static.csv")
    later = [row for row in static if row["coefficient_steps"] == "3"]
    assert all(row["controlled_draws"] != row["plain_draws"] for row in later)


def test_both_orders_are_measured_at_the_same_coefficients(whole):
    table = rows(whole / "orders.csv")
    assert len(table) == 2 * 2  # orders, seeds
    by_order = {row["order"]: row for row in table if row["seed"] == "0"}
    ours, papers = by_order["apply_then_learn"], by_order["learn_then_apply"]
    assert ours["plain_draws"] == papers["plain_draws"]
    assert ours["controlled_draws"] != papers["controlled_draws"]
    for page in ("report.html", "reproduction.md"):
        assert "The order of learning and applying" in (whole / page).read_text()
        assert "The remaining variance in numbers" in (whole / page).read_text()


def test_the_two_orders_train_differently(whole):
    traces = rows(whole / "traces.csv")
    papers = [row for row in traces if row["basis"] == "linear" or row["network"] == "plain"]
    by_order = {
        order: [row["nelbo"] for row in papers if row["order"] == order]
        for order in ("none", "apply_then_learn", "learn_then_apply")
    }
    assert all(len(values) == 2 * 2 for values in by_order.values())
    first = [values[0] for values in by_order.values()]
    assert len(set(first)) == 1  # the same start, and an exact bound
    last = [values[1] for values in by_order.values()]
    assert last[1] != last[2]


def test_figures_come_as_png_and_pdf_and_the_report_needs_nothing_else(whole):
    names = {path.stem for path in (whole / "figures").glob("*.png")}
    assert names == {path.stem for path in (whole / "figures").glob("*.pdf")}
    assert {
        "figure-1",
        "static-logistic-linear-squared_difference-full-0.01",
        "own-variance",
    } <= names
    page = (whole / "report.html").read_text()
    assert page.count("data:image/png;base64,") == len(names)
    assert "http://" not in page
    assert "https://" not in page
    assert "Table 1" in page
    assert page.count("<img alt=") == page.count("<img")


def test_the_summary_lists_eleven_claims(whole):
    claims = json.loads((whole / "summary.json").read_text())["claims"]
    assert [claim["id"] for claim in claims] == list(range(1, 12))
    assert all({"verdict", "effect", "low", "high"} <= claim.keys() for claim in claims)


def test_figure_one_finds_a_point_that_the_common_variate_makes_worse(whole):
    points = {row["point"]: row for row in rows(whole / "figure-1.csv")}
    left = {
        kind: [float(p[f"variance_{kind}"]) / float(p["variance"]) for p in points.values()]
        for kind in ("dependent", "independent")
    }
    assert max(left["independent"]) > 1
    assert max(left["dependent"]) < 0.5


def test_a_second_run_does_nothing_again(whole, capsys):
    before = {path: path.stat().st_mtime_ns for path in (whole / "records").rglob("*.json")}
    assert reproduce(whole, "static") == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert "2 of 2 jobs were done before" in capsys.readouterr().err


def test_damaged_records_are_noticed_named_and_done_again(whole, capsys):
    paths = sorted((whole / "records" / "static").glob("*.json"))
    table = (whole / "static.csv").read_bytes()
    half, changed = paths
    half.write_text(half.read_text()[:-100])
    changed.write_text(changed.read_text().replace('"seed":[0', '"seed":[7', 1))
    assert reproduce(whole, "static") == 0
    said = capsys.readouterr().err
    assert all(f"{path}: damaged" in said for path in paths)
    assert "were done before" not in said
    assert (whole / "static.csv").read_bytes() == table


def test_after_a_kill_the_rest_is_done_and_the_result_is_the_same(whole, tmp_path):
    script = Path(__file__).with_name("reproduce_tiny.py")
    environment = os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    child = subprocess.Popen(
        [sys.executable, script, tmp_path, "static"], env=environment, stderr=subprocess.DEVNULL
    )
    finished = lambda: list((tmp_path / "records").rglob("*.json"))  # noqa: E731
    deadline = time.monotonic() + 300
    while not finished() and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert len(finished()) >= 1
    assert not (tmp_path / "summary.json").exists()
    (tmp_path / "records" / "static" / "tmp123.part").write_text("half a reco")
    kept = {path: path.stat().st_mtime_ns for path in finished()}

    assert reproduce(tmp_path, "static") == 0
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert not list(tmp_path.rglob("*.part"))
    assert (tmp_path / "static.csv").read_bytes() == (whole / "static.csv").read_bytes()


def test_a_file_in_place_of_the_directory_is_a_clear_error(tmp_path, capsys):
    (tmp_path / "taken").write_text("")
    assert reproduce(tmp_path / "taken", "static") == 2
    said = capsys.readouterr().err
    assert "--out" in said
    assert "taken" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_full_or_read_only_disk_is_a_clear_error(tmp_path, capsys, monkeypatch, number):
    def refuse(descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(store.os, "fsync", refuse)
    assert reproduce(tmp_path, "static") == 2
    said = capsys.readouterr().err
    assert os.strerror(number) in said
    assert "writable and has space left" in said
    assert not list(tmp_path.rglob("*.part"))


def test_undecided_claims_take_more_seeds_up_to_the_cap(tmp_path, monkeypatch):
    plan, rounds = replace(TINY, looks=3), []
    undecided, settled = (job.identity for job in static.jobs(plan))
    claims = [SimpleNamespace(undecided_jobs=frozenset({undecided}))]
    monkeypatch.setattr(laboratory, "run", lambda jobs, *_: rounds.append(list(jobs)))
    monkeypatch.setattr(laboratory, "collected", lambda *_: None)
    monkeypatch.setattr(laboratory, "judge", lambda results: claims)
    monkeypatch.setattr(laboratory, "publish", lambda *args: None)
    laboratory.reproduce({"logistic": plan}, tmp_path, experiments=("static",))
    seeds = {undecided: [], settled: []}
    for job in rounds[-1]:
        seeds[job.identity].append(job.setting["first_seed"])
    assert seeds == {undecided: [0, 2, 4], settled: [0]}
    assert [len(jobs) for jobs in rounds] == [2, 3, 4]

    rounds.clear()
    claims[0].undecided_jobs = frozenset()
    laboratory.reproduce({"logistic": plan}, tmp_path, experiments=("static",))
    assert [len(jobs) for jobs in rounds] == [2]


def test_jobs_for_which_there_is_no_time_are_named(whole, tmp_path, capsys):
    assert reproduce(tmp_path, "static", "--minutes", "0") == 0
    assert "2 of 2 jobs are left for another time" in capsys.readouterr().err
    for page in ("report.html", "reproduction.md"):
        assert (
            "2 jobs are left for another time: static logistic (2)."
            in (tmp_path / page).read_text()
        )
        assert "left for another time" not in (whole / page).read_text()


def test_a_setting_has_a_place_of_its_own(tmp_path):
    jobs = static.jobs(TINY) + static.jobs(replace(TINY, seeds=3))
    paths = {store.path_of(tmp_path, job.experiment, job.setting) for job in jobs}
    assert len(paths) == len(jobs)


def test_the_command_offers_every_experiment_and_model():
    assert command.EXPERIMENTS == EXPERIMENTS
    assert tuple(PAPER) == command.MODELS


def test_an_experiment_without_jobs_leaves_a_report(tmp_path):
    assert (
        main(["reproduce", "orders", "--quick", "--model", "deep-gp", "--out", str(tmp_path)]) == 0
    )
    assert "not run" in (tmp_path / "report.html").read_text()


def test_without_its_tools_the_command_says_what_to_install(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "quell_paper.reproduce", None)
    assert reproduce(tmp_path, "static") == 2
    assert "pip install 'quell[paper]'" in capsys.readouterr().err
