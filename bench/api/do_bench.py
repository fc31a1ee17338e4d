"""`bench.do_bench`: the signature and the return values of Triton's `do_bench`, with the samplers
of this project.

As Triton's, it flushes the cache before each call and times single calls. Differences: a GPU starts
a call when all of it is queued, so that no host time is included; there are at least five values;
garbage collection is off; it also works on a CPU; and it warns if something else took time from the
values, or if the function changed settings of torch, which are put back.
`python -m tests.validation.side_by_side` compares both with torch's Timer.

Source: triton/testing.py, `do_bench`, of Triton 3.6 to 3.9.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from bench.api.function import check_number, detected, name_of, raising
from bench.harness.cli.arguments import UsageError
from bench.harness.data.torch_settings import settings_kept
from bench.harness.device.device import Device
from bench.harness.measure.flags import disturbance, of_settings
from bench.harness.measure.measure_row import undisturbed
from bench.harness.timing import samplers
from bench.harness.timing.protocol import Limits, Sampler, settle
from results.stats.samples import quantile

RETURN_MODES: dict[str, Callable[[Sequence[float]], float | list[float]]] = {
    "min": min,
    "max": max,
    "mean": statistics.fmean,
    "median": statistics.median,
    "all": list,
}
NO_CHECK = 10**9
"""Samples before the interval is computed, so that only the time limit ends the measurement."""

GPU_FLUSH_BYTES = 256 * 2**20
"""Minimum bytes that a flush writes on a GPU, as in Triton's driver for NVIDIA GPUs."""

FLUSHED_CACHES = 2
"""Size of a flush in last-level caches."""


def do_bench(
    fn: Callable[[], Any],
    warmup: float = 25,
    rep: float = 100,
    grad_to_none: Sequence[Any] | None = None,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "mean",
) -> float | list[float]:
    """Return the time of `fn()` in milliseconds, as `triton.testing.do_bench` does, on a GPU or a
    CPU.

    Each value is the time of one call after a flush of the last-level cache. The flush also evicts
    the code of `fn`: on a CPU, an empty function takes about 8 us. `bench.measure` has no flush.

    Args:
        fn: a function without arguments.
        warmup: milliseconds of warm-up.
        rep: milliseconds of all values and flushes together; there are at least five values.
        grad_to_none: tensors whose gradients are set to None before each call.
        quantiles: quantiles to return instead of `return_mode`, such as `[0.5, 0.2, 0.8]`; a single
            one as a number.
        return_mode: `mean`, `median`, `min`, `max`, or `all` for the list of all values.

    Raises:
        UsageError: invalid arguments, or `fn` raised (its error is the cause).
    """
    import torch

    name = name_of(fn)
    check_number("warmup", warmup, "of milliseconds from 0", or_zero=True)
    check_number("rep", rep, "of milliseconds from 0", or_zero=True)
    if return_mode not in RETURN_MODES:
        raise UsageError(
            f"return_mode={return_mode!r:.60} must be one of {', '.join(RETURN_MODES)}"
        )
    if quantiles is not None and (
        not len(quantiles) or not all(0 <= share <= 1 for share in quantiles)
    ):
        raise UsageError(f"quantiles={quantiles!r:.60} must be numbers from 0 to 1")
    device = detected(f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else None)
    limits = Limits(NO_CHECK, 0.0, 0.0, rep / 1e3, warmup / 1e3, 0.0, warm_up_cap_s=warmup / 1e3)
    with raising(name), settings_kept() as changed:
        sampler = flushing_sampler(fn, device, grad_to_none or ())
        settle(sampler.sample, limits)
        samples = undisturbed(sampler, device, limits, "cold")
    disturbed = disturbance(samples.telemetry, device.is_gpu)
    for flag in filter(None, (disturbed, *of_settings(changed, "the function"))):
        warnings.warn(f"{name}: {flag.name}: {flag.reason}", stacklevel=2)
    return summary([1e3 * seconds for seconds in samples.samples_s], quantiles, return_mode)


def flushing_sampler(
    fn: Callable[[], Any], device: Device, grad_to_none: Sequence[Any] = ()
) -> Sampler:
    """Return the sampler of single calls of a function, each after a cache flush; call it once to
    compile.
    """
    import torch

    fn()
    device.synchronize()
    size = max(int(FLUSHED_CACHES * device.cache_bytes), GPU_FLUSH_BYTES if device.is_gpu else 0)
    buffer = torch.empty(size // 4, dtype=torch.int, device=device.torch_name)

    def before() -> None:
        for tensor in grad_to_none:
            tensor.grad = None
        buffer.zero_()

    def queued() -> None:
        before()
        fn()

    if not device.is_gpu:
        return samplers.HostSampler([fn], 1, before)
    return samplers.EventSampler(
        [fn], 1, samplers.host_launch_s([queued], device.synchronize), before=before
    )


def summary(
    times_ms: Sequence[float], quantiles: Sequence[float] | None, return_mode: str
) -> float | list[float]:
    if quantiles is not None:
        values = [quantile(times_ms, float(share)) for share in quantiles]
        return values[0] if len(values) == 1 else values
    return RETURN_MODES[return_mode](times_ms)
