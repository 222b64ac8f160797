"""Checkpoints of a run on disk: each whole or absent, and believed only if its checksums agree.

run/lock                    held while a process runs here
run/400/arrays.npz          the arrays, one for each leaf
run/400/manifest.json       the identity of the run, and what each leaf is
run/400/SHA256SUMS          checksums of the two; `sha256sum --check` reads the file, too
"""

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from quell._errors import invalid
from quell.training.identity import differences
from quell.training.lock import gone, locked

_FORMAT = 1
_FILES = ("arrays.npz", "manifest.json")
_SUMS = "SHA256SUMS"
_ADVICE = "Name a new directory, or resume with the arguments of the interrupted run."


class Checkpoints(NamedTuple):
    """The checkpoints of one run in one directory.

    Attributes:
      latest: the last saved step whose checkpoint was intact when the directory was opened, or
        None.
      save: `save(step, tree)` returns True when the whole checkpoint is on disk. If it cannot be
        written, a warning says why, the run may go on, and earlier checkpoints stay as they are.
      restore: `restore(tree)` gives the arrays of `latest` in the structure of `tree`.
    """

    latest: int | None
    save: Callable[[int, PyTree], bool]
    restore: Callable[[PyTree], PyTree]


@contextmanager
def in_directory(
    directory: str | Path, identity: Mapping[str, Any], *, keep: int = 2
) -> Iterator[Checkpoints]:
    """The last few checkpoints of a run, in a directory that no other process may use meanwhile.

    Args:
      directory: the directory, made if it is missing.
      identity: the facts that tell this run from others, from `identity_of`. A directory whose
        checkpoints have another identity is refused.
      keep: the number of checkpoints to keep.
    """
    directory = Path(directory).absolute()
    lock = locked(directory)
    try:
        for passing in directory.glob("*.part"):  # of a process that was killed
            shutil.rmtree(passing, ignore_errors=True)
        latest = _newest_intact(directory)
        manifest = {} if latest is None else _manifest(directory / str(latest))
        if latest is not None:
            _check_identity(directory, manifest, identity)

        def save(step, tree):
            nonlocal lock
            try:
                if gone(directory, lock):
                    _warn(f"{directory} was removed under way. It is made anew.")
                    anew = locked(directory)
                    lock.close()
                    lock = anew
                _write(directory / str(step), {"identity": identity, "step": step}, tree)
                older = [saved for saved in _steps(directory) if saved <= step]
                for old in older[:-keep]:
                    _remove(directory / str(old))
            except (OSError, ValueError) as error:  # the second from a lock that is not given
                _warn(
                    f"the checkpoint of step {step} could not be written to {directory}: "
                    f"{getattr(error, 'strerror', None) or error}. The run goes on, and earlier "
                    "checkpoints are as they were."
                )
                return False
            return True

        def restore(tree):
            _check_leaves(manifest["leaves"], _described(tree))
            with np.load(directory / str(latest) / "arrays.npz") as stored:
                return _rebuilt(tree, [stored[f"arr_{i}"] for i in range(len(stored.files))])

        yield Checkpoints(latest, save, restore)
    finally:
        lock.close()


def _steps(directory: Path) -> list[int]:
    """The steps of the checkpoints, damaged or not, in order."""
    return sorted(int(path.name) for path in directory.iterdir() if path.name.isdecimal())


def _newest_intact(directory: Path) -> int | None:
    """The newest checkpoint that is not damaged; a warning names each newer one that is."""
    complaints = []
    for step in reversed(_steps(directory)):
        complaint = _damage(directory / str(step))
        if complaint is None:
            for each in complaints:
                _warn(f"{each}. The checkpoint of step {step} is used instead.")
            return step
        complaints.append(complaint)
    if complaints:
        raise invalid(
            "checkpoint",
            expected="at least one intact checkpoint",
            got="; ".join(complaints),
            advice="Nothing was changed. Restore the directory from a copy, or name a new one.",
        )
    return None


def _damage(place: Path) -> str | None:
    """What is wrong with a checkpoint, if anything is."""
    try:
        stored = (place / _SUMS).read_bytes()
        if stored != (expected := _sums(place)):  # to the last byte
            lines = zip(_FILES, expected.splitlines(), strict=True)
            damaged = [name for name, line in lines if line not in stored]
            return f"{place / (damaged or [_SUMS])[0]} is damaged (its checksum does not agree)"
    except OSError as error:
        return f"{place} is damaged ({Path(error.filename or place).name}: {error.strerror})"
    if (form := _manifest(place).get("format")) != _FORMAT:
        return f"{place} is of format {form}, which this version of quell does not read"
    return None


def _manifest(place: Path) -> dict[str, Any]:
    return json.loads((place / "manifest.json").read_text())


def _write(place: Path, facts: Mapping[str, Any], tree: PyTree) -> None:
    """Write a checkpoint beside its place, and move it there when it is safe on disk."""
    part = place.with_suffix(".part")
    leaves = [_plain(leaf) for leaf in jax.tree.leaves(tree)]
    manifest = {"format": _FORMAT, **facts, "leaves": _described(tree)}
    try:
        part.mkdir()
        with _synced(part / "arrays.npz") as file:
            np.savez(file, *leaves)
        with _synced(part / "manifest.json") as file:
            file.write(json.dumps(manifest, indent=1).encode())
        with _synced(part / _SUMS) as file:
            file.write(_sums(part))
        _sync(part)
        if place.exists():  # damaged, or the run would have gone on from there
            _remove(place)
        os.rename(part, place)
        _sync(place.parent)
    except OSError:
        shutil.rmtree(part, ignore_errors=True)
        raise


@contextmanager
def _synced(path: Path) -> Iterator[IO[bytes]]:
    """A new file that is on the disk itself at the end, so that a power cut cannot empty it."""
    with path.open("xb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _sync(directory: Path) -> None:
    """Put the names within a directory on the disk."""
    if os.name != "posix":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(place: Path) -> None:
    """Remove a checkpoint; it loses its name first, so that a kill leaves no half of it."""
    old = place.with_suffix(".old.part")
    os.rename(place, old)
    shutil.rmtree(old, ignore_errors=True)


def _sums(place: Path) -> bytes:
    """The checksums of a checkpoint's files, as `sha256sum` writes them."""
    return "".join(f"{_digest(place / name)}  {name}\n" for name in _FILES).encode()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _plain(leaf: Any) -> np.ndarray:
    """The leaf as numbers on the host: a typed key becomes its words."""
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _described(tree: PyTree) -> list[str]:
    """Name, dtype and shape of every leaf."""
    with_paths = jax.tree_util.tree_leaves_with_path(tree)
    plain = [(jax.tree_util.keystr(path), _plain(leaf)) for path, leaf in with_paths]
    return [f"{name} {leaf.dtype}{list(leaf.shape)}" for name, leaf in plain]


def _rebuilt(tree: PyTree, stored: list[np.ndarray]) -> PyTree:
    """The tree with its leaves replaced by the stored arrays."""
    leaves, treedef = jax.tree.flatten(tree)

    def leaf(array, like):
        if _is_key(like):
            return jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(like))
        return array.view(_plain(like).dtype)  # numpy's file keeps only the bytes of bfloat16

    return treedef.unflatten([leaf(array, like) for array, like in zip(stored, leaves)])


def _check_identity(directory: Path, manifest: Mapping[str, Any], identity: Mapping) -> None:
    differing = differences(manifest["identity"], identity)
    if differing:
        raise invalid(
            "checkpoint",
            expected="a directory with checkpoints of this run",
            got=f"{directory}, which holds a run with {' and with '.join(differing)}",
            advice=_ADVICE,
        )


def _check_leaves(found: list[str], expected: list[str]) -> None:
    if found != expected:
        pairs = [(a, b) for a, b in zip(found, expected) if a != b]
        got = f"{pairs[0][0]} in place of {pairs[0][1]}" if pairs else f"{len(found)} arrays"
        raise invalid(
            "checkpoint",
            expected=f"the {len(expected)} arrays of this run",
            got=got,
            advice=_ADVICE,
        )


def _warn(message: str) -> None:
    warnings.warn(f"checkpoint: {message}", RuntimeWarning, stacklevel=2)
