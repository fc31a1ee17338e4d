"""`python -m kernels audit` after its arguments are parsed. Imported late, because importing Triton
is slow.
"""

import argparse
from collections.abc import Sequence

import triton

from kernels import launch, precompile
from kernels.audit import AuditError, OwnKernel, catalog, limits, rows, user_kernel
from kernels.audit.table import AUDIT_COLUMNS, render
from results.show.options import Names, given, parameters
from results.show.terminal import print_out, say

SHIPPED_KERNEL_OPTIONS = ("dtype", "version", "all")


def audit(args: argparse.Namespace) -> None:
    if launch.INTERPRETED:
        raise AuditError("TRITON_INTERPRET is set, but the interpreter does not compile; unset it")
    own = [name for name in args.names if ":" in name or name.endswith(".py")]
    invalid = [
        f"--{name.replace('_', '-')}"
        for name in (SHIPPED_KERNEL_OPTIONS if own else parameters(OwnKernel))
        if getattr(args, name)
    ]
    if own and (invalid or len(args.names) > 1):
        raise AuditError(
            f"with your own kernel {own[0]}, remove {', '.join(invalid) or 'other names'}"
        )
    if invalid:
        raise AuditError(f"{invalid[0]} requires your own kernel, path/to/file.py:kernel")
    if own:
        arches = _arches(args.arch, tuple(limits.MULTIPROCESSORS))
        kernel, module = user_kernel.load(own[0])
        variant, source = user_kernel.variant(kernel, module, given(OwnKernel, args))
        audited = []
        with precompile.report_if_slow(f"compiling {own[0]}"):
            for arch in arches:
                compiled = rows.compile_ahead(source, arch, variant.options)
                audited.append(rows.row(own[0], None, variant, compiled, arch))
    else:
        arches = _arches(args.arch, catalog.ARCHES)
        chosen = catalog.select(args.names, arches, args.dtype or (), args.version or ())
        is_whole = args.all or args.names or args.dtype or args.version
        audited = rows.audit_all(chosen if is_whole else catalog.quick(chosen))
    _print(audited, args.sass, args.format)
    for row in audited:
        if row["obstacle"]:
            say(
                f"{rows.key_of(row)}: cannot be launched: a program needs too much of: "
                f"{row['obstacle']}"
            )


def _arches(names: Names, allowed: Sequence[int]) -> list[int]:
    by_name = {f"sm_{arch}": arch for arch in allowed}
    for name in names or ():
        if name not in by_name:
            raise AuditError(f"unknown architecture '{name}' (choose from {', '.join(by_name)})")
    return [by_name[name] for name in names or ()] or list(catalog.ARCHES)


def _print(audited: Sequence[rows.Row], is_sass: bool, form: str) -> None:
    listings = [row.pop("listing") for row in audited]
    if is_sass:
        for row, listing in zip(audited, listings, strict=True):
            part = "one pass of the hot loop" if row["hot_path"] == "loop" else "the hot path"
            heading = f"{rows.key_of(row)}: {part}, {row['hot_instructions']} instructions"
            print_out("\n".join([heading, *listing]) + "\n\n")
        return
    environment = {
        "triton": triton.__version__,
        "ptxas": {row["arch"]: row["ptxas"] for row in audited},
    }
    print_out(render(audited, form, AUDIT_COLUMNS, environment))
    if form == "table":
        versions = ", ".join(
            f"ptxas {version} for {arch}" for arch, version in environment["ptxas"].items()
        )
        say(f"{len(audited)} rows; Triton {triton.__version__}, {versions}; compiled only, not run")
