"""Which operating system this is: one file a system reports facts of the machine, by the functions below.

A fact that a system does not tell is None, or a `Reading` with the reason: never 0, and never an error.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from bench.harness.device.other import ROOT as ROOT
from bench.harness.device.reading import Reading


class System(Protocol):
    """The functions of each system's file. `root` is the folder below which Linux shows its state; others have none."""

    def cpu_name(self) -> str:
        """Return the processor's name."""

    def allowed_cores(self) -> frozenset[int]:
        """Return the numbers of the cores that the scheduler may use for this process."""

    def cpu_quota(self, root: Path = ROOT) -> float | None:
        """Return the CPU time that this process may spend per unit of wall time, in cores, or None for no limit."""

    def last_level_cache_bytes(self, cpus: Iterable[int], threads: int) -> int | None:
        """Return the last-level cache that `threads` threads on `cpus` have together, or None where it is not told."""

    def total_memory_bytes(self) -> int | None:
        """Return the memory of the machine, bytes, or None where it is not told."""

    def available_memory_bytes(self) -> int | None:
        """Return the memory that can be taken without swapping, bytes, or None where it is not told."""

    def load_average(self, root: Path = ROOT) -> Reading:
        """Return the mean number of runnable threads of the last minute."""

    def governor(self, root: Path = ROOT) -> Reading:
        """Return the clock governor of the first core, for example `performance`."""

    def turbo(self, root: Path = ROOT) -> Reading:
        """Return whether cores may clock above their nominal clock."""

    def clock_ticks(self, cores: frozenset[int], root: Path = ROOT) -> Reading:
        """Return stolen and all ticks of some cores since the machine started."""

    def throttling(self, root: Path = ROOT) -> Reading:
        """Return the `CgroupCounters` of each control group around this process, by its folder."""

    def context_switches(self) -> Reading:
        """Return how often threads of this process lost their core, and how often they gave it up."""

    def major_faults(self) -> Reading:
        """Return how many pages this process has waited for that had to be read from the disk."""

    def tick_s(self) -> float | None:
        """Return the step in which the system counts CPU time, seconds, or None where it is not told."""

    def why_no_isolation(self) -> str | None:
        """Return why a user's function cannot have a forked process of its own here, or None where it can."""


FILES = {"linux": "linux", "darwin": "darwin", "win32": "windows"}
"""By the name that Python has for each system; of any other, `other.py` tells what Python alone does."""


def here() -> System:
    """Return the module of the system that this process runs on; the others are never imported."""
    system: System = importlib.import_module(f"bench.harness.device.{FILES.get(sys.platform, 'other')}")
    return system
