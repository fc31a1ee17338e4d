"""The ceilings of this machine: from the datasheet for a GPU of the table, measured here for a CPU.

A CPU has no datasheet peak that torch could reach: its ceilings are the fastest copy, triad, read and write far beyond
the cache, and the fastest matmul of each dtype. The four bandwidths are measured on a GPU too. All are saved with the
identity of the machine, and measured again when that changes; on a CPU also when a row is above one.

Any command measures missing ceilings, with the effort of `--quick`; `python -m bench calibrate` measures more.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bench.harness.calibrate import bandwidth, matmul_peak
from bench.harness.calibrate.parts import parts_of
from bench.harness.calibrate.setup import FULL, QUICK, Effort, Part, Setup
from bench.harness.device import gpu_state
from bench.harness.device.device import Device
from bench.harness.device.stamp import installed_version
from bench.harness.device.telemetry import row_telemetry, snapshot
from bench.harness.measure.errors import one_line
from bench.harness.measure.flags import disturbance
from bench.harness.measure.measure_row import release
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

QUIET_LOOK_S = 0.3  # of work that shows whether the machine is quiet: longer than the shortest window of each counter
POLL_S = 0.2  # between two attempts to lock the file


def ceilings_of(device: Device, gpu_slug: str | None) -> Ceilings:
    """Return the ceilings that are known of a device without measuring; a slug None matches the driver's name.

    Raises:
        UnknownGpuError: the table has no such entry.
        ValueError: a GPU was named, but the device is a CPU.
    """
    if not device.is_gpu:
        if gpu_slug is not None:
            raise ValueError(f"--gpu {gpu_slug} does not fit: the device measured is a CPU; leave --gpu out")
        return Ceilings(device.slug, device.name)
    gpu, note = (find_gpu(gpu_slug), None) if gpu_slug else identify(device)
    return replace(gpu_ceilings(gpu), note=note)


def identify(device: Device) -> tuple[Gpu, str | None]:
    """Return the table's entry for a GPU, or one derived from the device's own properties, with a note."""
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


def _at_clock(ceilings: Ceilings, entry: Ceiling) -> float | None:
    """Return the datasheet's rate per clock at the SM clock of a measured peak, FLOP/s; None if it is not known."""
    at_clock = {"flops": clock_limited_peak_flops_per_s, "fma": clock_limited_vector_flops_per_s}.get(entry.quantity)
    if at_clock is None or entry.kind != "measured" or not entry.sm_clock_hz:
        return None
    gpu = load_gpus().get(ceilings.slug)
    return at_clock(gpu, entry.name, entry.sm_clock_hz) if gpu else None


def peak_sentences(ceilings: Ceilings, dtypes: Iterable[str]) -> list[str]:
    """Return how the datasheet's peak becomes the measured one, by a factor of the clock and one of software: a line
    for each dtype's matmul and for its fused multiply-adds, if all of it is known.
    """
    known = {(entry.kind, entry.quantity, entry.name): entry for entry in ceilings.entries}
    lines = []
    for dtype in dtypes:
        for quantity, title in (("flops", dtype), ("fma", f"{dtype} FMA")):
            entry, published = (known.get((kind, quantity, dtype)) for kind in ("measured", "datasheet"))
            limited = _at_clock(ceilings, entry) if entry else None
            if entry and entry.sm_clock_hz and published and limited:
                unit = "TOP/s" if dtype == "int8" else "TFLOP/s"
                by_clock, by_software = limited / published.value, entry.value / limited
                lines.append(
                    f"{title}: datasheet {published.value / 1e12:.4g} {unit} -> "
                    f"x clock {by_clock:.2f} ({entry.sm_clock_hz / 1e6:.0f} MHz) = {limited / 1e12:.4g} -> "
                    f"x software {by_software:.2f} -> measured {entry.value / 1e12:.4g} {unit}"
                )
    return lines


def explaining(ceilings: Ceilings) -> list[Ceiling]:
    """Return the peaks of each dtype that explain its measured one and judge nothing.

    `clock-limited` is the rate per clock at the SM clock of the fastest matmul; `power-limited` is what its long run
    sustained while the power limit held the clock down.
    """
    peaks = []
    for entry in ceilings.entries:
        limited, clock_hz = _at_clock(ceilings, entry), entry.sm_clock_hz
        clock = f"{clock_hz / 1e6:.0f} MHz" if clock_hz else None
        if limited and entry.quantity == "flops":
            source = f"SMs x rate of roofline/gpus/{ceilings.slug}.toml x {clock}"
            peaks.append(Ceiling("flops", entry.name, limited, "clock-limited", source, sm_clock_hz=clock_hz))
        elif entry.kind == "measured" and entry.quantity == "sustained" and entry.at_power_limit:
            power = f"{entry.power_w:.0f} W" if entry.power_w else None
            source = ", ".join(filter(None, (entry.source, "sustained at the power limit", power, clock)))
            peaks.append(replace(entry, quantity="flops", kind="power-limited", source=source))
    return peaks


def merged(known: Ceilings, found: Iterable[Ceiling], too_low: Collection[Ceiling] = ()) -> Ceilings:
    """Return the ceilings with new ones; a better ceiling is not replaced by a disturbed one, or if it was too low."""
    kept = {(e.quantity, e.name): e for e in known.entries if e.kind == "measured"}

    def is_better(new: Ceiling) -> bool:
        old = kept.get((new.quantity, new.name))
        if old is None or not (new.disturbed or old in too_low):
            return True
        return new.value < old.value if new.quantity == "launch" else new.value > old.value

    return known.with_entries(entry for entry in found if is_better(entry))


class MeasuredCeilings:
    """The measured ceilings of a device, in a file that is completed as more dtypes are needed."""

    def __init__(
        self, device: Device, directory: Path, note: Callable[[str], object], progress: Callable[[str], object]
    ) -> None:
        """Look for `directory/<device>/ceilings-<identity>.json`.

        `note` takes a line for the user, `progress` what is being measured at the moment.
        """
        self._device, self._note, self._progress = device, note, progress
        self._identity = identity(device)
        digest = hashlib.sha256(json.dumps(self._identity, sort_keys=True).encode()).hexdigest()[:12]
        self.path = directory / device.slug / f"ceilings-{digest}.json"
        self._could_save = True

    def load(self) -> tuple[Ceiling, ...]:
        """Return the saved ceilings of this machine; empty if the file is missing, damaged or another machine's."""
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
        """Save the measured entries; if they cannot be written, a note says so and the next run measures them again.

        The file is replaced only after all of the new one is written.
        """
        unfinished = self.path.with_suffix(f".{os.getpid()}.partial")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps(ceilings.to_dict() | {"identity": self._identity}, indent=1)
            unfinished.write_text(text, encoding="utf-8")
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
        too_low: Collection[Ceiling] = (),
    ) -> Ceilings:
        """Return `ceilings` with those of this machine; those missing are measured, and disturbed ones if it is quiet.

        Args:
            ceilings: known without measuring.
            dtypes: dtypes whose fastest matmul is needed.
            too_low: ceilings to measure again because a row is above them; the higher rate is kept.
        """
        wanted = list(dict.fromkeys(dtypes))
        due = partial(self._due, dtypes=wanted, too_low=too_low)
        found = ceilings.with_entries(self.load())
        is_disturbed = len(due(_undisturbed(found))) > len(due(found))
        usable = _undisturbed if is_disturbed and self._is_quiet() else _all
        if too_low:
            self._note(f"rows are above, so it is measured again: {', '.join(entry.title for entry in too_low)}")
        if due(usable(found)):
            with self.alone() as has_waited:
                if has_waited:  # for another command that may have measured the same
                    found = ceilings.with_entries(self.load())
                for name, part in due(usable(found)):
                    found = merged(found, self._measured(name, part, FULL if too_low else QUICK), too_low)
                self.save(found)
        is_gpu = self._device.is_gpu  # the table of GPUs explains nothing of a CPU
        notes = [found.note, *(peak_sentences(found, wanted) if is_gpu else ())]
        if disturbed := [e.title for e in found.entries if e.disturbed and e.judges(wanted)]:
            notes.append(
                f"Perhaps too low, because something else held the device back meanwhile: {', '.join(disturbed)}; "
                "when the machine is quiet: `python -m bench calibrate`"
            )
        explained = found.with_entries(explaining(found)) if is_gpu else found
        return replace(explained, note="; ".join(filter(None, notes)) or None)

    def _due(self, known: Ceilings, dtypes: Iterable[str], too_low: Collection[Ceiling]) -> list[tuple[str, Part]]:
        """Return the parts that any command needs and that are not known.

        A GPU is judged by its datasheet, and also by the bandwidths of the mixes of reads and writes.
        """
        mixes = [entry.name for entry in known.mixes() if entry in too_low] if known.mixes() else bandwidth.MIXES
        unknown = [] if self._device.is_gpu else [d for d in dtypes if known.peak(d) in (None, *too_low)]
        peaks = [d for d in unknown if d in matmul_peak.matmul().dtypes]
        needs_launch = known.launch_floor() is None
        return parts_of(needs_launch, mixes, peaks) if needs_launch or mixes or peaks else []

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

    def _measured(self, name: str, part: Part, effort: Effort) -> list[Ceiling]:
        """Return the ceilings of a part; without one some columns stay blank, and the measurements go on."""
        self._progress(f"calibrating: {name}")
        setup = Setup(self._device, effort)
        try:
            ceilings, reasons = [measured.ceiling for measured in part(setup)], setup.missing
        except (RuntimeError, MemoryError, CeilingError) as error:
            ceilings, reasons = [], [one_line(error)]
        finally:
            release(self._device)
        for reason in () if ceilings else reasons:
            self._note(f"the {name} of this machine is not known: {reason}")
        return ceilings

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Let one command at a time measure the ceilings of this machine; another waits, and names the process.

        Yields:
            Whether it had to wait.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = self.path.with_suffix(".lock").open("a+", encoding="utf-8", errors="replace")
        except OSError:  # nothing can be kept there, so nothing can be overwritten
            yield False
            return
        with file:
            has_waited = False
            while not _is_locked(file.fileno()):
                if not has_waited:
                    file.seek(0)
                    holder = file.read(20) or "of another command"
                    self._note(f"process {holder} measures the ceilings of this machine; waiting until it has finished")
                has_waited = True
                time.sleep(POLL_S)
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield has_waited


def _all(ceilings: Ceilings) -> Ceilings:
    return ceilings


def _undisturbed(ceilings: Ceilings) -> Ceilings:
    return Ceilings("", "", tuple(entry for entry in ceilings.entries if not entry.disturbed))


def _is_locked(descriptor: int) -> bool:
    try:
        lock_file(descriptor)
    except BlockingIOError:
        return False
    return True
