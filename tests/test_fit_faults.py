"""Faults: what is damaged, full, gone or taken is noticed and named, and nothing good is lost."""

import errno
import os
import re
import resource
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import jax
import killing
import numpy as np
import pytest
from test_fit import T, assert_identical, run

from quell import callback, checkpoint
from quell.training import checkpoint as module
from quell.training.checkpoint import in_directory
from quell.training.identity import _WORDS

FILES = ("arrays.npz", "manifest.json", "SHA256SUMS")
IDENTITY = dict.fromkeys(_WORDS, "the same")


def tree(step):
    return {"a": np.arange(500.0) + step, "b": np.full((3, 2), step, np.int32)}


def open_it(directory):
    return in_directory(directory, IDENTITY)


def saved(directory, *steps):
    with open_it(directory) as opened:
        assert all(opened.save(step, tree(step)) for step in steps)


def assert_holds(directory, step):
    with open_it(directory) as opened:
        assert opened.latest == step
        assert_identical(opened.restore(tree(0)), tree(step))


def flipped(path, place):
    content = bytearray(path.read_bytes())
    content[int(place * (len(content) - 1))] ^= 4
    path.write_bytes(content)


def truncated(path, share):
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])


DAMAGES = {
    **{f"flipped {p}": lambda path, p=p: flipped(path, p) for p in (0.0, 0.3, 0.7, 1.0)},
    **{f"truncated {p}": lambda path, p=p: truncated(path, p) for p in (0.0, 0.5, 0.99)},
    "removed": lambda path: path.unlink(),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(tmp_path, name, damage):
    saved(tmp_path, 10, 20)
    DAMAGES[damage](tmp_path / "20" / name)
    with pytest.warns(RuntimeWarning, match=rf"{tmp_path}/20.* is damaged .*step 10 is used"):
        assert_holds(tmp_path, 10)
    with pytest.warns(RuntimeWarning, match="is damaged"), open_it(tmp_path) as opened:
        assert opened.save(20, tree(20))
    assert_holds(tmp_path, 20)


def test_if_every_checkpoint_is_damaged_the_run_is_refused_and_nothing_changed(tmp_path):
    saved(tmp_path, 10, 20)
    for step in ("10", "20"):
        flipped(tmp_path / step / "arrays.npz", 0.5)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    expected = r"at least one intact checkpoint, got .*/20/arrays.npz is damaged .*; .*/10/arrays"
    with pytest.raises(ValueError, match=expected), open_it(tmp_path):
        pass
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*")} == before


def test_half_of_a_checkpoint_is_no_checkpoint(tmp_path):
    saved(tmp_path, 10)
    shutil.copytree(tmp_path / "10", tmp_path / "20.part")
    (tmp_path / "20.part" / "SHA256SUMS").unlink()
    assert_holds(tmp_path, 10)
    assert not (tmp_path / "20.part").exists()


def test_checksums_can_be_checked_without_quell(tmp_path):
    saved(tmp_path, 10)
    if not shutil.which("sha256sum"):
        pytest.skip("no sha256sum")
    check = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    assert subprocess.run(check, cwd=tmp_path / "10", capture_output=True).returncode == 0


@contextmanager
def small_files(most):
    """No file may grow beyond so many bytes, as on a disk that is nearly full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("most", [0, 1, 100, 1000, 4000, 4300])
def test_a_write_that_fails_leaves_the_last_checkpoint_as_it_was(tmp_path, most):
    saved(tmp_path, 10)
    with open_it(tmp_path) as opened:
        with small_files(most), pytest.warns(RuntimeWarning, match="step 20 could not be written"):
            assert not opened.save(20, tree(20))
        assert not list(tmp_path.glob("*.part"))
        assert opened.save(30, tree(30))  # there is space again
    assert_holds(tmp_path, 30)
    shutil.rmtree(tmp_path / "30")
    assert_holds(tmp_path, 10)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_disk_that_fails_at_the_last_moment_is_named(tmp_path, monkeypatch, number):
    saved(tmp_path, 10)

    def refuse(descriptor):
        raise OSError(number, os.strerror(number))

    with open_it(tmp_path) as opened, monkeypatch.context() as patched:
        patched.setattr(module.os, "fsync", refuse)
        with pytest.warns(RuntimeWarning, match=re.escape(os.strerror(number))):
            assert not opened.save(20, tree(20))
    assert_holds(tmp_path, 10)


def test_a_directory_is_for_one_run_at_a_time(tmp_path):
    saved(tmp_path, 10)
    expected = rf"no other run is using, got {tmp_path}, which process {os.getpid()} is using"
    with open_it(tmp_path):
        with pytest.raises(ValueError, match=expected), open_it(tmp_path):
            pass
        script = "from quell.training.lock import locked; from pathlib import Path\n"
        script += f"locked(Path({str(tmp_path)!r}))"
        other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert f"which process {os.getpid()} is using" in other.stderr
    assert_holds(tmp_path, 10)


def test_a_place_that_cannot_be_a_directory_is_refused_at_once(tmp_path):
    (tmp_path / "taken").write_text("")
    expected = "checkpoint: expected a directory that can be made and written, got .*taken"
    with pytest.raises(ValueError, match=expected), open_it(tmp_path / "taken"):
        pass


def test_a_run_goes_on_when_its_directory_is_removed_or_taken(key, tmp_path):
    directory = tmp_path / "run"

    def remove(step, params, history):
        if step == 10:
            shutil.rmtree(directory)

    hooks = [checkpoint(directory, every=5), callback(remove, every=10)]
    with pytest.warns(RuntimeWarning, match="was removed under way. It is made anew"):
        assert_identical(run(key, hooks=hooks), run(key))
    assert sorted(path.name for path in directory.iterdir()) == ["25", "30", "lock"]

    others = []

    def take(step, params, history):
        if step == T + 10:  # another run begins where the directory was
            shutil.rmtree(directory)
            others.append(module.locked(directory))

    hooks = [checkpoint(directory, every=5), callback(take, every=10)]
    with pytest.warns(RuntimeWarning) as told:
        assert_identical(run(key, hooks=hooks, num_steps=2 * T), run(key, num_steps=2 * T))
    others[0].close()
    assert any(re.search("which process .* is using", str(w.message)) for w in told)
    assert [path.name for path in directory.iterdir()] == ["lock"]


def test_a_run_survives_a_full_disk_and_is_saved_when_there_is_space_again(key, tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(step, params, history):
        most = 1000 if step == 10 else limits[0]
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))

    hooks = [callback(fill, every=10), checkpoint(tmp_path, every=5)]
    try:
        with pytest.warns(RuntimeWarning, match="could not be written") as told:
            assert_identical(run(key, hooks=hooks), run(key))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len([w for w in told if "could not be written" in str(w.message)]) == 2  # at 10, 15
    resumed = run(key, hooks=[checkpoint(tmp_path)])
    assert_identical(resumed, run(key))


@pytest.mark.slow
def test_seeds_of_a_damaged_run_go_on_from_the_checkpoint_before(key, tmp_path):
    keys = jax.random.split(key, 2)
    run(keys, hooks=[checkpoint(tmp_path, every=20)])
    flipped(tmp_path / str(T) / "arrays.npz", 0.5)
    with pytest.warns(RuntimeWarning, match="step 20 is used"):
        assert_identical(run(keys, hooks=[checkpoint(tmp_path)]), run(keys))


@pytest.mark.slow
def test_kills_at_random_moments_lose_nothing(tmp_path):
    """Two fits and two kills of each; `make faults` does the same a hundred times."""
    script = Path(killing.__file__).parent
    code = f"""
import sys; sys.path.insert(0, {str(script)!r})
import killing, pathlib, random
place = pathlib.Path({str(tmp_path)!r})
for case in killing.fits((1,))[:2]:
    alone = killing.undisturbed(case, place / case.name / "undisturbed")
    found = killing.chain(case, place / case.name, alone, 2, random.Random(0))
    assert (found.kills, found.lost) == (2, 0), found
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
