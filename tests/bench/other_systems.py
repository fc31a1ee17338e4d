"""A process as on another system: what that lacks is taken away, and its name stands in `sys.platform`.

    from tests.bench import other_systems
    other_systems.become("win32")
    other_systems.run([["bench.matmul", "--dtype", "fp32"], ...])  # prints what came of each

Nothing here was ever seen on a real macOS or Windows: this shows what happens without what these systems lack.
"""

import contextlib
import importlib
import io
import json
import os
import platform
import runpy
import select
import signal
import socket
import subprocess
import sys
import warnings

LINUX_ONLY = {
    os: (
        "sched_getaffinity",
        "sched_setaffinity",
        "memfd_create",
        "pidfd_open",
        "posix_fadvise",
        "POSIX_FADV_DONTNEED",
    ),
}
POSIX_ONLY = {
    os: (
        *("fork", "killpg", "setsid", "getppid", "getloadavg", "sysconf", "WIFSIGNALED", "WTERMSIG", "WEXITSTATUS"),
        *("O_NONBLOCK", "O_CLOEXEC", "getuid", "geteuid", "mkfifo"),
    ),
    signal: ("SIGKILL", "SIGHUP", "SIGALRM", "setitimer"),
    socket: ("send_fds", "recv_fds"),
    select: ("poll",),
}
NO_MODULES = {
    "darwin": ("msvcrt", "winreg"),
    "win32": ("fcntl", "resource", "msvcrt", "winreg", "grp", "pwd", "termios"),
}
"""msvcrt and winreg are not there either: whoever needs a fact from them goes without."""

LOADED_FIRST = (
    *("torch", "numpy", "pandas", "matplotlib.pyplot", "rich.console", "rich.progress", "rich.table", "tempfile"),
    *("shutil", "ctypes", "concurrent.futures.process", "multiprocessing.spawn", "pytest"),
)
"""Libraries look at `sys.platform` when they are imported, and would load files that only the real system has."""


def become(system):
    """Take away what `system` lacks: `darwin`, `win32`, or `none`, a Linux in name that has nothing, torch apart."""
    importlib.import_module("asyncio")  # the one of this system asks `os.sysconf` while it is imported
    if system != "none":
        for name in LOADED_FIRST:
            importlib.import_module(name)
        platform.uname()  # kept by Python: asked anew it would start programs of the other system
    for name in ("triton", "pynvml", *NO_MODULES.get(system, NO_MODULES["win32"])):
        sys.modules[name] = None  # what Python takes for "cannot be imported"
    kill = subprocess.Popen.kill
    for holder, names in [*LINUX_ONLY.items(), *(POSIX_ONLY.items() if system != "darwin" else ())]:
        for name in names:
            if hasattr(holder, name):
                delattr(holder, name)
    if not hasattr(signal, "SIGKILL"):  # Python's own way to end a child on this machine needs it
        kill = lambda process: process.send_signal(9)  # noqa: E731
    subprocess.Popen.kill = kill
    if system != "none":
        sys.platform = system
        os.cpu_count = lambda: 1  # on a busy machine one thread does not wait for the others


def run(commands):
    """Run each `[module, *arguments]` in this process; print exit code, stdout and stderr of each as one JSON list."""
    found = []
    os._exit = sys.exit  # a command that leaves in haste would take the others with it
    warnings.filterwarnings("ignore", category=RuntimeWarning, module="runpy")  # the module was imported before
    for module, *arguments in commands:
        out, err, code = io.StringIO(), io.StringIO(), 0
        sys.argv = [module, *arguments]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                runpy.run_module(module, run_name="__main__", alter_sys=True)
            except SystemExit as leaving:
                code = leaving.code or 0
        found.append({"code": code, "out": out.getvalue(), "err": err.getvalue()})
    print(json.dumps(found))
