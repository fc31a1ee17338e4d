"""One process beside this one, which ends with it, however it ends."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection


@contextmanager
def second_process(is_forked: bool) -> Iterator[ProcessPoolExecutor]:
    """Return a pool of one process, which ends at once when the block is left by an error or Ctrl-C.

    Args:
        is_forked: whether it begins as a copy of this process, which starts at once, or afresh.
    """
    context = get_context("fork" if is_forked else "spawn")
    # Nothing is ever sent: the reading end learns that the writing end is closed, by this block or with this process.
    theirs, ours = context.Pipe(duplex=False)
    with theirs, ours:
        pool = ProcessPoolExecutor(1, context, end_with_parent, (theirs, ours if is_forked else None))
        try:
            yield pool
        except BaseException:
            ours.close()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def end_with_parent(theirs: Connection, copied: Connection | None) -> None:
    """In the new process: end when the other end of the channel is closed, and leave Ctrl-C to the parent.

    Args:
        theirs: the reading end.
        copied: the writing end, where it was copied with the process.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if copied is not None:
        copied.close()

    def wait() -> None:
        with suppress(EOFError, OSError):
            theirs.recv_bytes()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
