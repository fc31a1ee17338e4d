"""`bench profile --on h100-sxm`: the least time of a step on GPUs that are not here. Nothing is
measured.

The step runs on fake tensors, which have shapes but neither memory nor values. The least time of an
operation is the longer of FLOPs over the peak and bytes over the memory bandwidth (Williams et al.,
2009), one kernel after the other: a real step takes longer. Launches, the host and transfers
between GPUs are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from msgspec import to_builtins

from bench.harness.cli.arguments import UsageError
from bench.harness.torch_private import FakeTensorMode, eager, prepared_for_fakes
from bench.profiling.fake import MAX_KNOWN, ONE_KERNEL, FakeFunctions, FakeResults
from bench.profiling.operation import CountedStep, fusions_of
from bench.profiling.records import product_dtypes, work_records
from bench.profiling.step import ProfiledStep, account
from bench.profiling.target import Target
from results.record import Fusion, Object, Record
from results.show.grid import (
    Cell,
    Table,
    html_of,
    print_cells,
    print_lines,
)
from results.show.profile import fusion_lines, op_of, work_cells
from results.show.units import ABSENT, duration, percent, quantity
from results.store.runfile import StoreError, load_run
from results.store.runs import EVERYTHING
from roofline.gpu_table import UnknownGpuError, find_gpu
from roofline.limits import ROOFS
from roofline.machine import Machine
from roofline.model import bound, intensity, limits_s

if TYPE_CHECKING:
    from rich.console import Console

LOWER_BOUND = "least times at the roofs of each machine, not measured: a real step takes longer"


class Projected:
    """A step on one machine."""

    def __init__(self, step: CountedStep, records: Sequence[Record], machine: Machine) -> None:
        self.name = machine.name
        self.slug = machine.slug
        self.bandwidth = machine.bandwidth()
        self.rows = [_row(record, machine) for record in records]
        """Plain values of each row, with the least seconds of all its calls together."""
        self.total_s = sum(row["least_s"] or 0.0 for row in self.rows)
        for row in self.rows:
            if row["least_s"] is not None:
                row["share"] = row["least_s"] / (self.total_s or 1.0)
        self.fused_s = self.total_s - sum(map(self.saved_s, step.fusions))
        """The least time of the step with all chains fused."""
        roofs = []
        if self.bandwidth:
            roofs.append(f"{quantity(self.bandwidth.value, 'B/s')} {self.bandwidth.kind}")
        for dtype in product_dtypes(step.records):
            peak = machine.peak(dtype)
            if peak:
                roofs.append(f"{dtype} peak {quantity(peak.value, 'FLOP/s')} {peak.kind}")
        self.roofs = ", ".join(roofs)

    def saved_s(self, fusion: Fusion) -> float:
        """Return the time that the saved bytes take at the memory roof."""
        return fusion.saved_bytes / self.bandwidth.value if self.bandwidth else 0.0


def _row(record: Record, machine: Machine) -> Object:
    operation = op_of(record)
    time_s = least_s(record, machine)
    limits = limits_s(record, machine, ROOFS)
    return {
        "machine": machine.slug,
        "op": record.op,
        "shapes": operation.shapes,
        "dtype": record.dtype,
        "module": operation.module,
        "phase": operation.phase,
        "count": record.count,
        "flops": record.flops,
        "bytes_read": record.bytes_read,
        "bytes_written": record.bytes_written,
        "matmul_flops": operation.matmul_flops,
        "intensity": intensity(record.flops or 0, record.moved_bytes or 0),
        "bound": bound(**limits) if limits and time_s else None,
        "least_s": time_s,
        "share": None,
        "flags": list(record.flags),
    }


def least_s(record: Record, machine: Machine) -> float | None:
    """Return the least seconds of a row; None if the machine has no peak for its dtype, or no rule
    counts it.
    """
    limits = limits_s(record, machine, ROOFS)
    return max(limits.values()) if limits else None


class Projection:
    """A step on machines that are not here; it prints as the table of `bench profile --on`."""

    def __init__(self, step: CountedStep, machines: Sequence[Machine]) -> None:
        self.step = step
        self.records = sorted(
            step.records, key=lambda record: -(least_s(record, machines[0]) or 0.0)
        )
        """The longest on the first machine first."""
        self.machines = [Projected(step, self.records, machine) for machine in machines]

    def rows(self) -> list[Object]:
        """Return a row of plain values for each row and machine, with times in seconds."""
        return list(chain.from_iterable(on.rows for on in self.machines))

    def document(self) -> Object:
        """Return what `--format json` prints."""
        fusing = []
        for fusion in self.step.fusions:
            saved_s = {on.slug: on.saved_s(fusion) for on in self.machines}
            fusing.append(to_builtins(fusion) | {"saved_s": saved_s})
        return {
            "name": self.step.name,
            "mode": self.step.mode,
            "note": LOWER_BOUND,
            "machines": [
                {
                    "slug": on.slug,
                    "name": on.name,
                    "source": on.roofs,
                    "least_s": on.total_s,
                    "fused_s": on.fused_s,
                }
                for on in self.machines
            ],
            "fusing": fusing,
            "assumed": self.step.assumed,
            "rows": self.rows(),
        }

    def table(self, top: int = 20) -> Table:
        return Table(
            rows=self.rows,
            cells=lambda: self._cells(None),
            document=self.document,
            draw=lambda console: self._draw(console, top),
            notes=lambda: "\n".join(["\n", *self.sentences(), ""]),
        )

    def sentences(self) -> list[str]:
        """Return what the step takes on each machine, and what fusing would save."""
        lines = []
        for on in self.machines:
            lines.append(f"{on.name}: at least {duration(on.total_s)} a step; {on.roofs}")
            missing = sum(row["least_s"] is None for row in on.rows)
            if missing:
                lines.append(
                    f"  without {missing} rows that have no peak or no rule for their work"
                )
        if self.step.assumed:
            lines.append(
                f"values are not known: {', '.join(self.step.assumed)} have the largest result, "
                f"conditions hold, and numbers that the host reads are 1"
            )
        for on in self.machines:
            if self.step.fusions and on.bandwidth:
                saved_s = on.total_s - on.fused_s
                lines.append(
                    f"{on.slug}: fusing these chains, as torch.compile does, would save "
                    f"{duration(saved_s)}, to at least {duration(on.fused_s)} a step:"
                )
                lines += fusion_lines(self.step.fusions, on.bandwidth.value)
        return lines

    def _cells(self, top: int | None) -> list[dict[str, Cell]]:
        shown = []
        for index, record in enumerate(self.records[:top]):
            flops_per_byte = self.machines[0].rows[index]["intensity"]
            cells = {
                "op": Cell(record.op),
                "shapes": Cell(record.case, leaves=6),
                "count": Cell(str(record.count), "right", leaves=7),
            }
            cells |= work_cells(record, flops_per_byte)
            for on in self.machines:
                row = on.rows[index]
                name = f" {on.slug}" if len(self.machines) > 1 else ""
                cells[f"least time{name}"] = Cell(duration(row["least_s"]), "right")
                cells[f"share{name}"] = Cell(percent(row["share"]), "right")
                cells[f"bound{name}"] = Cell(row["bound"] or ABSENT)
            cells["module"] = Cell(op_of(record).module, leaves=6)
            cells["flags"] = Cell(", ".join(record.flags))
            shown.append(cells)
        return shown

    def _draw(self, console: Console, top: int = 20) -> None:
        title = f"{self.step.name}, {self.step.mode}: {LOWER_BOUND}"
        print_lines(console, title, *self.sentences(), "")
        print_cells(console, self._cells(top), "flags")
        if len(self.records) > top:
            print_lines(
                console,
                f"... and {len(self.records) - top} more; --top shows them, --format json has all",
            )

    def __repr__(self) -> str:
        return self.table().render("table")

    def _repr_html_(self) -> str:
        return html_of(self._draw)


def counted(make: Callable[[FakeTensorMode], Target], mode: str) -> CountedStep:
    """Return the work of a step without running it on values.

    Args:
        make: returns the target, with fake tensors; it is called within the mode that it is given.
        mode: `forward`, `backward` or `train`.

    Raises:
        UsageError: the step cannot run without values.
    """
    with (
        eager(),
        prepared_for_fakes(MAX_KNOWN),
        FakeTensorMode(allow_non_fake_inputs=True) as fake,
        FakeResults() as results,
        FakeFunctions(),
    ):
        target = make(fake)
        try:
            breakdown = account(ProfiledStep(target, mode))
        except UsageError as error:
            raise UsageError(f"{error} (--on runs the step without values)") from None
    for operation in breakdown.operations:
        operation.op = operation.op.replace(ONE_KERNEL, "scaled_dot_product_attention")
    fusions = fusions_of(breakdown.operations)
    records = work_records(breakdown)
    return CountedStep(target.name, mode, records, fusions, list(results.assumed))


def machine_named(name: str) -> Machine:
    """Return the GPU of that name, or the machine of a saved run with its measured roofs."""
    try:
        return find_gpu(name)
    except UnknownGpuError as error:
        try:
            return load_run(EVERYTHING.find(name)).environment.machine
        except StoreError:
            raise UsageError(str(error)) from None
