"""Words to stdout and stderr; one that is full or closed ends in one line, not in a traceback."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TextIO

from results.store.runfile import reason_of
from roofline.plot.style import one_line

USAGE = 2


class OutputError(RuntimeError):
    """What was asked for cannot be printed; the message says why, in one line."""


def print_out(text: str, kept: str = "") -> None:
    """Write `text` to stdout; a reader that has seen enough, as `head` has, is no error.

    Args:
        text: as it is to be printed, line ends included.
        kept: what was done all the same, for the message.

    Raises:
        OutputError: stdout is closed, or it cannot be written, as on a full disk.
    """
    if sys.stdout is None:  # started as `python -m roofline ... >&-`
        raise OutputError(f"cannot write the output: stdout is closed{kept}")
    try:
        try:
            sys.stdout.write(text)
        except UnicodeEncodeError:  # a terminal that knows only ASCII gets question marks
            encoding = sys.stdout.encoding
            sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except OSError as error:
        _discard(sys.stdout)
        if not isinstance(error, BrokenPipeError):
            raise OutputError(f"cannot write the output: {reason_of(error)}{kept}") from None


def say(text: str) -> None:
    """Print one line on stderr; nobody reading it is no reason to stop."""
    if sys.stderr is None:  # `print` would take stdout in its place
        return
    try:
        print(one_line(text, 600), file=sys.stderr, flush=True)
    except OSError:
        _discard(sys.stderr)


def fail(prog: str, message: object) -> int:
    """Say what is wrong with a command, and return its exit code.

    Args:
        prog: the command, as `python -m roofline gpus`.
        message: what is wrong, which value, and what to try.
    """
    say(f"{prog}: error: {message}")
    return USAGE


def _discard(stream: TextIO) -> None:
    """Let what is still in a stream's buffer go nowhere, so that leaving does not fail on it once more."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
