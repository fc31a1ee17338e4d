"""What `python -m kernels audit` does once its arguments are read; imported late, because Triton takes long."""

import argparse
from collections.abc import Sequence

import triton

from kernels import launch
from kernels.audit import catalog, compiling, golden, limits, output, reading, rows, user_kernel, work
from kernels.audit.errors import AuditError


def run(args: argparse.Namespace) -> int:
    """Audit what was asked for and print it.

    Returns:
        0, or 1 where `--check` found that something got worse.

    Raises:
        AuditError: What the user can put right.
    """
    if launch.INTERPRETED:
        raise AuditError("TRITON_INTERPRET is set, and the interpreter compiles nothing; unset it for an audit")
    own = [name for name in args.names if ".py" in name]
    if own and (len(args.names) > 1 or args.check or args.record or args.dtype or args.version or args.quick):
        raise AuditError(
            f"{own[0]} is audited alone, without other names, --dtype, --version, --quick, --check and --record"
        )
    if not own and (args.signature or args.constexpr or args.elements or args.bytes):
        raise AuditError("--signature, --constexpr, --elements and --bytes go with a file, path/to/file.py:kernel")
    found = _own_kernel(own[0], args) if own else _shipped(args)
    _print(found, args)
    if args.record:
        golden.record(found)
        output.say(f"recorded {len(found)} rows in {golden.FILE}")
    return _check(found) if args.check else 0


def _arches(text: Sequence[str], gpus: Sequence[limits.Gpu], allowed: Sequence[int]) -> list[int]:
    """Return the architectures asked for; those of the GPUs asked for, or the shipped ones, where none are."""
    by_name = {f"sm_{arch}": arch for arch in allowed}
    for name in text:
        if name not in by_name:
            raise AuditError(f"unknown architecture '{name}'; allowed are {', '.join(by_name)}")
    if text:
        return list(dict.fromkeys(by_name[name] for name in text))
    for gpu in gpus:
        if gpu.arch not in allowed:
            raise AuditError(f"GPU '{gpu.slug}' is sm_{gpu.arch}; allowed are {', '.join(by_name)}")
    return [gpu.arch for gpu in gpus] or list(catalog.ARCHES)


def _gpus(args: argparse.Namespace) -> dict[int, str]:
    """Return the GPU that stands for each architecture."""
    return limits.DEFAULT_GPUS | {limits.gpu(slug).arch: slug for slug in args.gpu}


def _shipped(args: argparse.Namespace) -> list[rows.Row]:
    gpus = _gpus(args)
    arches = _arches(args.arch, [limits.gpu(slug) for slug in args.gpu], catalog.ARCHES)
    chosen = catalog.select(args.names, arches, args.dtype, args.version)
    chosen = catalog.quick(chosen) if args.quick else chosen
    jobs = [work.Job(choice, gpus[choice.arch], not args.odd_sizes, args.sass) for choice in chosen]
    return work.audit_all(jobs)


def _own_kernel(name: str, args: argparse.Namespace) -> list[rows.Row]:
    gpus = _gpus(args)
    arches = _arches(args.arch, [limits.gpu(slug) for slug in args.gpu], tuple(limits.MULTIPROCESSORS))
    kernel, module = user_kernel.load(name)
    source = user_kernel.source(kernel, module, args.signature or "", args.constexpr or "")
    options = {"num_warps": args.num_warps, "num_stages": args.num_stages, "enable_fp_fusion": args.fp_fusion}
    subject = rows.Subject(name, None, user_kernel.dtype(source), options, elements=args.elements, bytes=args.bytes)
    found = []
    for arch in arches:
        [binary] = reading.read_back([compiling.compile_ahead(kernel, source, arch, options)])
        found.append(rows.row(subject, binary, arch, limits.gpu(gpus[arch]), args.sass))
    return found


def _print(found: Sequence[rows.Row], args: argparse.Namespace) -> None:
    if args.sass:
        parts = [f"{row.key}: {_described(row)}\n" + "\n".join(row.listing) + "\n" for row in found]
        output.print_out("\n".join(parts))
        return
    environment = {"triton": triton.__version__, "ptxas": {row.arch: row.ptxas for row in found}}
    public = [row.public() for row in found]
    output.print_out(output.render(public, args.format, output.AUDIT_COLUMNS, environment))
    if args.format == "table":
        versions = ", ".join(f"ptxas {version} for {arch}" for arch, version in environment["ptxas"].items())
        output.say(f"{len(found)} rows; Triton {triton.__version__}, {versions}; nothing here was run or timed")


def _described(row: rows.Row) -> str:
    what = "one pass of the hot loop" if row.hot_path == "loop" else "the hot path"
    return f"{what}, {row.hot_instructions} instructions"


def _check(found: Sequence[rows.Row]) -> int:
    recorded = golden.load()
    result = golden.compare(found, recorded)
    if not recorded.same_triton:
        output.say(
            f"golden figures are of Triton {recorded.triton}, this is {triton.__version__}: registers and instructions "
            "are not compared; spills, widths and tensor-core instructions are"
        )
    for line in result.worse:
        output.say(f"worse: {line}")
    for key in result.missing:
        output.say(f"not recorded: {key}")
    for key in result.gone:
        output.say(f"recorded, but gone: {key}")
    if result.worse or result.missing:
        return 1
    output.say(f"{len(found)} rows are no worse than recorded")
    return 0
