"""What Python alone reports of the machine, on any system; the file of a single system knows more."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from bench.harness.device.reading import Reading, attempt, failed

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

ROOT = Path("/")

NOT_TOLD = "NotToldByThisSystem"
"""The error of a reading that only other systems have."""

ISOLATION_CALLS = ("fork", "memfd_create", "pidfd_open")
"""Functions of `os` that a forked worker needs; Linux has all of them."""


def cpu_name() -> str:
    """Return the processor's name, or where it is not told the architecture."""
    return platform.processor() or platform.machine() or "unknown"


def allowed_cores() -> frozenset[int]:
    """Return the numbers of the cores that the scheduler may use; where it does not tell, of all cores."""
    ask: Callable[[int], Iterable[int]] | None = getattr(os, "sched_getaffinity", None)
    return frozenset(range(os.cpu_count() or 1) if ask is None else ask(0))


def cpu_quota(root: Path = ROOT) -> float | None:
    """Return None: only Linux limits the CPU time of a group of processes."""
    return None


def last_level_cache_bytes(cpus: Iterable[int], threads: int) -> int | None:
    """Return None: Python does not tell."""
    return None


def total_memory_bytes() -> int | None:
    """Return the memory of the machine, bytes, or None where it is not told. Source: sysconf(3)."""
    return _pages_bytes("SC_PHYS_PAGES")


def available_memory_bytes() -> int | None:
    """Return the memory that is free, bytes, or None where it is not told. Source: sysconf(3)."""
    return _pages_bytes("SC_AVPHYS_PAGES")


def load_average(root: Path = ROOT) -> Reading:
    """Return the mean number of runnable threads of the last minute. Source: getloadavg(3)."""
    ask: Callable[[], tuple[float, float, float]] | None = getattr(os, "getloadavg", None)
    return not_told() if ask is None else attempt(lambda: ask()[0])


def governor(root: Path = ROOT) -> Reading:
    """Return that it is not told."""
    return not_told()


def turbo(root: Path = ROOT) -> Reading:
    """Return that it is not told."""
    return not_told()


def clock_ticks(cores: frozenset[int], root: Path = ROOT) -> Reading:
    """Return that they are not told."""
    return not_told()


def throttling(root: Path = ROOT) -> Reading:
    """Return that there are no control groups."""
    return not_told()


def context_switches() -> Reading:
    """Return involuntary and voluntary switches. Source: getrusage(2), `ru_nivcsw` and `ru_nvcsw`."""
    return _usage().map(lambda used: (used.ru_nivcsw, used.ru_nvcsw))


def major_faults() -> Reading:
    """Return the pages that had to be read from the disk. Source: getrusage(2), `ru_majflt`."""
    return _usage().map(lambda used: used.ru_majflt)


def tick_s() -> float | None:
    """Return the step in which CPU time is counted, seconds. Source: sysconf(3), `SC_CLK_TCK`."""
    ticks: float | None = attempt(lambda: _sysconf("SC_CLK_TCK")).number(1, 1e9).value
    return None if ticks is None else 1 / ticks


def why_no_isolation() -> str | None:
    """Return which call is missing for a forked process of its own, or None where all are there."""
    missing = [f"os.{name}" for name in ISOLATION_CALLS if not hasattr(os, name)]
    missing += [] if hasattr(socket, "send_fds") else ["socket.send_fds"]
    return f"this Python has no {' and no '.join(missing)}" if missing else None


def not_told() -> Reading:
    """Return the reading of what only other systems tell."""
    return failed(NOT_TOLD)


def _pages_bytes(name: str) -> int | None:
    found: int | None = attempt(lambda: _sysconf(name) * _sysconf("SC_PAGE_SIZE")).number(1, 2**62).value
    return found


def _sysconf(name: str) -> int:
    """Return a limit of the system; Windows has no `os.sysconf`, others lack single names."""
    ask: Any = os.sysconf
    return int(ask(name))


def _usage() -> Reading:
    return not_told() if resource is None else attempt(lambda: resource.getrusage(resource.RUSAGE_SELF))
