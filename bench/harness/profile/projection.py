"""`bench profile --on h100-sxm`: the least time of a step on GPUs that are not here. Nothing is
measured.

The step runs on torch's meta device, so a model needs no memory. The least time of an operation is
the longer of FLOPs over the peak and bytes over the memory bandwidth (Williams et al., 2009), one
kernel after the other: a real step takes longer. Launches, the host and transfers between GPUs are
left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from msgspec import structs
from torch.overrides import TorchFunctionMode

from bench.harness.cli.arguments import UsageError
from bench.harness.profile.operation import CountedStep, fusions_of
from bench.harness.profile.records import product_dtypes, work_records
from bench.harness.profile.step import ProfiledStep, account
from bench.harness.profile.target import Target
from results.record import Record
from results.show.grid import Column, Table, html_of, print_grid, print_lines, rows_of
from results.show.profile import fusion_text, moved_bytes, op_of
from results.show.units import ABSENT, duration, number, quantity
from results.store.runfile import StoreError, load_run
from results.store.runs import find_run
from roofline.gpu_table import UnknownGpuError, find_gpu
from roofline.machine import Machine, machine_of
from roofline.model import bound, intensity, limits_s

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

CPU_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
"""The operation that stands for the attention of one kernel, see `FusedAttention`."""

MAX_CHAINS = 5
"""Chains that are printed."""

LOWER_BOUND = "least times at the roofs of each machine, not measured: a real step takes longer"


class Projected:
    """A step on one machine."""

    def __init__(self, records: Sequence[Record], machine: Machine) -> None:
        limits = [limits_s(record, machine) for record in records]
        self.machine = machine
        self.least_s = [max(each[:2]) if each else None for each in limits]
        """Of each row, all its calls together; None if the machine has no peak for its dtype or no
        rule counts it.
        """
        self.bounds = [
            bound(each[0], each[1], None) if each and max(each[:2]) else None for each in limits
        ]
        self.total_s = sum(filter(None, self.least_s))

    def seconds(self, moved_bytes: int) -> float:
        """Return the time that bytes take at the memory roof."""
        bandwidth = self.machine.bandwidth()
        return moved_bytes / bandwidth.value if bandwidth else 0.0


class Projection:
    """A step on machines that are not here; it prints as the table of `bench profile --on`."""

    def __init__(self, step: CountedStep, machines: Sequence[Machine]) -> None:
        self.name = step.name
        self.mode = step.mode
        self.records = step.records
        self.fusions = step.fusions
        self.machines = [Projected(self.records, machine) for machine in machines]

    def fused_s(self, on: Projected) -> float:
        """Return the least time of the step with all chains fused."""
        return on.total_s - on.seconds(sum(fusion.saved_bytes for fusion in self.fusions))

    @cached_property
    def order(self) -> list[int]:
        """Indices of the rows, the longest on the first machine first."""
        least_s = self.machines[0].least_s
        return sorted(range(len(self.records)), key=lambda row: -(least_s[row] or 0.0))

    def rows(self) -> list[dict[str, Any]]:
        """Return a row of plain values for each row and machine, with times in seconds."""
        rows = []
        for on in self.machines:
            for row in self.order:
                record = self.records[row]
                operation = op_of(record)
                least_s = on.least_s[row]
                rows.append(
                    {
                        "machine": on.machine.slug,
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
                        "intensity": _intensity(record),
                        "bound": on.bounds[row],
                        "least_s": least_s,
                        "share": None if least_s is None else least_s / (on.total_s or 1.0),
                        "flags": list(record.flags),
                    }
                )
        return rows

    def document(self) -> dict[str, Any]:
        """Return what `--format json` prints."""
        return {
            "name": self.name,
            "mode": self.mode,
            "note": LOWER_BOUND,
            "machines": [
                {
                    "slug": on.machine.slug,
                    "name": on.machine.name,
                    "source": self._roofs(on.machine),
                    "least_s": on.total_s,
                    "fused_s": self.fused_s(on),
                }
                for on in self.machines
            ],
            "fusing": [
                structs.asdict(fusion)
                | {
                    "saved_s": {
                        on.machine.slug: on.seconds(fusion.saved_bytes) for on in self.machines
                    }
                }
                for fusion in self.fusions
            ],
            "rows": self.rows(),
        }

    def to_dataframe(self) -> pd.DataFrame:
        """Return the rows as a frame, with the keys of `--format json`."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def table(self, top: int = 20) -> Table:
        columns = self._columns(top)
        return Table(
            rows=self.rows,
            shown=lambda: rows_of(columns),
            document=self.document,
            draw=partial(self._draw, columns, top),
            notes=lambda: "\n" + "\n".join(["", *self.sentences()]) + "\n",
        )

    def sentences(self) -> list[str]:
        """Return what the step takes on each machine, and what fusing would save."""
        lines = []
        for on in self.machines:
            lines.append(
                f"{on.machine.name}: at least {duration(on.total_s)} a step; "
                f"{self._roofs(on.machine)}"
            )
            if missing := sum(least_s is None for least_s in on.least_s):
                lines.append(
                    f"  without {missing} rows that have no peak or no rule for their work"
                )
        fused = " or ".join(duration(self.fused_s(on)) for on in self.machines)
        if self.fusions:
            lines.append(f"Fused like torch.compile does, at least {fused}; what saves most:")
        for fusion in self.fusions[:MAX_CHAINS]:
            saved = (
                f"{duration(on.seconds(fusion.saved_bytes))} of {duration(on.total_s)}"
                for on in self.machines
            )
            lines.append(f"- {fusion_text(structs.asdict(fusion))}: {' or '.join(saved)}")
        return lines

    def _roofs(self, machine: Machine) -> str:
        roofs = [("", machine.bandwidth(), "B/s")]
        roofs += [
            (f"{dtype} peak ", machine.peak(dtype), "FLOP/s")
            for dtype in product_dtypes(self.records)
        ]
        return ", ".join(
            f"{name}{quantity(roof.value, unit)} {roof.kind}" for name, roof, unit in roofs if roof
        )

    def _columns(self, top: int) -> list[Column]:
        records = [self.records[row] for row in self.order[:top]]
        columns = [
            Column("op", [record.op for record in records]),
            Column("shapes", [record.case for record in records], goes_below=True),
            Column("count", [str(record.count) for record in records], "right", 3),
            Column("FLOPs", [quantity(record.flops) for record in records], "right", 2),
            Column("bytes", [quantity(moved_bytes(record)) for record in records], "right", 1),
            Column("FLOP/B", [number(_intensity(record), 3) for record in records], "right", 4),
        ]
        for on in self.machines:
            name = f" {on.machine.slug}" if len(self.machines) > 1 else ""
            rows = self.order[:top]
            shares = [(on.least_s[row] or 0.0) / (on.total_s or 1.0) for row in rows]
            columns += [
                Column(f"least time{name}", [duration(on.least_s[row]) for row in rows], "right"),
                Column("share", [f"{100 * share:.1f}%" for share in shares], "right"),
                Column("bound", [on.bounds[row] or ABSENT for row in rows]),
            ]
        return [
            *columns,
            Column("module", [op_of(record).module for record in records], goes_below=True),
        ]

    def _draw(self, columns: Sequence[Column], top: int, console: Console) -> None:
        flags = [", ".join(self.records[row].flags) for row in self.order[:top]]
        print_lines(console, f"{self.name}, {self.mode}: {LOWER_BOUND}", *self.sentences(), "")
        print_grid(console, columns, flags, "flags")
        if len(self.records) > top:
            print_lines(
                console,
                f"... and {len(self.records) - top} more; --top shows them, --format json has all",
            )

    def __repr__(self) -> str:
        return self.table().render("table")

    def _repr_html_(self) -> str:
        return html_of(partial(self._draw, self._columns(20), 20))


class FusedAttention(TorchFunctionMode):
    """Makes `scaled_dot_product_attention` one operation, as it is in the kernels of a GPU, without
    dropout.

    Torch would write the scores to memory on the meta device. Dropout costs no bytes of scores.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.nn.functional.scaled_dot_product_attention:
            return attention(*args, **kwargs)
        return func(*args, **kwargs)


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Return the attention of tensors (..., heads, tokens, width) by the operation of one
    kernel.
    """
    q, k, v = (x.reshape(-1, *x.shape[-3:]) for x in (query, key, value))
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out: torch.Tensor = flash(q, k, v, 0.0, is_causal, attn_mask=attn_mask, scale=scale)[0]
    return out.reshape(*query.shape[:-1], value.shape[-1])


def counted(make: Callable[[], Target], mode: str) -> CountedStep:
    """Return the work of a step without running it on values.

    Args:
        make: returns the target, with its tensors on the meta device.
        mode: `forward`, `backward` or `train`.

    Raises:
        UsageError: the step cannot run without values.
    """
    with FusedAttention():
        target = make()
        try:
            breakdown = account(ProfiledStep(target, mode))
        except UsageError as error:
            raise UsageError(
                f"{error} (--on runs the step on torch's meta device, without values)"
            ) from None
    for operation in breakdown.operations:
        operation.op = operation.op.replace(CPU_ATTENTION, "scaled_dot_product_attention")
    fusions = fusions_of(breakdown.operations)
    return CountedStep(target.name, mode, work_records(breakdown), fusions)


def machine_named(name: str) -> Machine:
    """Return the GPU of that name, or the machine of a saved run with its measured roofs."""
    try:
        return find_gpu(name)
    except UnknownGpuError as error:
        try:
            return machine_of(load_run(find_run(name)).environment)
        except StoreError:
            raise UsageError(str(error)) from None


def _intensity(record: Record) -> float | None:
    moved = moved_bytes(record)
    return intensity(record.flops, moved) if record.flops is not None and moved else None
