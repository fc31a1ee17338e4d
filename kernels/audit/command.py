"""`python -m kernels audit` after its arguments are parsed. Imported late, because importing Triton
is slow.
"""

import argparse
from collections.abc import Sequence

import triton

from kernels import launch, precompile
from kernels.audit import AuditError, catalog, limits, rows, user_kernel
from kernels.audit.table import AUDIT_COLUMNS, render
from results.show.terminal import print_out, say

USER_KERNEL_OPTIONS = ("signature", "constexpr", "num_warps", "num_stages", "elements", "bytes")
SHIPPED_KERNEL_OPTIONS = ("dtype", "version", "all")


def audit(args: argparse.Namespace) -> None:
    if launch.INTERPRETED:
        raise AuditError("TRITON_INTERPRET is set, but the interpreter does not compile; unset it")
    own = [name for name in args.names if ":" in name or name.endswith(".py")]
    invalid = [
        f"--{name.replace('_', '-')}"
        for name in (SHIPPED_KERNEL_OPTIONS if own else USER_KERNEL_OPTIONS)
        if getattr(args, name)
    ]
    if own and (invalid or len(args.names) > 1):
        raise AuditError(
            f"with your own kernel {own[0]}, remove {', '.join(invalid) or 'other names'}"
        )
    if invalid:
        raise AuditError(f"{invalid[0]} requires your own kernel, path/to/file.py:kernel")
    audited = _own_kernel(own[0], args) if own else rows.audit_all(_selected(args))
    _print(audited, args)
    for row in audited:
        if row["obstacle"]:
            say(
                f"{rows.key_of(row)}: cannot be launched: a program needs too much of: "
                f"{row['obstacle']}"
            )


def _arches(args: argparse.Namespace, allowed: Sequence[int]) -> list[int]:
    by_name = {f"sm_{arch}": arch for arch in allowed}
    for name in args.arch:
        if name not in by_name:
            raise AuditError(f"unknown architecture '{name}' (choose from {', '.join(by_name)})")
    return [by_name[name] for name in args.arch] or list(catalog.ARCHES)


def _selected(args: argparse.Namespace) -> list[catalog.Choice]:
    chosen = catalog.select(args.names, _arches(args, catalog.ARCHES), args.dtype, args.version)
    return chosen if args.all or args.names or args.dtype or args.version else catalog.quick(chosen)


def _own_kernel(name: str, args: argparse.Namespace) -> list[rows.Row]:
    arches = _arches(args, tuple(limits.MULTIPROCESSORS))
    kernel, module = user_kernel.load(name)
    options = {
        "num_warps": args.num_warps or 4,
        "num_stages": args.num_stages or 3,
        "enable_fp_fusion": True,
    }
    variant, source = user_kernel.variant(
        kernel,
        module,
        args.signature or "",
        args.constexpr or "",
        options,
        args.elements or 0,
        args.bytes,
    )
    with precompile.report_if_slow(f"compiling {name}"):
        compiled = {arch: rows.compile_ahead(source, arch, options) for arch in arches}
        return [rows.row(name, None, variant, binary, arch) for arch, binary in compiled.items()]


def _print(audited: Sequence[rows.Row], args: argparse.Namespace) -> None:
    listings = [row.pop("listing") for row in audited]
    if args.sass:
        for row, listing in zip(audited, listings, strict=True):
            part = "one pass of the hot loop" if row["hot_path"] == "loop" else "the hot path"
            heading = f"{rows.key_of(row)}: {part}, {row['hot_instructions']} instructions"
            print_out("\n".join([heading, *listing]) + "\n\n")
        return
    environment = {
        "triton": triton.__version__,
        "ptxas": {row["arch"]: row["ptxas"] for row in audited},
    }
    print_out(render(audited, args.format, AUDIT_COLUMNS, environment))
    if args.format == "table":
        versions = ", ".join(
            f"ptxas {version} for {arch}" for arch, version in environment["ptxas"].items()
        )
        say(f"{len(audited)} rows; Triton {triton.__version__}, {versions}; compiled only, not run")
