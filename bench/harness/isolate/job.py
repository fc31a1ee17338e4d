"""What a command, its fork server and the children send each other: a job, and how messages are written."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.harness.device.device import Device
    from bench.harness.measure.plan import Settings
    from bench.harness.op import Case
    from bench.harness.timing.protocol import Limits
    from roofline.ceilings import Ceilings

DEFAULT_TIMEOUT_S = 120.0
"""The first call compiles and tunes a kernel, which may take a minute; an endless loop takes more."""

FORK, WAIT = b"f", b"w"
"""Requests: fork a child, with its three descriptors; wait for one that has ended, with its number."""

PROCESS, LENGTH = struct.Struct("!q"), struct.Struct("!Q")
"""How a process or its status is sent, and the length before a message."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a child is asked to do: measure a row, or without a case only load the provider for each op."""

    family: str
    ops: tuple[str, ...]
    provider: str
    device: Device
    case: Case | None = None
    settings: Settings | None = None
    limits: Limits | None = None
    deadline: float | None = None
    """Reading of `time.perf_counter`, which all processes of a machine share."""
    ceilings: Ceilings | None = None
    folder: str = field(default_factory=os.getcwd)
    """Where the provider's path starts."""
