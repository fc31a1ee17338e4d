"""The commands `list` and `audit` once their arguments are read; imported late, because Triton takes long."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import triton

from kernels import launch, precompile
from kernels.audit import AuditError, catalog, limits, rows, user_kernel
from results.show.grid import Column, Table, print_grid
from results.show.terminal import print_out, say

OF_FILES = ("signature", "constexpr", "num_warps", "num_stages", "elements", "bytes")
"""Options of a kernel of the user's own."""
OF_SHIPPED = ("dtype", "version", "all")
"""Options of the shipped kernels."""

TITLES = {
    "shape_class": "shapes",
    "registers": "regs",
    "stack_bytes": "stack",
    "spill_bytes": "spills",
    "shared_bytes": "shared",
    "load_bits": "load",
    "store_bits": "store",
    "instructions": "inst",
    "instructions_per_element": "inst/elem",
    "issue_budget_instructions_per_element": "budget",
    "double_precision": "fp64",
}
"""What a column is called in the table, where its key is long."""

AUDIT_COLUMNS = (
    *("kernel", "version", "arch", "dtype", "part", "shape_class", "registers", "stack_bytes", "spill_bytes"),
    *("shared_bytes", "occupancy", "load_bits", "store_bits", "mma", "instructions", "instructions_per_element"),
    *("issue_budget_instructions_per_element", "double_precision", "bound"),
)
LEAVING = (
    *("double_precision", "issue_budget_instructions_per_element", "stack_bytes", "shared_bytes", "instructions"),
    *("store_bits", "part", "mma", "load_bits", "shape_class"),
)
"""Which columns a narrow terminal does without, in this order."""
GOING_BELOW = ("dtypes", "ops")
"""Which columns join the note below their row, in this order."""
NOTE = "change"
"""The column that stands below its row where it has no room."""


def show_versions(args: argparse.Namespace) -> None:
    found = catalog.by_version() if args.format in ("table", "md") else catalog.listing()
    print_out(render(found, args.format, tuple(found[0]), {}))


def audit(args: argparse.Namespace) -> None:
    if launch.INTERPRETED:
        raise AuditError("TRITON_INTERPRET is set, and the interpreter compiles nothing; unset it for an audit")
    own = [name for name in args.names if ":" in name or name.endswith(".py")]
    refused = [f"--{name.replace('_', '-')}" for name in (OF_SHIPPED if own else OF_FILES) if getattr(args, name)]
    if own and (refused or len(args.names) > 1):
        raise AuditError(f"{own[0]} is a kernel of your own; leave out other names and {', '.join(refused)}")
    if refused:
        raise AuditError(f"{refused[0]} is for a kernel of your own, path/to/file.py:kernel")
    found = _own_kernel(own[0], args) if own else rows.audit_all(_selected(args))
    _print(found, args)
    for row in found:
        if row["obstacle"]:
            say(f"{rows.key_of(row)}: does not launch: a program needs too much of: {row['obstacle']}")


def _arches(args: argparse.Namespace, allowed: Sequence[int]) -> list[int]:
    by_name = {f"sm_{arch}": arch for arch in allowed}
    for name in args.arch:
        if name not in by_name:
            raise AuditError(f"unknown architecture '{name}'; allowed are {', '.join(by_name)}")
    return [by_name[name] for name in args.arch] or list(catalog.ARCHES)


def _selected(args: argparse.Namespace) -> list[catalog.Choice]:
    chosen = catalog.select(args.names, _arches(args, catalog.ARCHES), args.dtype, args.version)
    return chosen if args.all or args.names or args.dtype or args.version else catalog.quick(chosen)


def _own_kernel(name: str, args: argparse.Namespace) -> list[rows.Row]:
    arches = _arches(args, tuple(limits.MULTIPROCESSORS))
    kernel, module = user_kernel.load(name)
    options = {"num_warps": args.num_warps or 4, "num_stages": args.num_stages or 3, "enable_fp_fusion": True}
    variant, source = user_kernel.variant(
        kernel, module, args.signature or "", args.constexpr or "", options, args.elements or 0, args.bytes
    )
    with precompile.said_if_slow(f"compiling {name}"):
        compiled = {arch: rows.compile_ahead(source, arch, options) for arch in arches}
        return [rows.row(name, None, variant, binary, arch) for arch, binary in compiled.items()]


def _print(found: Sequence[rows.Row], args: argparse.Namespace) -> None:
    listings = [row.pop("listing") for row in found]
    if args.sass:
        for row, listing in zip(found, listings, strict=True):
            what = "one pass of the hot loop" if row["hot_path"] == "loop" else "the hot path"
            heading = f"{rows.key_of(row)}: {what}, {row['hot_instructions']} instructions"
            print_out("\n".join([heading, *listing]) + "\n\n")
        return
    environment = {"triton": triton.__version__, "ptxas": {row["arch"]: row["ptxas"] for row in found}}
    print_out(render(found, args.format, AUDIT_COLUMNS, environment))
    if args.format == "table":
        versions = ", ".join(f"ptxas {version} for {arch}" for arch, version in environment["ptxas"].items())
        say(f"{len(found)} rows; Triton {triton.__version__}, {versions}; nothing here was run or timed")


def render(rows: Sequence[Mapping[str, Any]], how: str, columns: Sequence[str], environment: Mapping[str, Any]) -> str:
    """Return rows in one of `TABLE_FORMATS`; `columns` are those of the table and of Markdown, the others have all."""
    used = [name for name in columns if name == "occupancy" or any(row[name] not in (None, "", 0) for row in rows)]
    table = Table(
        rows=lambda: [{key: ",".join(v) if isinstance(v, list) else v for key, v in row.items()} for row in rows],
        columns=columns,
        titles=used,
        shown=lambda: [{TITLES.get(name, name): _shown(name, row[name]) for name in used} for row in rows],
        document=lambda: {"environment": dict(environment), "rows": list(rows)},
        draw=lambda console: _print_table(console, rows, used),
    )
    return table.render(how)


def _shown(name: str, value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, list):
        return ", ".join(value)
    if name == "occupancy":
        return f"{100 * value:.0f}%"
    if isinstance(value, float):
        return f"{value:.3g}" if value < 100 else f"{value:.0f}"
    return str(value)


def _print_table(console: Any, rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    columns = [
        Column(
            TITLES.get(name, name),
            [_shown(name, row[name]) for row in rows],
            "right" if all(isinstance(row[name], int | float | None) for row in rows) else "left",
            leaves=LEAVING.index(name) + 1 if name in LEAVING else 0,
            goes_below=GOING_BELOW.index(name) + 1 if name in GOING_BELOW else 0,
            heads=name == "kernel",
        )
        for name in names
        if name != NOTE
    ]
    print_grid(console, columns, [row[NOTE] for row in rows] if NOTE in names else (), NOTE)
