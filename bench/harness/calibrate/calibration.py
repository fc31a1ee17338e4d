"""The ceilings of this machine: from the datasheet for a GPU of the table, measured here for a CPU.

A CPU has no datasheet peak that torch could reach, so its ceilings are what it does when it does nothing else: the
fastest copy, triad, read and write far beyond the cache, and the fastest matmul of each dtype. The four bandwidths are
measured on a GPU too, and stand beside its datasheet. All are kept beside the runs with the identity of the machine,
and measured anew when that changes, on a CPU also when a row is above one.

Any command measures the ceilings that are missing, with the effort of `--quick`. `python -m bench calibrate` measures
more of them, and keeps what it finds in the same file.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bench.harness.calibrate import bandwidth, matmul_peak, parts
from bench.harness.calibrate.setup import FULL, QUICK, CalibrationPart, CalibrationSetup, Note
from bench.harness.device import gpu_state
from bench.harness.device.device import Device
from bench.harness.device.stamp import installed_version
from bench.harness.device.telemetry import row_telemetry, snapshot
from bench.harness.measure.evidence import disturbance
from bench.harness.measure.runner import one_line, release
from bench.harness.op import Op
from results.store.runs import lock_file
from roofline.ceilings import Ceiling, CeilingError, Ceilings, gpu_ceilings
from roofline.hardware.gpu import (
    Gpu,
    clock_limited_peak_flops_per_s,
    clock_limited_vector_flops_per_s,
    derive_unknown_gpu,
    find_gpu,
    load_gpus,
    match_driver_name,
)

QUIET_LOOK_S = 0.3
"""Seconds of work whose disturbances show whether the machine is quiet: longer than the least window of each
counter."""

POLL_S = 0.2
"""How often it is checked whether another command's calibration has finished."""


def ceilings_of(device: Device, gpu_slug: str | None) -> Ceilings:
    """Return the ceilings that are known of a device without measuring.

    Args:
        device: the device under test.
        gpu_slug: entry of the GPU table to judge by, or None to match the driver's name.

    Raises:
        UnknownGpuError: the table has no such entry.
        ValueError: a GPU was named, but the device is a CPU.
    """
    if not device.is_gpu:
        if gpu_slug is not None:
            raise ValueError(f"--gpu {gpu_slug} does not fit: the device measured is a CPU; leave --gpu out")
        return Ceilings(device.slug, device.name)
    gpu, note = (find_gpu(gpu_slug), None) if gpu_slug else identify(device)
    known = gpu_ceilings(gpu)
    return Ceilings(known.slug, known.name, known.entries, note)


def identify(device: Device) -> tuple[Gpu, str | None]:
    """Return the table's entry for a GPU, or one derived from the device's own properties, with a note that says so."""
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
        "driver": gpu_state.driver_version() if device.is_gpu else None,
        "power_limit_w": gpu_state.modes(device.uuid)["power_limit_w"] if device.is_gpu else None,
        "onednn_isa": os.environ.get("ONEDNN_MAX_CPU_ISA"),
        "method": 3,
    }


def peak_sentences(ceilings: Ceilings, dtypes: Iterable[str]) -> list[str]:
    """Return how the datasheet's peak becomes the measured one, by a factor of the clock and one of software: a line
    for each dtype's matmul and for its fused multiply-adds, where all of it is known.
    """
    gpu = load_gpus().get(ceilings.slug)
    found = {(entry.quantity, entry.name): entry for entry in ceilings.entries if entry.kind == "measured"}
    lines = []
    for dtype in dtypes:
        for quantity in ("flops", "fma"):
            entry, is_vector = found.get((quantity, dtype)), quantity == "fma"
            if gpu is None or entry is None or not entry.sm_clock_hz:
                continue
            published = (gpu.vector_peaks_flops_per_s if is_vector else gpu.peaks_flops_per_s).get(dtype)
            at_clock = clock_limited_vector_flops_per_s if is_vector else clock_limited_peak_flops_per_s
            limited = at_clock(gpu, dtype, entry.sm_clock_hz)
            if published and limited:
                unit = "TOP/s" if dtype == "int8" else "TFLOP/s"
                lines.append(
                    f"{dtype}{' FMA' if is_vector else ''}: datasheet {published / 1e12:.4g} {unit} -> "
                    f"x clock {limited / published:.2f} ({entry.sm_clock_hz / 1e6:.0f} MHz) = {limited / 1e12:.4g} -> "
                    f"x software {entry.value / limited:.2f} -> measured {entry.value / 1e12:.4g} {unit}"
                )
    return lines


def explaining(ceilings: Ceilings) -> list[Ceiling]:
    """Return the peaks of each dtype that explain its measured one and judge nothing.

    `clock-limited` is the rate per clock at the SM clock of the fastest matmul; `power-limited` is what its long run
    sustained while the power limit held the clock down.
    """
    gpu = load_gpus().get(ceilings.slug)
    found = []
    for entry in ceilings.entries:
        if entry.kind == "measured" and entry.quantity == "flops" and entry.sm_clock_hz and gpu is not None:
            value = clock_limited_peak_flops_per_s(gpu, entry.name, entry.sm_clock_hz)
            source = f"SMs x rate of roofline/gpus/{gpu.slug}.toml x {entry.sm_clock_hz / 1e6:.0f} MHz"
            if value:
                clock = entry.sm_clock_hz
                found.append(Ceiling("flops", entry.name, value, "clock-limited", source, sm_clock_hz=clock))
        elif entry.kind == "measured" and entry.quantity == "sustained" and entry.at_power_limit:
            power = f", {entry.power_w:.0f} W" if entry.power_w else ""
            clock_text = f", {entry.sm_clock_hz / 1e6:.0f} MHz" if entry.sm_clock_hz else ""
            source = f"{entry.source}, sustained at the power limit{power}{clock_text}"
            found.append(replace(entry, quantity="flops", kind="power-limited", source=source))
    return found


def merged(known: Ceilings, found: Iterable[Ceiling], too_low: Collection[Ceiling] = ()) -> Ceilings:
    """Return the ceilings with what was found; neither a disturbed ceiling nor one of those too low replaces a better
    one.
    """
    kept = {(e.quantity, e.name): e for e in known.entries if e.kind == "measured"}

    def is_better(new: Ceiling) -> bool:
        old = kept.get((new.quantity, new.name))
        if old is None or not (new.disturbed or old in too_low):
            return True
        return new.value < old.value if new.quantity == "launch" else new.value > old.value

    return known.with_entries(entry for entry in found if is_better(entry))


def _undisturbed(ceilings: Ceilings) -> Ceilings:
    return Ceilings("", "", tuple(entry for entry in ceilings.entries if not entry.disturbed))


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
        """Return the ceilings kept for this machine; none where the file is missing, torn or another's."""
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
            if data["identity"] != self._identity:
                raise CeilingError("it belongs to another machine")
            entries = Ceilings.from_dict(data).entries
        except FileNotFoundError:
            return ()
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            self._note(f"{self.path}: not used and measured anew: {error or type(error).__name__}")
            return ()
        return tuple(entry for entry in entries if entry.kind == "measured")

    def save(self, ceilings: Ceilings) -> None:
        """Keep the measured entries; where they cannot be written, a note says so and the next run measures them again.

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

    def complete(
        self,
        ceilings: Ceilings,
        dtypes: Iterable[str],
        matmul: Op,
        again: bool = False,
        too_low: Collection[Ceiling] = (),
    ) -> Ceilings:
        """Return `ceilings` with what is measured on this machine.

        Only what is not kept yet is measured, and on a quiet machine what was disturbed when it was measured.

        Args:
            ceilings: what is known without measuring.
            dtypes: dtypes whose fastest matmul is needed.
            matmul: the op to find it with.
            again: measure all of it even if it is kept.
            too_low: measure these even if they are kept, because a row is above them, and keep the higher rate.
        """
        wanted = list(dict.fromkeys(dtypes))
        found = ceilings.with_entries(self.load())
        is_disturbed = len(self._due(_undisturbed(found), wanted, matmul)) > len(self._due(found, wanted, matmul))
        repeats = not again and is_disturbed and self._is_quiet()

        def due() -> list[Callable[[CalibrationSetup], CalibrationPart]]:
            known = Ceilings("", "") if again else _undisturbed(found) if repeats else found
            return self._due(known, wanted, matmul, too_low)

        if too_low:
            self._note(f"rows are above, so it is measured again: {', '.join(entry.title for entry in too_low)}")
        if due():
            with self.alone() as has_waited:
                if has_waited:  # for another command that may have measured the same
                    found = ceilings.with_entries(self.load())
                setup = CalibrationSetup(self._device, FULL if too_low else QUICK, matmul)
                for part in due():
                    found = merged(found, self._measured(part(setup)), too_low)
                self.save(found)
        notes = [found.note, *peak_sentences(found, wanted)]
        disturbed = [e.title for e in found.entries if e.disturbed and e.judges(wanted)]
        if disturbed:
            notes.append(
                f"Perhaps too low, because something else held the device back meanwhile: {', '.join(disturbed)}; "
                "when the machine is quiet: `python -m bench calibrate`"
            )
        shown = found.with_entries(explaining(found))
        return Ceilings(shown.slug, shown.name, shown.entries, "; ".join(note for note in notes if note) or None)

    def _due(
        self, found: Ceilings, wanted: Sequence[str], matmul: Op, too_low: Collection[Ceiling] = ()
    ) -> list[Callable[[CalibrationSetup], CalibrationPart]]:
        """Return what makes the parts that measure what any command needs and what is not known.

        A GPU is judged by its datasheet, and beside it by the bandwidth of the mixes of reads and writes.
        """
        due: list[Callable[[CalibrationSetup], CalibrationPart]] = []
        if found.launch_floor() is None:
            due.append(parts.launch)
        mixes = [entry.name for entry in found.mixes() if entry in too_low]
        if mixes or not found.mixes():
            due.append(partial(bandwidth.part, mixes=mixes or bandwidth.MIXES))
        if not self._device.is_gpu:
            peaks = [d for d in wanted if d in matmul.dtypes and (found.peak(d) is None or found.peak(d) in too_low)]
            due += [partial(matmul_peak.part, dtype=dtype) for dtype in peaks]
        return due

    def _is_quiet(self) -> bool:
        """Return whether nothing else holds the device back at this moment, by a short time of work."""
        import torch

        self._progress("calibrating: is the machine quiet now?")
        square = torch.ones(256, 256, device=self._device.torch_name)
        before, end = snapshot(self._device), time.perf_counter() + QUIET_LOOK_S
        while time.perf_counter() < end:
            torch.mm(square, square)
            self._device.synchronize()
        return disturbance(row_telemetry(before, snapshot(self._device)), self._device.is_gpu) is None

    def _measured(self, part: CalibrationPart) -> Sequence[Ceiling]:
        """Return the ceilings that a part finds; without one some columns stay blank, and the measurements go on."""
        self._progress(f"calibrating: {part.name}")
        try:
            outcome = part.measure(lambda line: None)
        except (RuntimeError, MemoryError, CeilingError) as error:
            self._note(f"the {part.name} of this machine is not known: {one_line(error)}")
            return ()
        finally:
            release(self._device)
        for line in () if outcome.ceilings else outcome.notes:
            self._note(f"the {part.name} of this machine is not known: {line}")
        return outcome.ceilings

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Let one command at a time measure the ceilings of this machine; another command waits, and says for which
        process.

        Yields:
            Whether it had to wait.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o666)
        except OSError:  # nothing can be kept there, so nothing can be overwritten
            yield False
            return
        try:
            has_waited = False
            while not _is_locked(descriptor):
                if not has_waited:
                    holder = os.pread(descriptor, 20, 0).decode(errors="replace") or "of another command"
                    self._note(f"process {holder} measures the ceilings of this machine; waiting until it has finished")
                has_waited = True
                time.sleep(POLL_S)
            os.truncate(descriptor, 0)
            os.lseek(descriptor, 0, os.SEEK_SET)
            os.write(descriptor, str(os.getpid()).encode())
            yield has_waited
        finally:
            os.close(descriptor)


def _is_locked(descriptor: int) -> bool:
    """Return whether this process has the lock of a file now."""
    try:
        lock_file(descriptor)
    except BlockingIOError:
        return False
    return True
