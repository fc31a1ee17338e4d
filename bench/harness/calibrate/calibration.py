"""The ceilings of this machine: the datasheet of a GPU in the GPU table, measurements on a CPU.

A CPU has no datasheet peak that torch could reach. Its ceilings are the fastest copy, triad, read
and write of arrays much larger than the cache, and the fastest matmul of each dtype. The bandwidths
are measured on a GPU too. Ceilings are saved with the identity of the machine and measured again if
it changes, and on a CPU if a row is above one.

Any command measures missing ceilings as `python -m bench calibrate --quick` does.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import platform
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import ValidationError

from bench.harness.device import gpu_state
from bench.harness.device.device import Device, environment_facts
from bench.harness.op import UsageError
from results.store.runfile import StoreError, lock_file, write_output
from roofline.machine import READ_SHARES, Ceiling, Machine
from roofline.work import Work

if TYPE_CHECKING:
    from bench.harness.calibrate.setup import Part

MIXES = ("copy", "triad", "read", "write")
"""Mixes of reads and writes, 1:1, 2:1, 1:0, 0:1; those of STREAM come first."""


def ceilings_of(device: Device, gpu_slug: str | None) -> Machine:
    """Return the ceilings of a device that are known without measuring; without a slug, by the
    driver's name.
    """
    if not device.is_gpu:
        if gpu_slug is not None:
            raise UsageError(
                f"--gpu {gpu_slug} (gpu= in a script) requires a GPU device, got a CPU; remove it"
            )
        return Machine(device.slug, device.name)
    from roofline.gpu_table import find_gpu, gpus_alike, gpus_named, unknown_gpu

    if gpu_slug is not None:
        return find_gpu(gpu_slug)
    named = gpus_named(device.name, device.memory_bytes, device.sm_count)
    if len(named) == 1:
        return named[0]
    gpu = unknown_gpu(
        device.name, device.memory_clock_hz, device.memory_bus_bits, device.compute_capability
    )
    bandwidth = "derived" if gpu.memory_bandwidth_bytes_per_s else "unknown"
    note = (
        f"'{device.name}' is not in the GPU table: bandwidth is {bandwidth}, MFU is blank until "
        f"python -m bench calibrate measures the peaks; or use --gpu to name an entry"
    )
    alike = gpus_alike(device.memory_bytes, device.sm_count)
    if alike:
        note += f" (derived from its memory and SMs: {' or '.join(alike)})"
    if named:
        several = ", ".join(candidate.slug for candidate in named)
        note = (
            f"'{device.name}' is the name of several GPUs ({several}): MFU is blank; use --gpu "
            f"to name one"
        )
    return replace(gpu, note=note)


def _at_clock(ceilings: Machine, entry: Ceiling | None) -> float | None:
    """Return the datasheet's peak at the SM clock of a measured peak, FLOP/s; None if unknown."""
    if entry is None or entry.kind != "measured" or not entry.sm_clock_hz:
        return None
    from roofline.gpu_table import clock_limited_flops_per_s, load_gpus

    gpu = load_gpus().get(ceilings.slug)
    if gpu is None or entry.unit != "FLOP/s":
        return None
    return clock_limited_flops_per_s(
        gpu, entry.name, entry.sm_clock_hz, is_vector=entry.quantity == "fma"
    )


def peak_sentences(ceilings: Machine, dtypes: Iterable[str]) -> list[str]:
    """Return lines that divide the gap between datasheet and measured peaks into clock and
    software.
    """
    known = {(entry.kind, entry.quantity, entry.name): entry for entry in ceilings.entries}
    lines = []
    for dtype, quantity in itertools.product(dtypes, ("flops", "fma")):
        entry = known.get(("measured", quantity, dtype))
        published = known.get(("datasheet", quantity, dtype))
        limited = _at_clock(ceilings, entry)
        if entry and entry.sm_clock_hz and published and limited:
            title = dtype if quantity == "flops" else f"{dtype} FMA"
            unit = "TOP/s" if dtype == "int8" else "TFLOP/s"
            lines.append(
                f"{title}: datasheet {published.value / 1e12:.4g} {unit} -> x clock "
                f"{limited / published.value:.2f} ({entry.sm_clock_hz / 1e6:.0f} MHz) = "
                f"{limited / 1e12:.4g} -> x software {entry.value / limited:.2f} -> measured "
                f"{entry.value / 1e12:.4g} {unit}"
            )
    return lines


def explaining(ceilings: Machine) -> list[Ceiling]:
    """Return for each dtype the datasheet's peak at the SM clock of the fastest matmul; no row is
    compared with it.
    """
    explained = []
    for entry in ceilings.entries:
        if (
            entry.quantity == "flops"
            and entry.sm_clock_hz
            and (limited := _at_clock(ceilings, entry))
        ):
            source = (
                f"SMs x rate of roofline/gpus/{ceilings.slug}.toml x "
                f"{entry.sm_clock_hz / 1e6:.0f} MHz"
            )
            peak = Ceiling(
                "flops", entry.name, limited, "clock-limited", source, sm_clock_hz=entry.sm_clock_hz
            )
            explained.append(peak)
    return explained


def merged(
    known: Machine, measured: Iterable[Ceiling], too_low: Collection[Ceiling] = ()
) -> Machine:
    """Return the ceilings with new ones, except lower ones that are disturbed or replace a ceiling
    in `too_low`.
    """
    earlier = {(e.quantity, e.name): e for e in known.entries if e.kind == "measured"}
    better = []
    for new in measured:
        old = earlier.get((new.quantity, new.name))
        is_better = old is None or (new.value < old.value) == (new.unit == "s")
        if is_better or not (new.disturbed or old in too_low):
            better.append(new)
    return known.with_entries(better)


def mixes_for(works: Iterable[Work]) -> list[str]:
    """Return the mixes that judge some work: those on both sides of its fraction of bytes read."""
    names = set()
    for work in works:
        if work.bytes:
            share = work.bytes_read / work.bytes
            below = [mix for mix in MIXES if READ_SHARES[mix] <= share]
            above = [mix for mix in MIXES if READ_SHARES[mix] >= share]
            names.add(max(below, key=READ_SHARES.__getitem__))
            names.add(min(above, key=READ_SHARES.__getitem__))
    return [mix for mix in MIXES if mix in names]


def parts_of(
    needs_launch: bool,
    mixes: Sequence[str],
    matmuls: Iterable[str],
    fmas: Iterable[str],
    needs_cache: bool,
) -> list[tuple[str, Part]]:
    """Return the parts to measure, the most important first, because a calibration may be
    interrupted.
    """
    from bench.harness.calibrate import bandwidth, peaks

    parts: list[tuple[str, Part]] = [("launch", bandwidth.launch)] if needs_launch else []
    if mixes:
        parts.append(
            (f"bandwidth of {', '.join(mixes)}", partial(bandwidth.bandwidth, mixes=mixes))
        )
    parts += [(f"{dtype} matmul", partial(peaks.matmul, dtype=dtype)) for dtype in matmuls]
    parts += [(f"{dtype} FMA", partial(peaks.fma, dtype=dtype)) for dtype in fmas]
    return [*parts, ("cache", bandwidth.cache)] if needs_cache else parts


class MeasuredCeilings:
    """The measured ceilings of a device, saved in a file to which missing ones are added."""

    def __init__(
        self,
        device: Device,
        directory: Path,
        note: Callable[[str], object],
        progress: Callable[[str], object],
    ) -> None:
        """The file is `directory/<device>/ceilings-<identity>.json`; `note` and `progress` take a
        line for the user.
        """
        self._device = device
        self._note = note
        self._progress = progress
        known = environment_facts()["versions"]
        power_limit_w = gpu_state.modes(device.uuid)["power_limit_w"] if device.is_gpu else None
        self.identity = {
            "host": platform.node(),
            "device": device.name,
            "uuid": device.uuid,
            "threads": device.threads,
            "cache_bytes": device.cache_bytes,
            "memory_bytes": device.memory_bytes,
            "torch": known["torch"],
            "triton": known["triton"],
            "driver": known["driver"] if device.is_gpu else None,
            "power_limit_w": power_limit_w,
            "onednn_isa": os.environ.get("ONEDNN_MAX_CPU_ISA"),
            "method": 3,
        }
        digest = hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()[:12]
        self.path = directory / device.slug / f"ceilings-{digest}.json"
        self._could_save = True

    def load(self) -> tuple[Ceiling, ...]:
        """Return the saved ceilings of this machine; empty if the file is missing, damaged or
        another machine's.
        """
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
            if data["identity"] != self.identity:
                raise ValueError("it belongs to another machine")
            entries = Machine.from_dict(data).entries
        except FileNotFoundError:
            return ()
        except (OSError, ValueError, KeyError, TypeError, RecursionError, ValidationError) as error:
            self._note(
                f"{self.path}: ignored, the ceilings are measured again: "
                f"{error or type(error).__name__}"
            )
            return ()
        return tuple(entry for entry in entries if entry.kind == "measured")

    def save(self, ceilings: Machine) -> None:
        """Save the ceilings; if they cannot be written, a note says so and the next run measures
        them again.
        """
        content = ceilings.to_dict() | {"identity": self.identity}
        try:
            write_output(self.path, json.dumps(content, indent=1).encode())
        except StoreError as error:
            if self._could_save:
                self._note(f"the measured ceilings are not saved: {error}")
            self._could_save = False

    def complete(
        self,
        ceilings: Machine,
        dtypes: Iterable[str],
        mixes: Collection[str] = MIXES,
        too_low: Collection[Ceiling] = (),
    ) -> Machine:
        """Return `ceilings` with the measured ones of this machine; missing ones are measured.

        Args:
            ceilings: known without measuring.
            dtypes: dtypes that need a matmul peak.
            mixes: mixes of reads and writes that need a bandwidth.
            too_low: ceilings to measure again because a row is above them; the higher rate is used.
        """
        wanted = list(dict.fromkeys(dtypes))
        complete = ceilings.with_entries(self.load())
        if too_low:
            self._note(
                f"measuring again, because rows are above it: "
                f"{', '.join(entry.title for entry in too_low)}"
            )
        if self._due(complete, wanted, mixes, too_low):
            from bench.harness.calibrate.setup import FULL, QUICK, Setup, measure_all

            with self.alone() as has_waited:
                if has_waited:  # the other command may have measured the same
                    complete = ceilings.with_entries(self.load())
                setup = Setup(self._device, FULL if too_low else QUICK)
                parts = self._due(complete, wanted, mixes, too_low)
                for measured in measure_all(
                    parts, setup, lambda name: self._progress(f"calibrating: {name}")
                ):
                    complete = merged(complete, [part.ceiling for part in measured], too_low)
                self.save(complete)
                for reason in setup.missing:
                    self._note(f"not measured: {reason}")
        notes = [complete.note]
        if self._device.is_gpu:
            complete = complete.with_entries(explaining(complete))
            notes += peak_sentences(complete, wanted)
        used = [e for e in complete.entries if e.unit != "FLOP/s" or e.name in wanted]
        disturbed = [entry.title for entry in used if entry.disturbed]
        if disturbed:
            notes.append(
                "may be too low, because something disturbed the calibration: "
                f"{', '.join(disturbed)}; run `python -m bench calibrate` on a quiet machine"
            )
        return replace(complete, note="; ".join(filter(None, notes)) or None)

    def _due(
        self,
        known: Machine,
        dtypes: Iterable[str],
        mixes: Collection[str],
        again: Collection[Ceiling],
    ) -> list[tuple[str, Part]]:
        """Return the parts to measure: unknown ceilings and those to measure `again`.

        Rows on a GPU need its datasheet and the measured bandwidths, no measured matmul.
        """
        due_mixes = []
        for mix in MIXES:
            ceiling = known.fastest("bandwidth", [mix])
            if ceiling in again or (ceiling is None and mix in mixes):
                due_mixes.append(mix)
        unknown: list[str] = []
        if not self._device.is_gpu:
            unknown = [dtype for dtype in dtypes if known.peak(dtype) in (None, *again)]
        needs_launch = known.fastest("launch") is None
        needs_cache = known.fastest("cache-bandwidth") is None and not self._device.cache_is_assumed
        if not (needs_launch or due_mixes or unknown or needs_cache):
            return []
        from bench.harness.calibrate.peaks import matmul_op

        matmuls = [dtype for dtype in unknown if dtype in matmul_op().dtypes]
        return parts_of(needs_launch, due_mixes, matmuls, (), needs_cache)

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Let one command at a time measure the ceilings of this machine; yield whether it had to
        wait.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = self.path.with_suffix(".lock").open("a")
        except OSError:  # nothing can be saved there
            yield False
            return
        with file:
            has_waited = False
            try:
                lock_file(file.fileno())
            except BlockingIOError:
                self._note("waiting for another command that measures the ceilings of this machine")
                lock_file(file.fileno(), waits=True)
                has_waited = True
            yield has_waited
