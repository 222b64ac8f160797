"""One shape for every error: the argument, the expectation, the value that came, the remedy."""


def invalid(argument: str, *, expected: object, got: object, advice: str) -> ValueError:
    """A `ValueError` that names the argument and gives a remedy.

    >>> raise invalid("batch_size", expected="at most 100", got=200, advice="use fewer")
    Traceback (most recent call last):
    ValueError: batch_size: expected at most 100, got 200. use fewer
    """
    return ValueError(f"{argument}: expected {expected}, got {got}. {advice}")
