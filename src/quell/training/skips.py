"""Steps that were skipped because they were not finite: the warning, the stop and the count."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from quell._errors import invalid
from quell.training.batches import Batches
from quell.training.loop import PATIENCE, RunKeys

_ROWS = 10  # the most rows of a batch that a warning names
_ADVICE = (
    "Check logarithms, square roots and divisions in the loss, and lower the learning rate; "
    'jax.config.update("jax_debug_nans", True) finds the operation'
)


def stopped_after(skipped: Bool[np.ndarray, "*seeds T"]) -> int | None:
    """The number of steps after which every run stood still, or None if a run goes on."""
    T = skipped.shape[-1]
    taken = np.where(skipped, -1, np.arange(T)).max(-1, initial=-1)  # the last step of each run
    ends = taken + 1 + PATIENCE
    return int(ends.max()) if (ends <= T).all() else None


def check_progress(
    skipped: Bool[np.ndarray, "*seeds T"], objective: Float[np.ndarray, "*seeds T"]
) -> None:
    """Refuse the result of a run in which not a single step was finite."""
    if skipped.size and skipped.all():
        raise invalid(
            "objective",
            expected="a finite value, gradient and update",
            got=f"the value {objective[..., 0].tolist()} in the first step, and nothing finite in "
            f"{skipped.shape[-1]}",
            advice=f"{_ADVICE}.",
        )


def check_training(columns: Sequence[str], table: Float[np.ndarray, "T columns"]) -> None:
    """Refuse a short training that got nowhere, or that stood still in the end."""
    skipped = table[:, columns.index("skipped")] > 0
    check_progress(skipped, table[:, columns.index("objective")])
    if stopped_after(skipped) is not None:
        raise invalid(
            "objective",
            expected="finite values along a short training",
            got=f"{PATIENCE} steps in a row that were not finite",
            advice=f"{_ADVICE}.",
        )


def warn_of_skips(
    skipped: Bool[np.ndarray, "*seeds T"],
    batches: Batches,
    keys: RunKeys,
    num_data: int,
    batch_size: int,
) -> None:
    """Warn of the first step that was skipped, with the rows of its batch."""
    step = int(skipped.reshape(-1, skipped.shape[-1]).any(0).argmax())
    runs = np.flatnonzero(skipped[..., step])
    key = keys.batches[runs[0]] if skipped.ndim > 1 else keys.batches
    rows = np.asarray(batches(key, step, 1, num_data, batch_size))[0].tolist()
    of_run = f" of run {runs[0]}" if skipped.ndim > 1 else ""
    _warn(
        f"fit: step {step}{of_run} was not finite and was skipped, with the rows "
        f"{_some(rows)} of the data in its batch. Fit.skipped counts such steps; after "
        f"{PATIENCE} in a row a run stops. {_ADVICE}."
    )


def warn_of_stop(num_steps: int) -> None:
    """Warn of a run that stopped early."""
    _warn(
        f"fit: stopped after {num_steps} steps, the last {PATIENCE} of which were not finite. The "
        f"result holds the last finite parameters. {_ADVICE}."
    )


def _some(rows: list[Any]) -> str:
    shown = ", ".join(map(str, rows[:_ROWS]))
    return f"{shown} and {len(rows) - _ROWS} more" if len(rows) > _ROWS else shown


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=5)  # the line that called `fit`
