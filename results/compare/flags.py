"""Effect of flags on verdicts; the flags are those of `bench/harness/measure/flags.py`."""

from __future__ import annotations

DISTURBED = frozenset(
    {"preempted", "throttled", "drifting", "bimodal", "tick-limited", "interpreted"}
)
"""Flags of interference: the error of the time may exceed its interval."""

MIN_DISTURBED_ROUNDS = 80
"""Rounds after which interference has affected both sides about equally: a process that takes a
core for some milliseconds at a time slowed one side down by 16 to 30 % more than the other in 20
rounds."""

ONE_SIDED = frozenset({"l2-suspect", "not-cold", "not-captured"})
"""On one side only, such a flag may explain a difference: cache and memory, or events and graph."""

LOST_TIME = frozenset({"preempted", "throttled"})
"""Flags of time that something other than the code took; rounds do not remove it from a ratio."""

OF_THE_ROOF = frozenset({"above-roof", "doubtful-roof"})
"""On both sides, these flags do not affect the ratio: they are about the ceiling."""
