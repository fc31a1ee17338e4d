"""`bench profile --on h100-sxm`: the least time of a step on GPUs that are not here. Nothing is
measured.

The step runs on fake tensors, which have shapes but neither memory nor values. The least time of an
operation is the longer of FLOPs over the peak and bytes over the memory bandwidth (Williams et al.,
2009), one kernel after the other: a real step takes longer. Launches, the host and transfers
between GPUs are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from msgspec import to_builtins
from torch.overrides import TorchFunctionMode

from bench.harness.cli.arguments import UsageError
from bench.harness.torch_private import (
    FakeTensorMode,
    HigherOrderOperator,
    TorchDispatchMode,
    eager_flex_attention,
    eager_kernel,
    tree_map_only,
)
from bench.profiling.operation import CountedStep, fusions_of
from bench.profiling.records import product_dtypes, work_records
from bench.profiling.step import ProfiledStep, account
from bench.profiling.target import Target
from results.record import Fusion, Record
from results.show.grid import (
    Cell,
    Table,
    html_of,
    print_cells,
    print_lines,
    texts_of,
)
from results.show.profile import (
    fusion_lines,
    intensity_of,
    module_cell,
    name_cells,
    op_of,
    work_cells,
)
from results.show.units import ABSENT, duration, quantity
from results.store.runfile import StoreError, load_run
from results.store.runs import find_run
from roofline.gpu_table import UnknownGpuError, find_gpu
from roofline.machine import Machine
from roofline.model import bound, limits_s

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

ONE_KERNEL = "_scaled_dot_product_efficient_attention"
"""The operation that stands for the attention of one kernel, see `FusedAttention`."""

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


def _row(record: Record, machine: Machine) -> dict[str, Any]:
    operation = op_of(record)
    time_s = least_s(record, machine)
    limits = limits_s(record, machine.roofs)
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
        "intensity": intensity_of(record),
        "bound": bound(**limits) if limits and time_s else None,
        "least_s": time_s,
        "share": None,
        "flags": list(record.flags),
    }


def least_s(record: Record, machine: Machine) -> float | None:
    """Return the least seconds of a row; None if the machine has no peak for its dtype, or no rule
    counts it.
    """
    limits = limits_s(record, machine.roofs)
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

    def rows(self) -> list[dict[str, Any]]:
        """Return a row of plain values for each row and machine, with times in seconds."""
        return list(chain.from_iterable(on.rows for on in self.machines))

    def document(self) -> dict[str, Any]:
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
            "rows": self.rows(),
        }

    def to_dataframe(self) -> pd.DataFrame:
        """Return the rows as a frame, with the keys of `--format json`."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def table(self, top: int = 20) -> Table:
        return Table(
            rows=self.rows,
            shown=lambda: texts_of(self._cells(top)),
            document=self.document,
            draw=lambda console: self._draw(console, top),
            notes=lambda: "\n".join(["\n", *self.sentences(), ""]),
        )

    def sentences(self) -> list[str]:
        """Return what the step takes on each machine, and what fusing would save."""
        lines = []
        for on in self.machines:
            total = duration(on.total_s)
            lines.append(f"{on.name}: at least {total} a step; {on.roofs}")
            missing = sum(row["least_s"] is None for row in on.rows)
            if missing:
                lines.append(
                    f"  without {missing} rows that have no peak or no rule for their work"
                )
        for on in self.machines:
            if self.step.fusions and on.bandwidth:
                saved_s = on.total_s - on.fused_s
                lines.append(
                    f"{on.slug}: fusing these chains, as torch.compile does, would save "
                    f"{duration(saved_s)}, to at least {duration(on.fused_s)} a step:"
                )
                lines += fusion_lines(self.step.fusions, on.saved_s)
        return lines

    def _cells(self, top: int) -> list[dict[str, Cell]]:
        shown = []
        for index, record in enumerate(self.records[:top]):
            cells = name_cells(record) | work_cells(record)
            for on in self.machines:
                row = on.rows[index]
                name = f" {on.slug}" if len(self.machines) > 1 else ""
                share = f"{100 * (row['share'] or 0.0):.1f}%"
                cells[f"least time{name}"] = Cell(duration(row["least_s"]), "right")
                cells[f"share{name}"] = Cell(share, "right")
                cells[f"bound{name}"] = Cell(row["bound"] or ABSENT)
            cells["module"] = module_cell(record)
            shown.append(cells)
        return shown

    def _draw(self, console: Console, top: int = 20) -> None:
        title = f"{self.step.name}, {self.step.mode}: {LOWER_BOUND}"
        print_lines(console, title, *self.sentences(), "")
        rows = self._cells(top)
        for row, record in zip(rows, self.records, strict=False):
            row["flags"] = Cell(", ".join(record.flags))
        print_cells(console, rows, "flags")
        if len(self.records) > top:
            print_lines(
                console,
                f"... and {len(self.records) - top} more; --top shows them, --format json has all",
            )

    def __repr__(self) -> str:
        return self.table().render("table")

    def _repr_html_(self) -> str:
        return html_of(self._draw)


class FusedAttention(TorchFunctionMode):
    """Makes `scaled_dot_product_attention` one operation, as it is in the kernels of a GPU, without
    dropout.

    On a CPU torch would write the scores to memory. Dropout costs no bytes of scores.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            func = attention
        return func(*args, **(kwargs or {}))


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    **_: Any,
) -> torch.Tensor:
    """Return the attention of tensors (..., heads, tokens, width) by the operation of one
    kernel.
    """
    q, k, v = (x[(None,) * (4 - x.dim())].flatten(0, -4) for x in (query, key, value))
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention
    has_gradient = torch.is_grad_enabled() and query.requires_grad
    out: torch.Tensor = efficient(q, k, v, attn_mask, has_gradient, 0.0, is_causal, scale=scale)[0]
    return out.reshape(*query.shape[:-1], value.shape[-1])


class FakeResults(TorchDispatchMode):
    """Returns the results that `FakeTensorMode` has not: of the largest shape if it depends on
    values, of grouped matmuls in fp32, of gradients of attention with fewer heads of keys.
    """

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "cond":  # which branch runs depends on values
            return args[1](*args[3])
        if isinstance(func, HigherOrderOperator):
            return eager_kernel(func)(*args, **kwargs)
        if name == "_is_all_true.default":  # a check of a model, as in `torch._check_tensor_all`
            return torch.tensor(True)
        if name == "nonzero.default":
            return args[0].new_empty(args[0].numel(), args[0].dim(), dtype=torch.int64)
        if name == "masked_select.default":
            return args[0].new_empty(torch.broadcast_shapes(args[0].shape, args[1].shape)).flatten()
        if name == f"{ONE_KERNEL}_backward.default":
            return tree_map_only(torch.Tensor, torch.empty_like, args[1:5])
        if name == "_grouped_mm.default" and args[0].dtype == torch.float32:
            return func(args[0].bfloat16(), args[1].bfloat16(), *args[2:], **kwargs).float()
        if name == "index.Tensor":
            args = (args[0], list(chain.from_iterable(map(rows_of, args[1]))))
        return func(*args, **kwargs)


def rows_of(index: torch.Tensor | None) -> Iterator[torch.Tensor | None]:
    """Return the indices that a mask stands for if all of it is true; other indices unchanged."""
    if index is None or index.dtype not in (torch.bool, torch.uint8):
        yield index
    else:
        for _ in index.shape:
            yield index.new_empty(index.numel(), dtype=torch.int64)


def counted(make: Callable[[FakeTensorMode], Target], mode: str) -> CountedStep:
    """Return the work of a step without running it on values.

    Args:
        make: returns the target, with fake tensors; it is called within the mode that it is given.
        mode: `forward`, `backward` or `train`.

    Raises:
        UsageError: the step cannot run without values.
    """
    with (
        eager_flex_attention(),
        FakeTensorMode(allow_non_fake_inputs=True) as fake,
        FakeResults(),  # type: ignore[no-untyped-call]
        FusedAttention(),
    ):
        target = make(fake)
        try:
            breakdown = account(ProfiledStep(target, mode))
        except UsageError as error:
            raise UsageError(f"{error} (--on runs the step without values)") from None
    for operation in breakdown.operations:
        operation.op = operation.op.replace(ONE_KERNEL, "scaled_dot_product_attention")
    fusions = fusions_of(breakdown.operations)
    return CountedStep(target.name, mode, work_records(breakdown), fusions)


def machine_named(name: str) -> Machine:
    """Return the GPU of that name, or the machine of a saved run with its measured roofs."""
    try:
        return find_gpu(name)
    except UnknownGpuError as error:
        try:
            return load_run(find_run(name)).environment.machine
        except StoreError:
            raise UsageError(str(error)) from None
