"""What `python -m kernels audit` does once its arguments are read; imported late, because Triton takes long."""

import argparse
from collections.abc import Iterable, Sequence

import triton

from kernels import launch, workers
from kernels.audit import catalog, compiling, golden, limits, output, reading, rows, user_kernel, work
from kernels.audit.errors import AuditError
from kernels.launch import Variant
from results.show.terminal import print_out, say

OF_FILES = ("signature", "constexpr", "num_warps", "num_stages", "fp_fusion", "elements", "bytes")
"""Options of a kernel of the user's own."""
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
    if args.record and not args.all and golden.is_of_another_triton():
        raise AuditError(
            f"the recorded figures are of another Triton than {triton.__version__}; record all of them: --all --record"
        )
    found = _own_kernel(own[0], args) if own else _shipped(args)
    _print(found, args)
    for row in found:
        if row.obstacle:
            say(f"{row.key}: does not launch: {row.obstacle}")
    if args.record:
        wanted = _keys(catalog.recorded(catalog.choices()))
        kept = [row for row in found if row.key in wanted]
        golden.record(kept, known=_keys(catalog.choices()))
        say(f"recorded {len(kept)} rows in {golden.FILE}")
    return _check(found) if args.check else 0


def _require_fitting(args: argparse.Namespace, own: Sequence[str]) -> None:
    """Refuse options that do not go with each other, or with what is audited."""
    for_shipped = args.check or args.record or args.dtype or args.version or args.quick or args.all or args.odd_sizes
    if own and (len(args.names) > 1 or for_shipped):
        raise AuditError(
            f"{own[0]} is audited alone, without other names, --dtype, --version, --quick, --all, --odd-sizes, --check "
            "and --record"
        )
    if args.quick and args.all:
        raise AuditError("--quick and --all exclude each other; give one of them")
    for_files = [f"--{name.replace('_', '-')}" for name in OF_FILES if getattr(args, name) is not None]
    if not own and for_files:
        raise AuditError(
            f"{for_files[0]} goes with a kernel of your own, path/to/file.py:kernel; shipped kernels have their own"
        )
    if args.odd_sizes and (args.check or args.record):
        option = "--check" if args.check else "--record"
        raise AuditError(f"{option} is about sizes as they are specialized by default; leave out --odd-sizes")
    if args.sass and args.format != "table":
        raise AuditError(f"--sass prints machine code, which is no {args.format}; leave out --format or --sass")


def _targets(args: argparse.Namespace, allowed: Sequence[int]) -> dict[int, str]:
    """Return the architectures asked for, each with the GPU that stands for it.

    Without `--arch` they are those of the GPUs asked for, and without these the shipped ones.
    """
    by_name = {f"sm_{arch}": arch for arch in allowed}
    for name in args.arch:
        if name not in by_name:
            raise AuditError(f"unknown architecture '{name}'; allowed are {', '.join(by_name)}")
    gpus: dict[int, str] = {}
    for slug in args.gpu:
        arch = limits.gpu(slug).arch
        if arch not in allowed:
            raise AuditError(f"GPU '{slug}' is sm_{arch}; allowed are {', '.join(by_name)}")
        if args.arch and f"sm_{arch}" not in args.arch:
            raise AuditError(f"GPU '{slug}' is sm_{arch}, --arch is {', '.join(args.arch)}; add sm_{arch} to --arch")
        if gpus.setdefault(arch, slug) != slug:
            raise AuditError(f"GPUs '{gpus[arch]}' and '{slug}' are both sm_{arch}; give one for each architecture")
    asked = [by_name[name] for name in args.arch] or list(gpus) or list(catalog.ARCHES)
    return {arch: gpus.get(arch, limits.DEFAULT_GPUS[arch]) for arch in asked}


def _shipped(args: argparse.Namespace) -> list[rows.AuditRow]:
    gpus = _targets(args, catalog.ARCHES)
    chosen = catalog.select(args.names, list(gpus), args.dtype, args.version)
    if args.quick or not (args.all or args.names or args.dtype or args.version):
        chosen = catalog.quick(chosen) or catalog.recorded(chosen)
    jobs = [work.Job(choice, gpus[choice.arch], not args.odd_sizes, args.sass) for choice in chosen]
    return work.audit_all(jobs)


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
        parts = [f"{row.key}: {_described(row)}\n" + "\n".join(row.listing) + "\n" for row in found]
        print_out("\n".join(parts))
        return
    environment = {"triton": triton.__version__, "ptxas": {row.arch: row.ptxas for row in found}}
    public = [row.public() for row in found]
    print_out(output.render(public, args.format, output.AUDIT_COLUMNS, environment))
    if args.format == "table":
        versions = ", ".join(f"ptxas {version} for {arch}" for arch, version in environment["ptxas"].items())
        say(
            f"{len(found)} row{'s' * (len(found) != 1)}; Triton {triton.__version__}, {versions}; "
            "nothing here was run or timed"
        )


def _described(row: rows.AuditRow) -> str:
    what = "one pass of the hot loop" if row.hot_path == "loop" else "the hot path"
    return f"{what}, {row.hot_instructions} instructions"


def _keys(choices: Iterable[catalog.Choice]) -> set[str]:
    """Return the keys that the rows of variants have."""
    return {rows.key_of(choice) for choice in choices}


def _check(found: Sequence[rows.AuditRow]) -> int:
    recorded = golden.load()
    result = golden.compare(found, recorded, _keys(catalog.choices()))
    expected = _keys(catalog.recorded(catalog.choices()))
    if not recorded.same_triton:
        say(
            f"recorded figures are of Triton {recorded.triton}, this is {triton.__version__}: registers and "
            "instructions are not compared; spills, widths and tensor-core instructions are"
        )
    forgotten = [key for key in result.missing if key in expected]
    for line in result.worse:
        say(f"worse: {line}")
    for key in forgotten:
        say(f"not recorded: {key}")
    for key in result.gone:
        say(f"recorded, but gone: {key}")
    if len(result.missing) > len(forgotten):
        others = len(result.missing) - len(forgotten)
        say(f"{others} rows are of variants that no figures are kept of: fp16 and fp32 where there is bf16")
    if result.worse or forgotten:
        return 1
    say(f"{len(found) - len(result.missing)} rows are no worse than recorded")
    return 0
