"""The rows of a rank, measured in a child process: launch floor, copy, matmul, FMA and host link of
its device.

Every device runs the same configuration, not its fastest, so that times can be compared. All copies
are of fp32; the FMAs are of fp32, and the matmul is of normally distributed numbers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from msgspec import structs

from bench.harness import clock
from bench.harness.calibrate import bandwidth, peaks
from bench.harness.calibrate.calibration import ceilings_of
from bench.harness.calibrate.setup import Candidate, Effort, NotMeasuredError, Rate, Setup
from bench.harness.device import gpu_state
from bench.harness.device.device import Device, cpu_device, detect, usable_cores
from bench.harness.measure.measure_row import measure_row, release
from bench.harness.measure.rows import is_out_of_memory, one_line, plan
from bench.harness.op import Case
from bench.harness.op_file import module_of, modules_sha256, options_of
from bench.harness.run import Run, stamp
from bench.harness.settings import Settings
from bench.harness.timing.protocol import LIMITS, announce
from bench.harness.worker import WorkerError
from bench.ranks.launcher import Peers, gpu_of, open_store
from results.record import Environment, Object, Rank, Record

PHASES = ("solo", "together")
OPS = ("launch", "copy", "matmul", "fma", "h2d", "d2h")
CPU_OPS = ("launch", "copy", "matmul", "h2d", "d2h")
LONG_OPS = ("copy", "matmul")
"""Operations that heat a device, so they run longer in the phase in which all devices work."""

GPU_EXTENT = 8192
CPU_EXTENT = 512
"""m, n and k of the matmul. Source: on a GPU that of gpu-burn and gpu-fryer; on a CPU see
`peaks.CPU_SHAPES`.
"""

HANG_S = 30.0
"""Time limit of a row besides its samples: to start a process, compile, and check results."""

CONNECT_S = 30.0
LINK_BYTES = 64 * 2**20
SOURCES = (__name__, "bench.harness.calibrate.bandwidth", "bench.harness.transfer")
"""Modules that define the rows which are no operations."""
MAX_SAMPLES = 200
"""Samples of a row are long enough that there are about this many."""


class Item(NamedTuple):
    """A row to measure."""

    phase: str
    """`solo`: no other rank of the node measures; `together`: all ranks measure."""
    op: str
    dtype: str
    seconds: float
    """Time of its samples."""

    @property
    def title(self) -> str:
        return f"{self.phase} {self.op}"

    def blank(self, reason: str, status: Any = "skipped") -> Record:
        """Return the record of a row that was not measured."""
        return Record(
            op=self.op,
            provider="torch",
            dtype=self.dtype,
            shape={"n": 1},
            case="1",
            options={"phase": self.phase},
            status=status,
            reason=reason,
        )


def items_of(phase: str, is_gpu: bool, dtypes: Sequence[str] | None, is_quick: bool) -> list[Item]:
    """Return the rows of a phase; `dtypes` are those of the matmul."""
    short_s, long_s = (1.0, 5.0) if is_quick else (3.0, 20.0)
    matmuls = dtypes or ["bf16" if is_gpu else "fp32"]
    ops = OPS if is_gpu else CPU_OPS
    items = []
    for op in ops:
        seconds = long_s if phase == "together" and op in LONG_OPS else short_s
        op_dtypes = matmuls if op == "matmul" else ["fp32"]
        items += [Item(phase, op, dtype, seconds) for dtype in op_dtypes]
    return items


class SameSetup(Setup):
    """Measures the first configuration, which is the same on all devices."""

    def fastest_of(self, candidates: Sequence[Candidate], slowest_call_s: float = 0.0) -> Rate:
        return self.timed(candidates[0], self.effort.confirming_s)


def detected(rank: Rank) -> Device:
    """Return the device of a rank: a GPU, or its share of the cores."""
    import torch

    announce()
    try:
        count = torch.cuda.device_count()
        if count:
            return detect(gpu_of(rank, count))
        allowed, quota = usable_cores()
        return cpu_device(
            max(1, int(min(len(allowed), quota or len(allowed))) // rank.local_world_size)
        )
    except Exception as error:
        raise WorkerError(one_line(error)) from None


def described(rank: Rank, device: Device, settings: Object, argv: Sequence[str]) -> Environment:
    """Return the first line of a rank's file; the state of the device is read before this process
    uses it.
    """
    announce()
    try:
        health = gpu_state.health(device.uuid)
        health["remote_cpus"] = bind(device)
        pci_bus_id = gpu_state.pci_bus_id(device.uuid)
        device.use()
        environment = stamp("bench.fleet", device, ceilings_of(device, None), settings, argv)
        return replace(
            environment, fleet=structs.replace(rank, pci_bus_id=pci_bus_id, health=health)
        )
    except Exception as error:
        raise WorkerError(one_line(error)) from None


def bind(device: Device) -> float | None:
    """Keep this process on the cores of the device's NUMA node; return the fraction of its cores
    that are elsewhere, None if unknown.
    """
    if not device.is_gpu:
        return None
    local = gpu_state.local_cpus(device.uuid)
    allowed = usable_cores().allowed
    if not local:
        return None
    if local & allowed:
        os.sched_setaffinity(0, local & allowed)
        return 0.0
    return 1.0


def met(peers: Peers, item: Item) -> bool:
    """Return whether all ranks are ready for a row."""
    until_s = time.monotonic() + HANG_S + item.seconds
    return peers.meet(item.title, lambda: time.monotonic() < until_s)


def measured(items: Sequence[Item], device: Device, rank: Rank) -> Iterator[Record]:
    """Yield the records of rows, up to an error after which this process cannot use the device.

    The ranks meet before each row of the phase in which they work together, until one is late.
    """
    device.use()
    bind(device)
    peers = Peers(rank, open_store(rank, CONNECT_S, is_parent=False))
    is_together = True
    for item in items:
        if item.phase == "together" and is_together:
            is_together = met(peers, item)
        try:
            record = MEASURES.get(item.op, measure_rate)(item, device)
        except NotMeasuredError as error:
            record = item.blank(str(error))
        except Exception as error:
            is_full = is_out_of_memory(error)
            record = (
                item.blank("out of memory") if is_full else item.blank(one_line(error), "failed")
            )
        options = record.options | {"phase": item.phase}
        yield replace(
            record,
            op=item.op,
            options=options,
            op_sha256=record.op_sha256 or modules_sha256(SOURCES),
        )
        if not release(device):
            return


def measure_rate(item: Item, device: Device) -> Record:
    """Return the record of a launch, a copy or FMAs."""
    setup = SameSetup(device, Effort(0.0, item.seconds), min_sample_s=item.seconds / MAX_SAMPLES)
    results = {
        "launch": lambda: bandwidth.launch(setup),
        "copy": lambda: bandwidth.bandwidth(setup, ("copy",)),
        "fma": lambda: peaks.fma(setup, item.dtype),
    }[item.op]()
    if not results:
        raise NotMeasuredError("; ".join(setup.missing))
    return results[0].record


def measure_matmul(item: Item, device: Device) -> Record:
    shape = dict.fromkeys("mnk", GPU_EXTENT if device.is_gpu else CPU_EXTENT)
    case = Case.of("matmul", item.dtype, shape, options_of("matmul"))
    [row] = plan(
        peaks.matmul_op(), case, ["torch"], device, Settings(fill="normal"), family="matmul"
    )
    usual = LIMITS[device.type]
    min_sample_s = max(usual.min_sample_s, item.seconds / MAX_SAMPLES)
    limits = replace(usual, min_time_s=item.seconds, cap_s=item.seconds, min_sample_s=min_sample_s)
    return measure_row(row, device, None, limits)


def measure_link(item: Item, device: Device) -> Record:
    from bench.harness.transfer import measure_copy

    memory = "pinned" if device.is_gpu else "pageable"
    transfer = "non-blocking" if device.is_gpu else "blocking"
    blank: Record = module_of("transfer").copy_record(item.op, device, LINK_BYTES, memory, transfer)
    if blank.reason:
        return blank
    run = Run(Settings(quiet=True), "bench.fleet", "fleet", device, ())
    run.deadline = clock.now() + item.seconds
    before = gpu_state.link_state(device.uuid)
    record = measure_copy(blank, run, 1)
    link = gpu_state.link_state(device.uuid)  # right after a copy, because an idle link slows down
    if None not in (link["pcie_replays"], before["pcie_replays"]):
        link["pcie_replays"] -= before["pcie_replays"]
    return replace(record, telemetry=record.telemetry | link)


MEASURES = {"matmul": measure_matmul, "h2d": measure_link, "d2h": measure_link}
