"""Values of command-line options, read and refused before any work is done."""

import argparse
import math
import tempfile
from collections.abc import Callable
from pathlib import Path


def _refused(expected: str, text: str, example: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"expected {expected}, got {text!r}. For example {example}")


def whole(least: int) -> Callable[[str], int]:
    """A whole number, at least so large."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise _refused(f"a whole number from {least} on", text, str(max(10, least)))
        return value

    return read


def number(text: str) -> float:
    """A finite number."""
    return _finite("a finite number", text, lambda value: True, "1.5")


def positive(text: str) -> float:
    """A positive, finite number."""
    return _finite("a positive number", text, lambda value: value > 0, "60")


def not_negative(text: str) -> float:
    """A finite number from zero on."""
    return _finite("a number from 0 on", text, lambda value: value >= 0, "30")


def _finite(expected: str, text: str, holds: Callable[[float], bool], example: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and holds(value)):
        raise _refused(expected, text, example)
    return value


def names(text: str) -> tuple[str, ...]:
    """Names separated by commas, at least one."""
    found = tuple(name.strip() for name in text.split(",") if name.strip())
    if not found:
        raise _refused("names separated by commas", text, "plain,antithetic")
    return found


def sizes(text: str) -> tuple[int, ...]:
    """Positive whole numbers separated by commas, at least one."""
    found = [name.strip() for name in text.split(",") if name.strip()]
    if not found or not all(size.isdecimal() and int(size) > 0 for size in found):
        raise _refused("positive whole numbers separated by commas", text, "10,100")
    return tuple(map(int, found))


def make_writable(directory: Path | None) -> None:
    """Make the directory of the results, and refuse one in which nothing can be written."""
    if directory is None:
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        from quell._errors import invalid  # here, since quell imports JAX

        raise invalid(
            "--out",
            expected="a directory that can be written to",
            got=f"{directory}: {error.strerror}",
            advice="Name another directory.",
        ) from error
