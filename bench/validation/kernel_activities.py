"""What torch's profiler recorded of a few samples: the kernels of each launch, and the gaps between them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

TOLERANCE = 0.05
"""Our time and the profiler's within 5 % need no reason."""


class ActivityError(ValueError):
    """The profiler's events do not fit the launches; the message says how."""


@dataclass(frozen=True)
class Activity:
    """One kernel, or one copy, on the device; on a CPU an operator that no other one called."""

    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """Seconds per launch, and what a launch consists of."""

    busy_s: float
    """Sum of the durations."""
    covered_s: float
    """Time in which at least one activity was going on: less than `busy_s` where they overlap."""
    gap_s: float
    """Time between activities of the same sample, in which none was going on."""
    activities: int
    """Of one launch."""
    names: tuple[str, ...]


def activities_of(events: Iterable[Any], on_gpu: bool) -> list[Activity]:
    """Return the activities among the events of `torch.profiler.profile.events()`, the earliest first.

    Args:
        events: with `name`, `device_type`, `time_range` in microseconds, `cpu_parent` and `is_user_annotation`.
        on_gpu: kernels and copies of the device; else the operators of the host that no other operator called.

    An event without a usable time, such as one that never ended, is no activity.
    """
    found = []
    for event in events:
        is_device = getattr(getattr(event, "device_type", None), "name", "CPU") != "CPU"
        is_nested = not on_gpu and getattr(event, "cpu_parent", None) is not None
        if is_device != on_gpu or is_nested or getattr(event, "is_user_annotation", False):
            continue
        span = getattr(event, "time_range", None)
        start_us, end_us = getattr(span, "start", math.nan), getattr(span, "end", math.nan)
        if math.isfinite(start_us) and math.isfinite(end_us) and end_us > start_us:
            found.append(Activity(str(event.name), start_us * 1e-6, end_us * 1e-6))
    return sorted(found, key=lambda one: (one.start_s, one.end_s))


def timeline(activities: Sequence[Activity], samples: int, launches_per_sample: int) -> Timeline:
    """Return what one launch consists of.

    Args:
        activities: of all samples, the earliest first.
        samples: that were taken.
        launches_per_sample: in each of them; what lies between two samples is no gap.

    Raises:
        ActivityError: none was recorded, or a part was lost: their number is no multiple of the launches.
    """
    launches = samples * launches_per_sample
    if not activities:
        raise ActivityError("the profiler recorded nothing")
    if len(activities) % launches:
        raise ActivityError(f"{len(activities)} activities for {launches} launches: the profiler lost a part of them")
    each = len(activities) // samples
    covered_s = gap_s = 0.0
    for first in range(0, len(activities), each):
        sample = activities[first : first + each]
        until_s = sample[0].start_s
        for one in sample:
            gap_s += max(0.0, one.start_s - until_s)
            covered_s += max(0.0, one.end_s - max(one.start_s, until_s))
            until_s = max(until_s, one.end_s)
    busy_s = sum(one.end_s - one.start_s for one in activities)
    names = tuple(dict.fromkeys(one.name for one in activities))
    per = launches
    return Timeline(busy_s / per, covered_s / per, gap_s / per, len(activities) // launches, names)


def verdict(ours_s: float, profiled_s: float, seen: Timeline) -> tuple[bool, str]:
    """Return whether the difference between our time and the profiler's is known, and what it is.

    Args:
        ours_s: our time of a launch, without the profiler.
        profiled_s: the same clock while the profiler recorded.
        seen: what the profiler recorded.
    """
    if near(seen.busy_s, ours_s):
        return True, "within 5 %"
    span_s = seen.covered_s + seen.gap_s
    if seen.busy_s < ours_s and near(span_s, ours_s):
        return True, f"{share(seen.gap_s, ours_s)} of our time are gaps between kernels"
    if seen.busy_s > ours_s and near(seen.covered_s, ours_s):
        return True, f"kernels overlap: {share(seen.busy_s - seen.covered_s, ours_s)} of our time run two at once"
    if not near(profiled_s, ours_s) and near(span_s, profiled_s):
        return True, f"the profiler changes the time itself: {profiled_s / ours_s:.2f} times ours while it records"
    return False, "unexplained"


def near(value_s: float, wanted_s: float) -> bool:
    """Return whether two times agree within the tolerance."""
    return abs(value_s - wanted_s) <= TOLERANCE * wanted_s


def share(part_s: float, whole_s: float) -> str:
    """Return a part as a percentage."""
    return f"{part_s / whole_s:.1%}"
