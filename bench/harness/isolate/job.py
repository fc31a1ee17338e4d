"""What a child process is asked to do for a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.harness.device.device import Device
    from bench.harness.measure.plan import Settings
    from bench.harness.op import Case
    from bench.harness.timing.protocol import Limits
    from roofline.ceilings import Ceilings

DEFAULT_TIMEOUT_S = 120.0
"""The first call compiles and tunes a kernel, which may take a minute; an endless loop takes more."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A row to measure, or without a case a provider to load."""

    family: str
    op: str
    provider: str
    stand_ins: tuple[str, ...] = ()
    """Measured in its place where it refuses the case; no user's function has any."""
    device: Device
    case: Case | None = None
    settings: Settings | None = None
    limits: Limits | None = None
    deadline: float | None = None
    """Reading of `time.perf_counter`, which all processes of a machine share."""
    rows_left: int = 1
    """Rows that the time until the deadline is for, this one among them."""
    ceilings: Ceilings | None = None
