"""Exceptions that are hard to report."""

from itertools import count

CALLS = count()


class UnspeakableError(Exception):
    """An exception without text."""

    def __str__(self):
        raise ValueError("no text")


class FatalError(BaseException):
    """No subclass of `Exception`."""


def gelu_unspeakable(x):
    """__str__ raises: the text of the exception raises."""
    raise UnspeakableError


def gelu_fatal(x):
    """base exception: no `except Exception` sees it."""
    raise FatalError("the end")
