"""What macOS tells of the machine, through `sysctl` and `vm_stat`."""

# ruff: noqa: F401  what is imported from `other` is what this system does not tell in its own way
from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable

from bench.harness.device import other
from bench.harness.device.other import (
    allowed_cores,
    clock_ticks,
    context_switches,
    cpu_quota,
    governor,
    load_average,
    major_faults,
    throttling,
    tick_s,
    turbo,
)

TIMEOUT_S = 5.0
RECLAIMED = ("free", "inactive", "speculative")
"""Pages that can be taken without swapping. Source: vm_stat(1); psutil counts the same ones as available."""


def cpu_name() -> str:
    """Return the processor's name, `Apple M3 Pro`. Source: sysctl(8), `machdep.cpu.brand_string`."""
    return _sysctl("machdep.cpu.brand_string") or other.cpu_name()


def last_level_cache_bytes(cpus: Iterable[int], threads: int) -> int | None:
    """Return the L3 cache, or without one the L2 caches of the performance cores together.

    Apple's own processors have one L2 cache for each cluster of cores. What memory caches may lie behind it, macOS
    does not tell.

    Source: sysctl(3), `hw.l3cachesize`, and `hw.perflevel0.*` for the performance cores.
    """
    if level3 := _count("hw.l3cachesize"):
        return level3
    level2 = _count("hw.perflevel0.l2cachesize")
    if not level2:
        return _count("hw.l2cachesize") or None
    cores, together = _count("hw.perflevel0.physicalcpu"), _count("hw.perflevel0.cpusperl2")
    return level2 * (min(threads, -(-cores // together)) if cores and together else 1)


def total_memory_bytes() -> int | None:
    """Return the memory of the machine, bytes. Source: sysctl(3), `hw.memsize`."""
    return _count("hw.memsize") or other.total_memory_bytes()


def available_memory_bytes() -> int | None:
    """Return the memory that can be taken without swapping, bytes. Source: vm_stat(1)."""
    text = _output("vm_stat")
    page = re.search(r"page size of (\d+) bytes", text)
    counts = [re.search(rf"^Pages {name}:\s+(\d+)\.?$", text, re.MULTILINE) for name in RECLAIMED]
    pages = sum(int(found[1]) for found in counts if found)
    return int(page[1]) * pages if page and counts[0] else None


def why_no_isolation() -> str | None:
    """Return why there is none: a forked process is watched through calls that only Linux has."""
    return "macOS has no memfd_create and no pidfd_open, which that needs"


def _count(name: str) -> int | None:
    text = _sysctl(name)
    return int(text) if re.fullmatch(r"[0-9]{1,20}", text) else None


def _sysctl(name: str) -> str:
    return _output("sysctl", "-n", name)


def _output(*command: str) -> str:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
