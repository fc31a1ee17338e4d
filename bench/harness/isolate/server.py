"""The fork server: it forks a child for each job, and ends all of them when the command ends, however that ends.

It loads torch where users' functions are to run, and runs none of it, so that each child is as clean as a new
interpreter and there in milliseconds. It stands between the command and the children: who kills its parent kills this
process, not the command. Apart from what is loaded on demand it imports of this project only how messages are written
and how a process ends with its parent.
"""

import importlib
import os
import pickle
import signal
import socket
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from bench.harness.isolate.ending import die_with, when_gone
from bench.harness.isolate.job import FORK, LENGTH, PROCESS, WAIT

FIRST_TO_DIE = "1000"
"""The highest score by which the kernel chooses whom to kill for want of memory. Source: proc_pid_oom_score_adj(5)."""


def main(control_fd: int, parent: int, preload: str) -> None:
    """Fork children as they are asked for, until the other end of the socket is closed.

    Args:
        control_fd: the socket that requests come through.
        parent: the process to end with.
        preload: module whose `preload()` is called before the first fork; nothing where it is empty.
    """
    living = set[int]()

    def end_all() -> None:
        for pid in living:
            with suppress(OSError):
                os.killpg(pid, signal.SIGKILL)

    when_gone(parent, end_all)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if preload:
        importlib.import_module(preload).preload()
    control = socket.socket(fileno=control_fd)
    try:
        control.sendall(b".")
        while True:
            message, fds, _, _ = socket.recv_fds(control, 1, 3)
            if message == FORK:
                pid = _forked(control, bool(preload), *fds)
                if pid > 0:
                    living.add(pid)
                control.sendall(PROCESS.pack(pid))
            elif message == WAIT:
                pid = PROCESS.unpack(control.recv(PROCESS.size, socket.MSG_WAITALL))[0]
                control.sendall(PROCESS.pack(os.waitpid(pid, 0)[1] if pid in living else 0))
                living.discard(pid)
            else:
                break
    finally:
        end_all()
        os._exit(0)


def _forked(control: socket.socket, has_loaded: bool, *fds: int) -> int:
    """Return the process of a new child, or the negative error number where there can be none."""
    server = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's idle threads are no harm: it starts its own anew after a fork
        try:
            pid = os.fork()
        except OSError as error:
            pid = -(error.errno or 1)
    if pid == 0:
        try:
            control.close()
            _be_child(server, has_loaded, *fds)
        finally:
            os._exit(70)
    for fd in fds:
        os.close(fd)
    return pid


def _be_child(server: int, has_loaded: bool, channel_fd: int, output_fd: int, heartbeat_fd: int) -> NoReturn:
    """Do one job in this process, which ends here: a pickled `Job`, or the arguments of `python -m bench`.

    The latter run in a new interpreter where this one has loaded nothing for them.
    """
    os.setsid()
    signal.signal(signal.SIGCONT, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    die_with(server)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(FIRST_TO_DIE)
    for standard in (1, 2):
        os.dup2(output_fd, standard)
    os.close(output_fd)
    channel = socket.socket(fileno=channel_fd)
    size = LENGTH.unpack(channel.recv(LENGTH.size, socket.MSG_WAITALL))[0]
    job = pickle.loads(channel.recv(size, socket.MSG_WAITALL))
    if isinstance(job, list):
        channel.close()
        words = [*job, "--heartbeat", f"/proc/self/fd/{heartbeat_fd}"]
        if has_loaded:
            from bench.harness.isolate.child import run_command

            run_command(words)
        os.set_inheritable(heartbeat_fd, True)
        os.execv(sys.executable, [sys.executable, "-m", "bench", *words])
    from bench.harness.isolate.child import work

    work(job, channel, heartbeat_fd)
