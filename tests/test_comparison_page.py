"""The tables of docs/comparison.md are written from what was measured."""

import importlib.util
import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "docs" / "make_comparison.py"


@pytest.fixture(scope="module")
def page():
    spec = importlib.util.spec_from_file_location("make_comparison", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row(name, size, total, seconds, *, error=None, plain=1.0, best=1.0):
    return {
        "name": name,
        "batch_size": size,
        "variance_draws": total / 2,
        "variance_points": total / 2,
        "variance_total": total,
        "error": total if error is None else error,
        "seconds_per_step": seconds,
        "efficiency_vs_plain": plain,
        "efficiency_vs_best": best,
    }


def test_tables_replace_what_stands_between_the_marks(page, tmp_path):
    document = {
        "estimators": [
            row("quiet", 10, 2.0, 2e-5, plain=4.0, best=3.0),
            row("plain", 10, 8.0, 1e-5),
            row("plain", 100, 0.8, 1e-4, best=0.5),
            row("lopsided", 10, 2.0, 2e-5, error=5.0, plain=0.7, best=0.6),
        ],
        "unavailable": {
            "one": "not available: q: expected a density: one looks at it, got none. Make it.",
            "other": "not available: q: expected a density: other looks at it, got none. Make it.",
        },
        "ceilings": {"linear": {"value": 0.0312, "low": 0.03, "high": 0.04}, "cubic": "too many"},
    }
    (tmp_path / "titanic.json").write_text(json.dumps(document))
    text = "before <!-- begin titanic -->\nold\n<!-- end titanic --> after <!-- begin magic -->"
    written = page.with_tables(text, tmp_path)
    assert "old" not in written
    assert written.startswith("before <!-- begin titanic -->\n| estimator |")
    assert written.endswith("<!-- end titanic --> after <!-- begin magic -->")
    lines = written.splitlines()
    assert lines[3] == "| quiet | 0.25, 0.25, 0.25; 20; **4** | – | 3.00 |"
    assert lines[4] == "| plain | 1, 1, 1; 10; **1** | 1, 1, 1; 100; **1** | 1.00 |"
    assert "(biased)" in lines[5]
    assert "linear 0.031; cubic too many" in written
    assert "Not here: one, other. They need a density." in written
    assert page.with_tables(written, tmp_path) == written
