"""Hooks of `fit`: they watch values, call functions, keep checkpoints and draw a bar."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from jaxtyping import Array, Float, PyTree

from quell._arguments import checked
from quell._arguments import function as called
from quell._checks import check_whole
from quell._errors import invalid
from quell.training.loop import Step
from quell.training.progress import Bar, no_bar

Monitor = Callable[[Step], Float[Array, ""]]


class Monitors(NamedTuple):
    """Named functions of a `Step`, evaluated inside the loop; see `monitor`."""

    functions: tuple[tuple[str, Monitor], ...]
    every: int


class Callback(NamedTuple):
    """A function called on the host between steps; see `callback`."""

    function: Callable[[int, PyTree[Array], dict[str, Any]], None]
    every: int


class Checkpoint(NamedTuple):
    """A directory in which the run is saved; see `checkpoint`."""

    directory: Path
    every: int


class Progress(NamedTuple):
    """A way to show the progress of a run: `start(num_steps)` gives a `Bar`."""

    start: Callable[[int], Bar]


Hook = Monitors | Callback | Checkpoint | Progress


def monitor(*, every: int = 100, **functions: Monitor) -> Monitors:
    """Watch values: named functions from a `Step` to a scalar, evaluated inside the loop.

    Args:
      every: steps from one evaluation to the next; the history holds NaN in between.
      functions: the functions; their names become names in the history.
    """
    check_whole("every", every, 1)
    bad = [name for name, function in functions.items() if not callable(function)]
    if bad or not functions:
        raise invalid(
            "functions",
            expected="at least one named function of a Step",
            got=f"{bad[0]}, which cannot be called" if bad else "no function",
            advice="For example quell.monitor(ratio=f, every=500).",
        )
    return Monitors(tuple(functions.items()), every)


@checked(function=called("function(step, params, history)"))
def callback(
    function: Callable[[int, PyTree[Array], dict[str, Any]], None], *, every: int = 1000
) -> Callback:
    """Call `function(step, params, history)` on the host, with the history so far.

    Args:
      function: the function.
      every: steps from one call to the next.
    """
    return Callback(function, every)


@checked()
def checkpoint(directory: str | os.PathLike[str], *, every: int = 1000) -> Checkpoint:
    """Keep checkpoints in a directory: an interrupted run continues exactly from its last one.

    The same call of `fit` goes on, also to more steps than before. Ctrl-C saves the run where it is
    and then stops it; a second Ctrl-C stops at once. A directory serves one run in one process at a
    time. It is refused if key, data, objective, initial params, batch size, monitors, optimiser or
    estimator are not those of its run, as far as they show: the objective in the losses of a few
    rows, the optimiser in its first two updates, the rest in the first three steps, which are taken
    again. So a schedule that differs only in later steps, such as a longer one for more steps, is
    taken as it is. A checkpoint that was damaged is named, and the one before it used.

    Args:
      directory: the directory, made if it is missing.
      every: steps from one checkpoint to the next. The end is saved as well.
    """
    if not isinstance(directory, str | os.PathLike):
        raise invalid(
            "directory",
            expected="the path of a directory",
            got=repr(directory),
            advice="For example quell.checkpoint('run').",
        )
    check_whole("every", every, 1)
    return Checkpoint(Path(directory), every)


silent = Progress(no_bar)
"""The hook that draws no progress bar."""


def check_hooks(hooks: Any) -> None:
    """Refuse anything but a sequence of hooks with different monitor names."""
    if not isinstance(hooks, list | tuple):
        hooks = [hooks]
    for hook in hooks:
        if not isinstance(hook, Hook):
            raise invalid(
                "hooks",
                expected="hooks made by monitor, callback or checkpoint, or quell.silent",
                got=repr(hook),
                advice="For example hooks=[quell.checkpoint('run')].",
            )
    names = [name for hook in hooks if isinstance(hook, Monitors) for name, _ in hook.functions]
    taken = {"objective", "gradient_norm", "correction_norm", "skipped"}
    if len({*names, *taken}) < len(names) + len(taken):
        raise invalid(
            "hooks",
            expected=f"monitors with different names, none of {sorted(taken)}",
            got=names,
            advice="Rename a monitor.",
        )
