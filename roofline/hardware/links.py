"""Between host and device: what a link carries, how much of a copy hides behind work, how long a step waits."""

from __future__ import annotations

from collections.abc import Sequence

TRANSFERS_PER_S = {3: 8e9, 4: 16e9, 5: 32e9, 6: 64e9}
"""Bits per second and lane of a PCI Express generation, in one direction, with the overhead of their coding."""

CODING = {3: 128 / 130, 4: 128 / 130, 5: 128 / 130, 6: 242 / 256}
"""Share of the bits that carries data: 128b/130b, from generation 6 on units of 256 bytes with 242 of payload."""


def pcie_bytes_per_s(generation: int, lanes: int) -> float:
    """Return the bytes per second that a PCI Express link carries in one direction, packet headers left out.

    Raises:
        KeyError: the generation is not in the table.

    Source: PCI-SIG, PCI Express Base Specification, revisions 3.0 to 6.0: 8, 16, 32 and 64 GT/s.
    """
    return TRANSFERS_PER_S[generation] * CODING[generation] * lanes / 8


def hidden_share(copy_s: float, compute_s: float, both_s: float) -> float:
    """Return how much of the shorter of two jobs hides behind the longer one: 1 all of it, 0 nothing.

    It is below 0 where they are in each other's way. Times in seconds, of each alone and of both at once.

    Source: NVIDIA, How to Overlap Data Transfers in CUDA C/C++ (2012): at best max(copy, compute), else their sum.
    """
    return (copy_s + compute_s - both_s) / min(copy_s, compute_s)


def wait_share(waits_s: Sequence[float], steps_s: Sequence[float]) -> float:
    """Return the share of the time of all steps that went by until their data was there.

    Args:
        waits_s: seconds that each step waited.
        steps_s: seconds of each step, waiting included.
    """
    return sum(waits_s) / sum(steps_s)
