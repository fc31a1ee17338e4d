"""Ctrl-C and SIGTERM while there is nothing to keep yet, and after everything has been kept.

A `KeyboardInterrupt` in the middle of an import ends in a traceback, or is lost: torch and numpy catch it while they
load, and go on without a part of themselves. So a command that still loads leaves at once, with one line and exit
code 130. A command that has printed everything ignores both signals, so that libraries can clean up undisturbed.
In between both raise `KeyboardInterrupt`: a batch system that ends a job sends SIGTERM, and the finished rows count.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

OK, WRONG_RESULT, USAGE, NO_DEVICE, INTERRUPTED = 0, 1, 2, 3, 130
"""Exit codes, the same for all commands; 130 is 128 and the number of SIGINT, as shells report it."""

MESSAGE = b"interrupted before anything was measured\n"

USUAL = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
"""What Python does on each signal; where one is ignored or handled by somebody else, it stays so."""


def leave_when_interrupted() -> None:
    """Let both signals end the process at once."""
    for number, usual in USUAL.items():
        if signal.getsignal(number) is usual:
            signal.signal(number, _leave)


def raise_when_interrupted() -> None:
    """Let both signals raise `KeyboardInterrupt`, if `leave_when_interrupted` was in force."""
    for number in USUAL:
        if signal.getsignal(number) is _leave:
            signal.signal(number, signal.default_int_handler)


def exit_undisturbed() -> None:
    """Ignore both signals for what is left of the process."""
    for number in USUAL:
        if signal.getsignal(number) in (_leave, signal.default_int_handler):
            signal.signal(number, signal.SIG_IGN)


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, MESSAGE)  # print could be in the middle of a line of its own
    os._exit(INTERRUPTED)
