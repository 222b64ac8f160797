"""One shape for every error: the argument, the expectation, the value that came, the remedy."""

_LONGEST = 80, 300  # characters of a value, and of a description, in a message


def invalid(argument: str, *, expected: object, got: object, advice: str) -> ValueError:
    """A `ValueError` that names the argument and gives a remedy.

    >>> raise invalid("batch_size", expected="at most 100", got=200, advice="use fewer")
    Traceback (most recent call last):
    ValueError: batch_size: expected at most 100, got 200. use fewer
    """
    return ValueError(f"{argument}: expected {expected}, got {_line(got, _LONGEST[1])}. {advice}")


def is_invalid(error: BaseException) -> bool:
    """Whether an error has the shape of `invalid`."""
    return isinstance(error, ValueError) and ": expected " in str(error) and ", got " in str(error)


def shortened(value: object) -> str:
    """The value in Python's notation, on one line and not too long."""
    return _line(repr(value), _LONGEST[0])


def _line(value: object, most: int) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= most else f"{text[: most - 1]}…"
