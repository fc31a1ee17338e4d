"""What `python -m kernels audit` does once its arguments are read; imported late, because Triton takes long."""

import argparse
from collections.abc import Sequence

import triton

from kernels import launch, workers
from kernels.audit import catalog, compiling, golden, limits, output, reading, rows, user_kernel, work
from kernels.audit.errors import AuditError
from kernels.launch import Variant
from results.show.terminal import print_out, say

OF_FILES = ("signature", "constexpr", "num_warps", "num_stages", "fp_fusion", "elements", "bytes")
"""Options of a kernel of the user's own."""
OF_SHIPPED = ("dtype", "version", "quick", "all", "odd_sizes", "check", "record")
"""Options of the shipped kernels."""
DEFAULT_WARPS, DEFAULT_STAGES = 4, 3  # as Triton's on NVIDIA GPUs


def run(args: argparse.Namespace) -> int:
    """Audit what was asked for and print it.

    Returns:
        0, or 1 where `--check` found that something got worse.

    Raises:
        AuditError: What the user can put right.
    """
    if launch.INTERPRETED:
        raise AuditError("TRITON_INTERPRET is set, and the interpreter compiles nothing; unset it for an audit")
    own = [name for name in args.names if ".py" in name or ":" in name]  # no shipped name has a colon
    _require_fitting(args, own)
    found = _own_kernel(own[0], args) if own else _shipped(args)
    _print(found, args)
    for row in found:
        if row.obstacle:
            say(f"{row.key}: does not launch: {row.obstacle}")
    if args.record:
        say(f"recorded {golden.record(found, _recorded_keys())} rows in {golden.FILE}")
    return _check(found) if args.check else 0


def _require_fitting(args: argparse.Namespace, own: Sequence[str]) -> None:
    """Refuse options that do not go with each other, or with what is audited."""
    for_shipped, for_files = ([name for name in names if getattr(args, name)] for names in (OF_SHIPPED, OF_FILES))
    if args.fp_fusion is False:
        for_files.append("fp_fusion")
    if own and (len(args.names) > 1 or for_shipped):
        raise AuditError(f"{own[0]} is audited alone, without other names and {', '.join(map(_option, OF_SHIPPED))}")
    if not own and for_files:
        option = _option(for_files[0])
        raise AuditError(
            f"{option} goes with a kernel of your own, path/to/file.py:kernel; shipped kernels have theirs"
        )
    for one, other in (("quick", "all"), ("check", "odd_sizes"), ("record", "odd_sizes")):
        if getattr(args, one) and getattr(args, other):
            raise AuditError(f"{_option(one)} and {_option(other)} exclude each other; give one of them")
    if args.sass and args.format != "table":
        raise AuditError(f"--sass prints machine code, which is no {args.format}; leave out --format or --sass")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _targets(args: argparse.Namespace, allowed: Sequence[int]) -> dict[int, str]:
    """Return the architectures asked for, each with the GPU that stands for it.

    Without `--arch` they are those of the GPUs asked for, and without these the shipped ones.
    """
    by_name = {f"sm_{arch}": arch for arch in allowed}
    gpus = {limits.gpu(slug).arch: slug for slug in args.gpu}
    for name in [*args.arch, *(f"sm_{arch}" for arch in gpus)]:
        if name not in by_name:
            raise AuditError(f"unknown architecture '{name}'; allowed are {', '.join(by_name)}")
    asked = [by_name[name] for name in args.arch] or list(gpus) or list(catalog.ARCHES)
    if len(gpus) < len(args.gpu) or not set(gpus) <= set(asked):
        raise AuditError(f"--gpu {','.join(args.gpu)}: give one GPU for each architecture of --arch")
    return {arch: gpus.get(arch, limits.DEFAULT_GPUS[arch]) for arch in asked}


def _shipped(args: argparse.Namespace) -> list[rows.AuditRow]:
    gpus = _targets(args, catalog.ARCHES)
    chosen = catalog.select(args.names, list(gpus), args.dtype, args.version)
    if args.quick or not (args.all or args.names or args.dtype or args.version):
        chosen = catalog.quick(chosen)
    return work.audit_all([work.Job(choice, gpus[choice.arch], not args.odd_sizes, args.sass) for choice in chosen])


def _own_kernel(name: str, args: argparse.Namespace) -> list[rows.AuditRow]:
    gpus = _targets(args, tuple(limits.MULTIPROCESSORS))
    kernel, module = user_kernel.load(name)
    source = user_kernel.source(kernel, module, args.signature or "", args.constexpr or "")
    options = {
        "num_warps": args.num_warps or DEFAULT_WARPS,
        "num_stages": args.num_stages or DEFAULT_STAGES,
        "enable_fp_fusion": args.fp_fusion is not False,
    }
    dtype = user_kernel.dtype(source)
    variant = Variant(kernel, {}, options, dtype=dtype, elements=args.elements or 0, bytes=args.bytes)
    found = []
    for arch, slug in gpus.items():
        with workers.told_if_slow(f"compiling {name} for sm_{arch}"):
            [binary] = reading.read_back([compiling.compile_ahead(kernel, source, arch, options)])
        found.append(rows.row(name, None, variant, binary, arch, limits.gpu(slug), args.sass))
    return found


def _print(found: Sequence[rows.AuditRow], args: argparse.Namespace) -> None:
    if args.sass:
        for row in found:
            what = "one pass of the hot loop" if row.hot_path == "loop" else "the hot path"
            print_out("\n".join([f"{row.key}: {what}, {row.hot_instructions} instructions", *row.listing]) + "\n\n")
        return
    environment = {"triton": triton.__version__, "ptxas": {row.arch: row.ptxas for row in found}}
    print_out(output.render([row.public() for row in found], args.format, output.AUDIT_COLUMNS, environment))
    if args.format == "table":
        versions = ", ".join(f"ptxas {version} for {arch}" for arch, version in environment["ptxas"].items())
        rows_found = f"{len(found)} row{'s' * (len(found) != 1)}"
        say(f"{rows_found}; Triton {triton.__version__}, {versions}; nothing here was run or timed")


def _recorded_keys() -> set[str]:
    """Return the keys of the rows that golden figures are kept of."""
    return {rows.key_of(choice) for choice in catalog.quick(catalog.choices())}


def _check(found: Sequence[rows.AuditRow]) -> int:
    recorded = golden.load()
    if not recorded.same_triton:
        say(
            f"recorded figures are of Triton {recorded.triton}, this is {triton.__version__}: registers and "
            "instructions are not compared; spills, widths and tensor-core instructions are"
        )
    worse = golden.compare(found, recorded)
    compared = [row for row in found if row.key in recorded.rows]
    forgotten = sorted({row.key for row in found} & _recorded_keys() - recorded.rows.keys())
    for line in worse:
        say(f"worse: {line}")
    for key in forgotten:
        say(f"not recorded: {key}")
    if len(found) > len(compared) + len(forgotten):
        say(f"{len(found) - len(compared) - len(forgotten)} rows are of variants that no figures are kept of")
    if worse or forgotten:
        return 1
    say(f"{len(compared)} rows are no worse than recorded")
    return 0
