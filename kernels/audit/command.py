"""`python -m kernels audit` after its arguments are parsed. Imported late, because importing Triton is slow."""

import argparse
from collections.abc import Sequence

import triton

from kernels import launch, precompile
from kernels.audit import AuditError, catalog, limits, rows, user_kernel
from kernels.audit.table import AUDIT_COLUMNS, render
from results.show.terminal import print_out, say

OF_FILES = ("signature", "constexpr", "num_warps", "num_stages", "elements", "bytes")
"""Options of a kernel of the user's own."""
OF_SHIPPED = ("dtype", "version", "all")
"""Options of the shipped kernels."""


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
