"""The command of every op file: read the arguments, find what is wrong with them, plan the rows."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from bench import SIGNALS, leave, leave_when_interrupted
from bench.harness.cli.arguments import UsageError, build_parser, chosen_ops, make_cases
from bench.harness.cli.signature import print_signatures
from bench.harness.op import Case, Op, Option
from bench.harness.op_file import command_of, family_of, is_own, options_of
from results.show.terminal import INTERRUPTED, NO_DEVICE, USAGE, OutputError, busy, prepare_streams, say

if TYPE_CHECKING:
    from bench.harness.device.device import Device
    from bench.harness.run import Run


def main(
    file: str,
    doc: str | None,
    examples: Sequence[tuple[str, str]],
    ops: Sequence[Op],
    options: Sequence[Option] = (),
    argv: Sequence[str] | None = None,
) -> int:
    """Run the command of one family and return its exit code.

    Args:
        file: the op file; its stem names the family.
        doc: the op file's docstring, shown by `--help`.
        examples: argument lines and what they do.
        ops: the family's operations.
        options: command-line options that only this family has.
        argv: arguments, by default those of the process.
    """
    family = family_of(file)
    try:
        parser = build_parser(family, doc or "", examples, ops, options)
    except argparse.ArgumentError as error:
        message = f"{Path(file).name}: {error}; every command has that option, give the family's another name"
        return _fail(command_of(family), message, USAGE)

    def body(args: argparse.Namespace) -> int:
        if args.signature:
            own_ops = [op for place, op in chosen_ops(args.op, {family: ops}) if place == family]
            return print_signatures(family, own_ops, len(ops) == 1, args.dtype, options)
        return measured(family, args, ops, options, argv).conclude()

    return guarded(parser, body, argv)


def guarded(
    parser: argparse.ArgumentParser, body: Callable[[argparse.Namespace], int], argv: Sequence[str] | None
) -> int:
    """Run a command and return its exit code; every error of a user takes one line, in all commands."""
    if argv is None:
        leave_when_interrupted()
    prepare_streams()
    args = parser.parse_args(argv)
    prog = getattr(args, "prog", parser.prog)
    from bench.harness.device.device import NoDeviceError
    from results.store.runfile import StoreError
    from roofline.picture.scene import PlotError

    try:
        return body(args)
    except (UsageError, OutputError, StoreError, PlotError) as error:
        return _fail(prog, str(error), USAGE)
    except NoDeviceError as error:
        return _fail(prog, str(error), NO_DEVICE)
    except KeyboardInterrupt:
        return _fail(prog, "interrupted", INTERRUPTED)
    finally:
        if argv is None:  # libraries clean up undisturbed
            handle_signals((leave, signal.default_int_handler), signal.SIG_IGN)


def _fail(prog: str, message: str, code: int) -> int:
    say(f"{prog}: error: {' '.join(message.split())}")
    return code


def measured(
    family: str,
    args: argparse.Namespace,
    ops: Sequence[Op],
    options: Sequence[Option],
    argv: Sequence[str] | None = None,
) -> Run:
    """Measure what the arguments ask for, and return the run, not shown yet."""
    from bench.harness.loop import measure_run
    from bench.harness.measure import rows as planning
    from bench.harness.providers import registry
    from bench.harness.run import Run

    chosen, own = chosen_ops(args.op, {family: ops}), {family: options}
    is_usual = args.baseline is None and not args.provider
    names = {place: [] if is_usual else chosen_providers(args, place) for place, _ in chosen}
    cases = make_all_cases(args, chosen, "cpu", own)  # what is wrong is found before torch is loaded
    check_places(args)
    device = device_of(args)
    if device.is_gpu:  # which has default shapes of its own
        cases = make_all_cases(args, chosen, device.type, own)
    settings = planning.Settings(args.fill, args.cache, args.budget, args.seed, args.tolerance, args.kernels)
    rows = []
    for place, op, case in cases:
        usual = {} if names[place] else registry.default_providers(place, device, case.dtype)
        rows += planning.plan([(op, case)], names[place] or list(usual), device, settings, usual, place)
    command = family if is_own(family) else f"bench.{family}"
    run = Run(args, command, Path(family).stem, device, settings.to_dict(), argv)
    measure_run(run, rows)
    return run


def make_all_cases(
    args: argparse.Namespace,
    chosen: Sequence[tuple[str, Op]],
    device_type: str,
    own_options: Mapping[str, Sequence[Option]] = MappingProxyType({}),
) -> list[tuple[str, Op, Case]]:
    """Return the cases of ops of several families, each with the options of its own family.

    `own_options` holds those of the family whose command this is, which need not be imported for them once more.
    """
    cases = []
    for family, op in chosen:
        options = own_options[family] if family in own_options else options_of(family)
        if getattr(args, "size", None) is not None and not op.is_sized:
            raise UsageError(f"{op.name} is not asked for by --size; use --shape")
        own = {option.name: getattr(args, option.name, None) for option in options}
        size = getattr(args, "size", None)  # which a family whose ops take no bytes lacks
        found = make_cases(op, options, device_type, args.dtype, args.shape, size, own)
        cases += [(family, op, case) for case in found]
    return cases


def device_of(args: argparse.Namespace) -> Device:
    """Return the device asked for, a CPU with the threads asked for."""
    from bench.harness.device import device

    with busy("loading torch", args.quiet or "torch" in sys.modules):
        found = device.detect(args.device)
    handle_signals((leave,), signal.default_int_handler)
    if args.threads is None:
        return found
    if found.is_gpu:
        raise UsageError(
            f"--threads {args.threads} does not fit: the device measured is a GPU; add --device cpu or leave it out"
        )
    return device.cpu_device(args.threads)


def handle_signals(known: tuple[Any, ...], handler: Any) -> None:
    """Give Ctrl-C and SIGTERM another handler if theirs is a known one.

    A batch system that ends a job sends SIGTERM: while rows are measured both raise `KeyboardInterrupt`, and the
    finished rows count.
    """
    for number in SIGNALS:
        if signal.getsignal(number) in known:
            signal.signal(number, handler)


def check_places(args: argparse.Namespace) -> None:
    """Refuse, before measuring, an unknown GPU name and places that cannot be written, stdout among them."""
    from results.show.picture import check_picture
    from results.store.runfile import runs_directory
    from roofline.gpu_table import UnknownGpuError, find_gpu

    if sys.stdout is None:
        raise UsageError("stdout is closed; redirect it, to /dev/null for instance")
    if args.no_save and args.output is not None:
        raise UsageError("--no-save and --output are mutually exclusive")
    if args.gpu is not None:
        try:
            find_gpu(args.gpu)
        except UnknownGpuError as error:
            raise UsageError(str(error)) from None
    try:
        if isinstance(args.plot, str):
            raise UsageError(f"--plot {args.plot} is written as a folder; name a picture in it")
        if args.plot is not None:
            check_picture(args.plot)
            check_output(args.plot, replaces=True)
        if not args.no_save:
            check_output(args.output or runs_directory())
    except OSError as error:
        raise UsageError(f"cannot write {error.filename}: {error.strerror}") from None


def check_output(path: Path | str, replaces: bool = False) -> None:
    """Refuse a path that could not be written; its writer would find it too, but after everything was measured.

    A file is really made in its folder, or the nearest one above that exists, because permissions tell neither of
    read-only nor of virtual file systems.

    Args:
        path: a file, or a folder that exists; text is a folder to be made.
        replaces: whether a file that holds something may be written anew.
    """
    is_folder, path = isinstance(path, str), Path(path)
    if path.is_file() and path.stat().st_size and not (replaces or is_folder):
        raise UsageError(f"{path} exists and is not empty; no run is overwritten: choose another --output")
    folder = (path if is_folder or path.is_dir() else path.parent).absolute()
    nearest = next(place for place in (folder, *folder.parents) if place.exists())
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        raise UsageError(f"cannot write {path}: {nearest}: {error.strerror}; choose another place") from None


def chosen_providers(args: argparse.Namespace, family: str) -> list[str]:
    """Return the providers asked for, the baseline first."""
    baseline = [] if args.baseline is None else [args.baseline]
    names = list(dict.fromkeys(baseline + (args.provider or [])))
    check_providers(names, [family])
    if baseline and names == baseline:
        raise UsageError(f"--baseline {args.baseline} needs other providers to set against it; name them: --provider")
    return names


def check_providers(names: Iterable[str], families: Iterable[str]) -> None:
    """Refuse providers that a family does not have."""
    from bench.harness.providers.registry import UnknownProviderError, check_names, is_user_kernel
    from bench.harness.providers.user_kernel import find

    unique = list(dict.fromkeys(names))
    try:
        for family in dict.fromkeys(families):
            check_names(unique, family)
    except UnknownProviderError as error:
        raise UsageError(str(error)) from None
    problems = [find(name).problem if is_user_kernel(name) else None for name in unique]
    if problems and all(problems):
        raise UsageError(f"provider '{unique[0]}': {problems[0]}")
