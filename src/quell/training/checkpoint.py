"""Checkpoints of a run, kept by orbax: the arrays of the next step and the run's identity."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from quell._errors import invalid


class Checkpoints(NamedTuple):
    """The checkpoints of one run in one directory.

    Attributes:
      latest: `latest()` gives the last saved step, or None.
      save: `save(step, tree)` returns when the whole checkpoint is on disk.
      restore: `restore(step, tree)` gives the saved arrays in the shape of `tree`.
      close: `close()` is called once, at the end of the run.
    """

    latest: Callable[[], int | None]
    save: Callable[[int, PyTree], None]
    restore: Callable[[int, PyTree], PyTree]
    close: Callable[[], None]


def in_directory(
    directory: str | Path, identity: Mapping[str, Any], *, keep: int = 2
) -> Checkpoints:
    """The last few checkpoints of a run, kept in a directory.

    Args:
      directory: the directory, made if it is missing.
      identity: the facts that tell this run from others, as JSON values. A directory whose
        checkpoints have another identity is refused.
      keep: the number of checkpoints to keep.
    """
    ocp = _orbax()
    options = ocp.CheckpointManagerOptions(max_to_keep=keep, enable_async_checkpointing=False)
    manager = ocp.CheckpointManager(Path(directory).absolute(), options=options)

    def save(step, tree):
        args = ocp.args.Composite(
            arrays=ocp.args.StandardSave(_stored(tree)),
            identity=ocp.args.JsonSave({**identity, "leaves": _described(tree)}),
        )
        manager.save(step, args=args)

    def restore(step, tree):
        # the identity first: arrays of other shapes would fail with an error of orbax
        item = ocp.args.Composite(identity=ocp.args.JsonRestore())
        _check(manager.restore(step, args=item).identity, {**identity, "leaves": _described(tree)})
        item = ocp.args.Composite(arrays=ocp.args.StandardRestore(_stored(tree)))
        return _rebuilt(tree, manager.restore(step, args=item).arrays)

    return Checkpoints(manager.latest_step, save, restore, manager.close)


def _orbax() -> Any:
    try:
        import orbax.checkpoint as ocp
    except ImportError as error:
        raise ImportError(
            "checkpoint needs orbax. Install it with: pip install 'quell[checkpoint]'"
        ) from error
    return ocp


def _plain(leaf: Any) -> np.ndarray:
    """The leaf as numbers: a typed key becomes its words, since orbax stores plain arrays."""
    is_key = jnp.issubdtype(jnp.asarray(leaf).dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def _stored(tree: PyTree) -> dict[str, np.ndarray]:
    """The leaves that are not empty, by number: orbax refuses empty arrays."""
    leaves = map(_plain, jax.tree.leaves(tree))
    return {str(i): leaf for i, leaf in enumerate(leaves) if leaf.size}


def _rebuilt(tree: PyTree, stored: Mapping[str, Array]) -> PyTree:
    """The tree with its leaves replaced by the stored arrays."""
    leaves, treedef = jax.tree.flatten(tree)

    def leaf(i, like):
        if str(i) not in stored:  # an empty leaf
            return like
        if jnp.issubdtype(jnp.asarray(like).dtype, jax.dtypes.prng_key):
            words = jnp.asarray(stored[str(i)])
            return jax.random.wrap_key_data(words, impl=jax.random.key_impl(like))
        return stored[str(i)]

    return treedef.unflatten([leaf(i, like) for i, like in enumerate(leaves)])


def _described(tree: PyTree) -> list[str]:
    """Name, dtype and shape of every leaf."""
    with_paths = jax.tree_util.tree_leaves_with_path(tree)
    plain = [(jax.tree_util.keystr(path), _plain(leaf)) for path, leaf in with_paths]
    return [f"{name} {leaf.dtype}{list(leaf.shape)}" for name, leaf in plain]


def _check(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    for name, value in expected.items():
        if found.get(name) != value:
            raise invalid(
                "checkpoint",
                expected=f"checkpoints of this run, with {name} {value}",
                got=f"{name} {found.get(name)}",
                advice="Resume with the arguments of the interrupted run, or name a new directory.",
            )
