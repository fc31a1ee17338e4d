"""Ctrl-C while there is nothing to keep yet, and after everything has been kept.

A `KeyboardInterrupt` in the middle of an import ends in a traceback, or is lost: torch and numpy catch it while they
load, and go on without a part of themselves. So a command that still loads leaves at once, with one line and exit
code 130. A command that has printed everything ignores Ctrl-C, so that libraries can clean up undisturbed.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

INTERRUPTED = 130
"""128 and the number of SIGINT, as shells report it."""

MESSAGE = b"interrupted before anything was measured\n"


def leave_when_interrupted() -> None:
    """Let Ctrl-C end the process at once; where it is ignored or handled by somebody else, it stays so."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def raise_when_interrupted() -> None:
    """Let Ctrl-C raise `KeyboardInterrupt` again, if `leave_when_interrupted` was in force."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def exit_undisturbed() -> None:
    """Ignore Ctrl-C for what is left of the process."""
    if signal.getsignal(signal.SIGINT) in (_leave, signal.default_int_handler):
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, MESSAGE)  # print could be in the middle of a line of its own
    os._exit(INTERRUPTED)
