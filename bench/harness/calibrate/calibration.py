"""The ceilings of the machine in hand: by datasheet for a GPU of the table, measured here for a CPU.

A CPU has no datasheet peak that torch could reach, so its roofs are what it does when it does nothing else: the
fastest copy and triad far beyond the cache, and the fastest matmul of each dtype. They are kept beside the runs with
the identity of the machine, and measured anew when that changes.

What is here is the short calibration that any command does when a roof is missing. `python -m bench calibrate` measures
more and longer (`calibrate_parts`), and keeps it in the same file, where it takes the place of the short one.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from bench.harness.data.inputs import Filler, make_sets
from bench.harness.device import nvml
from bench.harness.device.device import MIB, Device
from bench.harness.device.stamp import installed_version
from bench.harness.measure.cost import CostEstimator
from bench.harness.measure.runner import one_line
from bench.harness.op import Case, Op
from bench.harness.providers.registry import load, numerics
from bench.harness.timing import samplers
from bench.harness.timing.protocol import CPU_LIMITS, GPU_LIMITS, Limits, collect, warm_up
from roofline.ceilings import Ceiling, CeilingError, Ceilings, gpu_ceilings
from roofline.hardware.gpu import (
    Gpu,
    UnknownGpuError,
    clock_limited_peak_flops_per_s,
    derive_unknown_gpu,
    find_gpu,
    load_gpus,
    match_driver_name,
)

BANDWIDTH_CACHES = 4
"""Each array of the bandwidth kernels is this many times the last-level cache, within `ARRAY_BYTES`."""

ARRAY_BYTES = (64 * MIB, 512 * MIB)

MATMUL_SIZES = (512, 1024, 2048, 3072)
"""Square sizes among which the fastest matmul is looked for; one that would take longer than `SLOWEST_CALL_S` a call
is left out, and so are larger ones."""

GPU_MATMUL_SIZES = (*MATMUL_SIZES, 4096, 8192)
"""The same for an Apple GPU, which smaller ones do not fill."""

SLOWEST_CALL_S = 0.15
LIMITS = Limits(min_samples=10, target_half_width=0.01, min_time_s=0.0, cap_s=0.6, warm_up_s=0.05, min_sample_s=1e-3)

WIDENED = ("fp16",)
"""Dtypes that fp32 arithmetic may serve better than their own."""

DISTURBED = "disturbed, so it may be low"
"""What the source of a ceiling says that was measured while something else held the device back."""

SEED = 0
Note = Callable[[str], None]


def ceilings_of(device: Device, gpu_slug: str | None) -> Ceilings:
    """Return the ceilings that are known of a device without measuring.

    Args:
        device: the device under test.
        gpu_slug: entry of the GPU table to judge by, or None to match the driver's name.

    Raises:
        UnknownGpuError: the table has no such entry.
        ValueError: a GPU was named, but the device is a CPU or an Apple GPU.
    """
    if not device.has_cuda:
        if gpu_slug is not None:
            found = "an Apple GPU, of which the table has none" if device.is_gpu else "a CPU"
            raise ValueError(f"--gpu {gpu_slug} does not fit: the device measured is {found}; leave --gpu out")
        return Ceilings(device.slug, device.name)
    gpu, note = (find_gpu(gpu_slug), None) if gpu_slug else identify(device)
    known = gpu_ceilings(gpu)
    return Ceilings(known.slug, known.name, known.entries, note)


def identify(device: Device) -> tuple[Gpu, str | None]:
    """Return the table's entry for a GPU, or what the device tells of itself, with a note that says so."""
    match = match_driver_name(device.name, device.memory_bytes, sm_count=device.sm_count)
    if match.gpu is not None:
        return match.gpu, None
    gpu = derive_unknown_gpu(
        driver_name=device.name,
        memory_clock_hz=device.memory_clock_hz,
        bus_width_bits=device.memory_bus_bits,
        memory_bytes=device.memory_bytes,
        sm_count=device.sm_count,
        compute_capability=device.compute_capability,
    )
    if match.ambiguous:
        several = ", ".join(candidate.slug for candidate in match.ambiguous)
        return gpu, f"'{device.name}' is the name of several GPUs ({several}): MFU is blank until --gpu names one"
    return gpu, f"'{device.name}' is not in the GPU table: bandwidth is derived, MFU is blank; --gpu names an entry"


def identity(device: Device) -> dict[str, Any]:
    """Return what must be the same for measured ceilings to hold."""
    return {
        "host": platform.node(),
        "device": device.name,
        "uuid": device.uuid,
        "threads": device.threads,
        "cache_bytes": device.cache_bytes,
        "memory_bytes": device.memory_bytes,
        "torch": installed_version("torch"),
        "triton": installed_version("triton"),
        "driver": nvml.driver_version().value if device.has_cuda else None,
        "power_limit_w": _power_limit_w(device),
        "onednn_isa": os.environ.get("ONEDNN_MAX_CPU_ISA"),
        "method": 2,
    }


def _power_limit_w(device: Device) -> float | None:
    """Return the power limit in force, W, or None on a CPU and where it cannot be read."""
    if device.type != "cuda":
        return None
    limit_w: float | None = nvml.open_gpu(device.uuid).power("nvmlDeviceGetEnforcedPowerLimit").value
    return limit_w


def peak_sentences(ceilings: Ceilings, dtypes: Iterable[str]) -> list[str]:
    """Return a line for each dtype from its datasheet peak over clock and software to what was measured.

    One for its matmul and one for its fused multiply-adds, as far as both were measured. Dtypes of which a part is
    not known get none; so does every CPU.
    """
    from bench.harness.calibrate.compute_peak import peak_line

    try:
        gpu = find_gpu(ceilings.slug)
    except UnknownGpuError:
        return []
    found = {(entry.quantity, entry.name): entry for entry in ceilings.entries if entry.kind == "measured"}
    lines = [
        peak_line(dtype, entry.value, gpu, entry.sm_clock_hz, quantity == "fma")
        for dtype in dtypes
        for quantity in ("flops", "fma")
        if (entry := found.get((quantity, dtype))) is not None
    ]
    return [line.sentence for line in lines if line.datasheet and line.clock_limited]


def clock_limited(ceilings: Ceilings) -> list[Ceiling]:
    """Return the peak of each dtype whose fastest matmul was measured, at the SM clock of that measurement.

    None for a device that is not in the table, and where the clock could not be read.
    """
    gpu = load_gpus().get(ceilings.slug)
    if gpu is None:
        return []
    found = []
    for entry in ceilings.entries:
        if (entry.quantity, entry.kind) == ("flops", "measured") and entry.sm_clock_hz:
            value = clock_limited_peak_flops_per_s(gpu, entry.name, entry.sm_clock_hz)
            source = f"SMs x rate of roofline/gpus/{gpu.slug}.toml x {entry.sm_clock_hz / 1e6:.0f} MHz"
            if value:
                clock = entry.sm_clock_hz
                found.append(Ceiling("flops", entry.name, value, "clock-limited", source, sm_clock_hz=clock))
    return found


class MeasuredCeilings:
    """The measured ceilings of a device: kept in a file, completed as more dtypes are asked for."""

    def __init__(self, device: Device, directory: Path, note: Note, progress: Note) -> None:
        """Look for `directory/<device>/ceilings-<identity>.json`.

        Args:
            device: the device under test.
            directory: where runs are kept.
            note: takes a line for the user.
            progress: takes what is being measured at the moment.
        """
        self._device, self._note, self._progress = device, note, progress
        self._identity = identity(device)
        digest = hashlib.sha256(json.dumps(self._identity, sort_keys=True).encode()).hexdigest()[:12]
        self.path = directory / device.slug / f"ceilings-{digest}.json"
        self._could_save = True

    def load(self) -> tuple[Ceiling, ...]:
        """Return the ceilings kept for this very machine; none where the file is missing, torn or another's."""
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
            if data["identity"] != self._identity:
                raise CeilingError("it belongs to another machine")
            entries = Ceilings.from_dict(data).entries
        except FileNotFoundError:
            self._report_stale()
            return ()
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            self._note(f"{self.path}: not used and measured anew: {error or type(error).__name__}")
            return ()
        return tuple(entry for entry in entries if entry.kind == "measured")

    def _report_stale(self) -> None:
        """Say what has changed since the ceilings of this device were kept last, where they were."""
        try:
            kept = sorted(self.path.parent.glob("ceilings-*.json"), key=lambda path: path.stat().st_mtime)
            known = json.loads(kept[-1].read_text(encoding="utf-8"))["identity"] if kept else {}
            changed = [
                f"{key} was {known.get(key)!r:.60} and is {value!r:.60}"
                for key, value in self._identity.items()
                if known and known.get(key) != value
            ]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return  # a file of another identity is not used anyway
        if changed:
            self._note(f"{kept[-1]}: stale and not used, measured anew: {'; '.join(changed)}")

    def save(self, ceilings: Ceilings) -> None:
        """Keep the measured entries; a place that cannot be written costs only the next run's time, and one note.

        What was kept before stays as it is until all of the new file is written.
        """
        kept = ceilings.to_dict() | {"identity": self._identity}
        unfinished = self.path.with_suffix(f".{os.getpid()}.partial")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            unfinished.write_text(json.dumps(kept, indent=1), encoding="utf-8")
            unfinished.replace(self.path)
        except OSError as error:
            with suppress(OSError):
                unfinished.unlink()
            if self._could_save:
                self._note(f"{self.path}: the measured ceilings are not kept: {error.strerror}")
            self._could_save = False

    def complete(self, ceilings: Ceilings, dtypes: Iterable[str], matmul: Op, again: bool = False) -> Ceilings:
        """Return `ceilings` with what is measured on this machine; only what is not kept yet is measured.

        Args:
            ceilings: what is known without measuring.
            dtypes: dtypes whose fastest matmul is needed.
            matmul: the op to find it with.
            again: measure all of it even if it is kept.
        """
        wanted = list(dict.fromkeys(dtypes))
        kept = self.load()
        if again:  # only what is measured anew now is dropped
            anew = {("launch", "launch")}
            if not self._device.has_cuda:
                anew |= {("bandwidth", "copy"), ("bandwidth", "triad"), *flops_of(wanted)}
            kept = tuple(e for e in kept if (e.quantity, e.name) not in anew)
        found = ceilings.with_entries(kept)
        had = found.entries
        if found.launch_floor() is None:
            found = found.with_entries(self._attempt("launch floor", self._launch_floor))
        if not self._device.has_cuda:
            if again or found.bandwidth() is None:
                found = found.with_entries(self._attempt("memory bandwidth", self._bandwidths))
            for dtype in [dtype for dtype in wanted if found.peak(dtype) is None]:
                found = found.with_entries(self._attempt(f"{dtype} peak", partial(self._best_peak, dtype, matmul)))
        if found.entries != had:
            self.save(found)
        sentences = peak_sentences(found, wanted)
        if any(DISTURBED in entry.source for entry in found.entries):
            sentences.append("measured roofs may be low, the device was disturbed: `python -m bench calibrate` again")
        note = "; ".join([*([found.note] if found.note else []), *sentences])
        shown = found.with_entries(clock_limited(found))
        return Ceilings(shown.slug, shown.name, shown.entries, note or None)

    def _attempt(self, what: str, measure: Callable[[], list[Ceiling]]) -> list[Ceiling]:
        """Return what `measure` finds; without a roof some columns stay blank, and the measurements go on."""
        try:
            return measure()
        except (RuntimeError, MemoryError, CeilingError) as error:
            self._note(f"the {what} of this machine is not known: {one_line(error)}")
            return []

    def _launch_floor(self) -> list[Ceiling]:
        """Return the time of a copy of one element: nothing but the launch."""
        import torch

        self._progress("calibrating: launch")
        one, out = (torch.ones(1, device=self._device.torch_name) for _ in range(2))
        seconds = self._least_s([lambda: out.copy_(one)])
        return [Ceiling("launch", "launch", seconds, "measured", self._source("copy of one element"))]

    def _bandwidths(self) -> list[Ceiling]:
        """Return the bandwidth of copy (two arrays) and triad (three), every array far larger than the cache.

        Source: the kernels of STREAM; McCalpin, IEEE TCCA Newsletter, December 1995. Bytes are counted as it counts
            them, without the line that a store may read first.
        """
        import torch

        array_bytes = min(max(BANDWIDTH_CACHES * self._device.cache_bytes, ARRAY_BYTES[0]), ARRAY_BYTES[1])
        array_bytes = min(array_bytes, self._device.free_bytes() // 8)
        elements = array_bytes // 4
        self._progress("calibrating: memory bandwidth")
        a, b, c = (torch.rand(elements, dtype=torch.float32, device=self._device.torch_name) for _ in range(3))
        timed = {
            "copy": (2, lambda: c.copy_(a)),
            "triad": (3, lambda: torch.add(a, b, alpha=0.5, out=c)),
        }
        found = []
        for name, (arrays, call) in timed.items():
            value = arrays * elements * 4 / self._least_s([call])
            source = self._source(f"{name}, fp32, {arrays} x {elements} elements")
            found.append(Ceiling("bandwidth", name, value, "measured", source))
        return found

    def _best_peak(self, dtype: str, matmul: Op) -> list[Ceiling]:
        """Return the most FLOP/s for numbers of a dtype: of its matmul, or of fp32's where that is faster.

        Without fp16 arithmetic a processor multiplies fp16 matrices a thousand times slower than it could by widening
        them, and torch does widen them in every elementwise operation.
        """
        own = self._peak(dtype, matmul)
        if dtype not in WIDENED:
            return own
        wide = self._peak("fp32", matmul)
        if not own or not wide or own[0].value >= wide[0].value:
            return own
        return [replace(wide[0], name=dtype, source=f"{wide[0].source}, widened to fp32")]

    def _peak(self, dtype: str, matmul: Op) -> list[Ceiling]:
        """Return the FLOP/s of the fastest square matmul of a dtype; none where matmul has no such dtype."""
        if dtype not in matmul.dtypes:
            return []
        best: tuple[float, str] | None = None
        estimator = CostEstimator(self._device, "uniform", SEED)
        for size in GPU_MATMUL_SIZES if self._device.is_gpu else MATMUL_SIZES:
            case = Case("matmul", dtype, {"m": size, "n": size, "k": size}, {"layout": "nn", "batch": 1})
            if (estimator.call_s(matmul, case) or 0.0) > SLOWEST_CALL_S:
                if best is not None:
                    break
                case = _largest_within(matmul, case, estimator)
            self._progress(f"calibrating: {dtype} matmul {case.name}")
            flops, seconds = matmul.work(case).flops, self._matmul_s(matmul, case)
            estimator.learn(matmul, case, seconds)
            if best is None or flops / seconds > best[0]:
                best = flops / seconds, case.name
        return [Ceiling("flops", dtype, best[0], "measured", self._source(f"matmul {best[1]}"))] if best else []

    def _matmul_s(self, matmul: Op, case: Case) -> float:
        """Return the seconds of one matmul, warm: a ceiling is what the arithmetic can do."""
        filler = Filler("uniform", case.dtype, self._device, SEED)
        data = make_sets(matmul, case, filler, self._device, 1)[0]
        with numerics(case.dtype):
            return self._least_s([load("torch", matmul, "matmul", self._device).call(data)])

    def _least_s(self, calls: list[samplers.Call]) -> float:
        """Return the least seconds of a launch over the samples of the usual protocol.

        The least, as STREAM reports it: whatever else runs on the machine only ever adds time, and a roof is what
        the machine can do when nothing does.
        """
        limits = LIMITS if not self._device.has_cuda else GPU_LIMITS
        calls[0]()
        sampler = samplers.make_sampler(calls, self._device, limits)
        warm_up(sampler, min(limits.warm_up_s, CPU_LIMITS.warm_up_s))
        return min(collect(sampler, limits, "warm").samples_s)

    def _source(self, what: str) -> str:
        versions = f"torch {self._identity['torch']}"
        return (
            f"measured here {datetime.now(UTC):%Y-%m-%d}: {what}, {self._device.threads or 'GPU'} threads, {versions}"
        )


def flops_of(dtypes: Iterable[str]) -> set[tuple[str, str]]:
    """Return quantity and name of the peaks of some dtypes."""
    return {("flops", dtype) for dtype in dtypes}


def _largest_within(op: Op, case: Case, estimator: CostEstimator) -> Case:
    """Return the largest halved case whose call stays below `SLOWEST_CALL_S`."""
    from bench.harness.measure.cost import smaller_cases

    smaller = smaller_cases(op, case)
    fitting = [other for other in smaller if (estimator.call_s(op, other) or 0.0) <= SLOWEST_CALL_S]
    return fitting[-1] if fitting else smaller[0]
