"""The least time of a whole reply: a prefill, and one decode step for each further token, whose cache grows."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

from roofline.accounting.config.config import ModelConfig
from roofline.accounting.inference import decode_bytes, decode_flops, prefill_bytes, prefill_flops
from roofline.model import least_time_s


class Serving(NamedTuple):
    """Devices that share a model evenly, and what it lies in."""

    peak_flops_per_s: float
    """Of all devices."""
    bandwidth_bytes_per_s: float
    """Of all devices."""
    weight_bytes: float = 2
    """Of one parameter."""
    kv_bytes: int = 2
    """Of one element of the cache."""


def prefill_seconds(config: ModelConfig, prompt: int, batch: int, serving: Serving) -> float:
    """Return the least time until the first token: all prompts are read at once.

    Source: the roofline of `inference.prefill_flops` and `inference.prefill_bytes`.
    """
    moved = prefill_bytes(config, prompt, batch, serving.weight_bytes, serving.kv_bytes)
    limits = (serving.peak_flops_per_s, serving.bandwidth_bytes_per_s)
    return least_time_s(prefill_flops(config, prompt, batch), moved, *limits)


def decode_seconds(config: ModelConfig, prompt: int, tokens: int, batch: int, serving: Serving) -> float:
    """Return the least time of all steps after the first token of a reply of `tokens` tokens.

    The step for token n sees prompt + n - 1 positions. Between the places where a window fills up, FLOPs and bytes grow
    evenly, so each such stretch is two arithmetic series that cross at most once: exact, however long the reply is.

    Source: the sum of the roofline of `inference.decode_flops` and `inference.decode_bytes` over the steps.
    """
    first, end = prompt + 1, prompt + tokens
    turn = min(max(config.window or first, first), end)
    parts = ((first, turn), (turn, end))
    return sum(_stretch_seconds(config, *part, batch, serving) for part in parts if part[0] < part[1])


def _stretch_seconds(config: ModelConfig, first: int, end: int, batch: int, serving: Serving) -> float:
    """Return the time of the steps that see `first` to `end` - 1 positions, along which all grows evenly."""

    def compute_s(seen: int) -> float:
        return decode_flops(config, seen, batch) / serving.peak_flops_per_s

    def memory_s(seen: int) -> float:
        moved = decode_bytes(config, seen, batch, serving.weight_bytes, serving.kv_bytes)
        return moved / serving.bandwidth_bytes_per_s

    begins_with_compute = compute_s(first) > memory_s(first)
    turned = bisect_left(
        range(first, end), True, key=lambda seen: (compute_s(seen) > memory_s(seen)) != begins_with_compute
    )
    before, after = (compute_s, memory_s) if begins_with_compute else (memory_s, compute_s)
    return _series(before, first, first + turned) + _series(after, first + turned, end)


def _series(value: Callable[[int], float], first: int, end: int) -> float:
    """Return the sum of an arithmetic series over first <= n < end."""
    return 0.0 if first >= end else (value(first) + value(end - 1)) / 2 * (end - first)
