"""The lock of a directory: one process at a time, and a killed process lets go of it."""

import os
import warnings
from contextlib import suppress
from pathlib import Path
from typing import IO

from quell._errors import invalid

try:
    import fcntl
except ImportError:  # without POSIX there is no lock that a killed process lets go of
    fcntl = None


def locked(directory: Path) -> IO[bytes]:
    """The directory's lock, made with the directory; refuses one that another process holds."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = open(directory / "lock", "ab+", buffering=0)  # noqa: SIM115
    except OSError as error:
        raise invalid(
            "checkpoint",
            expected="a directory that can be made and written",
            got=f"{directory} ({error.strerror})",
            advice="Name another directory, on a disk with space left.",
        ) from error
    try:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.seek(0)
        holder = lock.read().decode() or "unknown"
        lock.close()
        raise invalid(
            "checkpoint",
            expected="a directory that no other run is using",
            got=f"{directory}, which process {holder} is using",
            advice="Wait for that run, or name another directory.",
        ) from error
    except OSError as error:  # a file system without locks
        warnings.warn(
            f"checkpoint: {directory} cannot be locked ({error.strerror}): let one run at a time "
            "use it.",
            RuntimeWarning,
            stacklevel=2,
        )
    with suppress(OSError):  # the number is for the message above; a full disk has no room for it
        lock.truncate(0)
        lock.write(str(os.getpid()).encode())
    return lock


def gone(directory: Path, lock: IO[bytes]) -> bool:
    """Whether the directory is not the one whose lock we hold any more."""
    try:
        return not os.path.samestat(os.stat(directory / "lock"), os.fstat(lock.fileno()))
    except FileNotFoundError:
        return True
