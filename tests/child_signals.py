"""What the processes that a test starts do on a signal, however the test itself was started."""

import signal
from contextlib import contextmanager

USUAL = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


@contextmanager
def usual_signals():
    """Let processes that are started within end on Ctrl-C and on SIGTERM, as in a terminal.

    A signal that a process ignores is ignored by its children too, and a shell starts the background jobs of a script
    with Ctrl-C ignored. So a test that sends a signal starts its process within this.
    """
    before = {number: signal.signal(number, handler) for number, handler in USUAL.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
