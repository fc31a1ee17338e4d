"""What Windows tells of the machine, through kernel32 and the registry."""

# ruff: noqa: F401  what is imported from `other` is what this system does not tell in its own way
from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterable
from typing import Any

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
from bench.harness.device.reading import attempt

PROCESSOR_KEY = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"

RELATION_CACHE = 2
"""Source: winnt.h, `LOGICAL_PROCESSOR_RELATIONSHIP`."""

CODE_ALONE = 1
"""Source: winnt.h, `PROCESSOR_CACHE_TYPE`: unified 0, instruction 1, data 2, trace 3."""

CACHE = struct.Struct("<IIBBHII")
"""Relationship, size of the entry, level, associativity, line size, size of the cache, type: the first fields of an
entry. Source: winnt.h, `SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX` with `CACHE_RELATIONSHIP`."""


class MemoryStatus(ctypes.Structure):
    """Source: sysinfoapi.h, `MEMORYSTATUSEX`."""

    _fields_ = (
        ("length", ctypes.c_uint32),
        ("load_percent", ctypes.c_uint32),
        ("total_physical", ctypes.c_uint64),
        ("available_physical", ctypes.c_uint64),
        ("total_page_file", ctypes.c_uint64),
        ("available_page_file", ctypes.c_uint64),
        ("total_virtual", ctypes.c_uint64),
        ("available_virtual", ctypes.c_uint64),
        ("available_extended_virtual", ctypes.c_uint64),
    )


def cpu_name() -> str:
    """Return the processor's name as the registry has it, `ProcessorNameString`."""
    return attempt(_registered_name).value or other.cpu_name()


def last_level_cache_bytes(cpus: Iterable[int], threads: int) -> int | None:
    """Return the caches of the highest level that `threads` threads reach together, or None where none is told."""
    found: int | None = attempt(lambda: cache_bytes(_cache_entries(), threads)).value
    return found


def cache_bytes(entries: bytes, threads: int) -> int | None:
    """Return the size of the `threads` largest caches of the highest level.

    Args:
        entries: what `GetLogicalProcessorInformationEx` fills in for `RelationCache`.
        threads: threads that each reach one of them.
    """
    sizes: dict[int, list[int]] = {}
    while len(entries) >= CACHE.size:
        relation, entry_bytes, level, _, _, size_bytes, kind = CACHE.unpack_from(entries)
        if relation == RELATION_CACHE and kind != CODE_ALONE:
            sizes.setdefault(level, []).append(size_bytes)
        if entry_bytes < CACHE.size:
            break
        entries = entries[entry_bytes:]
    return sum(sorted(sizes[max(sizes)], reverse=True)[:threads]) if sizes else None


def total_memory_bytes() -> int | None:
    """Return the memory of the machine, bytes, or None where it is not told."""
    found: int | None = attempt(lambda: _memory().total_physical).number(1, 2**62).value
    return found


def available_memory_bytes() -> int | None:
    """Return the memory that can be taken without swapping, bytes, or None where it is not told."""
    found: int | None = attempt(lambda: _memory().available_physical).number(1, 2**62).value
    return found


def why_no_isolation() -> str | None:
    """Return why there is none: Windows has no fork."""
    return "Windows has no fork"


def _kernel32() -> Any:
    return ctypes.windll.kernel32  # type: ignore[attr-defined, unused-ignore]


def _memory() -> MemoryStatus:
    """Return the state of the memory. Source: sysinfoapi.h, `GlobalMemoryStatusEx`."""
    status = MemoryStatus(length=ctypes.sizeof(MemoryStatus))
    if not _kernel32().GlobalMemoryStatusEx(ctypes.byref(status)):
        raise OSError("GlobalMemoryStatusEx failed")
    return status


def _cache_entries() -> bytes:
    """Return an entry for each cache. Source: sysinfoapi.h, `GetLogicalProcessorInformationEx`."""
    ask, length = _kernel32().GetLogicalProcessorInformationEx, ctypes.c_uint32(0)
    ask(RELATION_CACHE, None, ctypes.byref(length))  # without a buffer it tells how large one must be
    buffer = ctypes.create_string_buffer(length.value)
    if not ask(RELATION_CACHE, buffer, ctypes.byref(length)):
        raise OSError("GetLogicalProcessorInformationEx failed")
    return buffer.raw[: length.value]


def _registered_name() -> str | None:
    import winreg

    registry: Any = winreg
    with registry.OpenKey(registry.HKEY_LOCAL_MACHINE, PROCESSOR_KEY) as key:
        return str(registry.QueryValueEx(key, "ProcessorNameString")[0]).strip() or None
