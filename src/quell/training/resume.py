"""Going on after an interruption: the checkpoints of a run in all its directories, and Ctrl-C."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from quell._errors import invalid
from quell.training.checkpoint import in_directory
from quell.training.hooks import Checkpoint
from quell.training.loop import Carried, Loop, RunKeys

_AGAIN = 3  # steps that are taken again: the first may not yet show what has been learned
_TOLERANCE = 1e-3  # relative to the largest value: another machine rounds differently

Table = Float[np.ndarray, "*seeds T columns"]


class Saving(NamedTuple):
    """The checkpoints of a run.

    Attributes:
      resume: `resume(loop, keys, carried, data, table)` gives the last saved step and the arrays
        carried there, and fills the table up to this step. The call consumes `carried`.
      save: `save(step, carried, table, at_once=False)` saves where a checkpoint is due, or
        everywhere, and says where.
    """

    resume: Callable[..., tuple[int, Carried]]
    save: Callable[..., None]


@contextmanager
def saving(
    checkpoints: Sequence[Checkpoint], identity: Callable[[], dict[str, Any]]
) -> Iterator[Saving]:
    """Open the directories of a run; refuse those of another run or in use by another process."""
    with ExitStack() as stack:
        known = identity() if checkpoints else {}
        opened = [
            (hook, stack.enter_context(in_directory(hook.directory, known))) for hook in checkpoints
        ]

        def resume(loop: Loop, keys: RunKeys, carried: Carried, data, table: Table):
            found = [(saved.latest, saved.restore) for _, saved in opened if saved.latest]
            if not found:
                return 0, carried
            step, restore = max(found, key=lambda pair: pair[0])
            _check_steps(step, table.shape[-2])
            there, table[..., :step, :] = restore((carried, table[..., :step, :]))
            _check_again(loop, keys, carried, data, table[..., : min(step, _AGAIN), :])
            return step, jax.tree.map(jnp.array, there)  # device arrays, which the loop consumes

        def save(step: int, carried: Carried, table: Table, at_once: bool = False):
            num_steps, saved = table.shape[-2], []
            for hook, there in opened:
                due = step % hook.every == 0 or step == num_steps
                if (due or at_once) and there.save(step, (carried, table[..., :step, :])):
                    saved.append(str(hook.directory))
            if at_once:
                places = " and ".join(saved)
                how = f" and saved in {places}. The same call of fit goes on from there"
                told = f"Stopped at step {step} of {num_steps}{how if saved else ', not saved'}."
                print(told, file=sys.stderr, flush=True)

        yield Saving(resume, save)


def _check_steps(step: int, num_steps: int) -> None:
    if step > num_steps:
        raise invalid(
            "num_steps",
            expected=f"at least the {step} steps of the checkpoint",
            got=num_steps,
            advice="Ask for more steps, or name a new directory.",
        )


def _check_again(
    loop: Loop, keys: RunKeys, carried: Carried, data: PyTree[Array], table: Table
) -> None:
    """Take the first steps again: whatever the facts of the run left out shows in their values."""
    steps = table.shape[-2]
    if not steps:
        return
    carried = loop.refresh(keys, carried, data, 0)
    rows = np.asarray(loop.advance(keys, carried, data, 0, steps)[1])[..., :steps, :]
    size = np.abs(np.nan_to_num(table, posinf=0, neginf=0)).max(-2, keepdims=True)
    with np.errstate(invalid="ignore"):
        near = np.abs(rows - table) <= _TOLERANCE * size
    if not (near | (rows == table) | (np.isnan(rows) & np.isnan(table))).all():
        raise invalid(
            "checkpoint",
            expected="a directory with checkpoints of this run",
            got=f"checkpoints of a run whose first {steps} steps came out otherwise",
            advice="A setting of the estimator, the batches or a schedule has changed: name a new "
            "directory, or resume with the arguments of the interrupted run.",
        )


@contextmanager
def held_back(wanted: bool) -> Iterator[Callable[[], bool]]:
    """Hold back the first Ctrl-C, for a moment at which the run can be saved; a second one acts.

    Yields:
      A function that says whether Ctrl-C was pressed.
    """
    pressed = threading.Event()
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield pressed.is_set  # other threads are never interrupted
        return
    before = signal.getsignal(signal.SIGINT)

    def press(number, frame):
        pressed.set()
        signal.signal(signal.SIGINT, before)

    if before is None or before == signal.SIG_IGN:  # not Python's to handle, or not to be handled
        yield pressed.is_set
        return
    signal.signal(signal.SIGINT, press)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed.is_set():  # too late for the last visit
        raise KeyboardInterrupt
