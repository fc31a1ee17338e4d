"""The command of every op file: parses and checks the arguments, and plans the rows."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import SIGNALS, leave, leave_when_interrupted
from bench.harness.cli.arguments import (
    Request,
    UsageError,
    build_parser,
    chosen_ops,
    make_cases,
)
from bench.harness.op import Case, Op, Option
from bench.harness.op_file import command_of, family_of, is_own
from bench.harness.settings import Argv, Settings
from results.show.options import given
from results.show.terminal import (
    INTERRUPTED,
    NO_DEVICE,
    OutputError,
    PlotError,
    busy,
    fail,
    install_command,
    prepare_streams,
)

if TYPE_CHECKING:
    from bench.harness.device.device import Device
    from bench.harness.run import Run


NO_TORCH = "this command needs torch: {command}, or install your own build of torch 2.11 or newer"


def main(
    file: str,
    doc: str | None,
    examples: Sequence[tuple[str, str]],
    ops: Sequence[Op],
    options: Sequence[Option] = (),
    argv: Argv = None,
) -> int:
    """Run the command of one family and return its exit code.

    Args:
        file: the op file; its stem is the family.
        doc: the op file's docstring, shown by `--help`.
        examples: arguments and their meanings.
        ops: the family's operations.
        options: command-line options that only this family has.
        argv: arguments, by default those of the process.
    """
    family = family_of(file)
    try:
        parser = build_parser(family, doc or "", examples, ops, options)
    except argparse.ArgumentError as error:
        message = f"{Path(file).name}: {error}; every command has this option, rename the family's"
        return fail(command_of(family), message)

    def body(args: argparse.Namespace) -> int:
        if args.signature:
            from bench.harness.cli.signature import print_signatures

            own_ops = [op for name, op in chosen_ops(args.op, {family: ops}) if name == family]
            return print_signatures(family, own_ops, args.dtype, options)
        return measured(family, args, ops, argv).conclude()

    return guarded(parser, body, argv)


def guarded(
    parser: argparse.ArgumentParser,
    body: Callable[[argparse.Namespace], int],
    argv: Argv,
) -> int:
    """Run a command and return its exit code; a user error prints one line."""
    if argv is None:
        leave_when_interrupted()
    prepare_streams()
    args = parser.parse_args(argv)
    prog = getattr(args, "prog", parser.prog)
    from bench.harness.device.device import NoDeviceError
    from results.store.runfile import StoreError

    try:
        return body(args)
    except (UsageError, OutputError, StoreError, PlotError) as error:
        return fail(prog, error)
    except NoDeviceError as error:
        return fail(prog, error, NO_DEVICE)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return fail(prog, NO_TORCH.format(command=install_command("bench")))
    except KeyboardInterrupt:
        return fail(prog, "interrupted", INTERRUPTED)
    finally:
        if argv is None:  # do not interrupt the cleanup of libraries
            handle_signals((leave, signal.default_int_handler), signal.SIG_IGN)


def measured(family: str, args: argparse.Namespace, ops: Sequence[Op], argv: Argv = None) -> Run:
    """Measure the rows that arguments request and return the run, which is not shown yet."""
    from bench.harness.loop import measure_run
    from bench.harness.measure import rows as planning
    from bench.harness.run import Run

    request = replace(given(Request, args), own=vars(args))
    settings = given(Settings, args)
    chosen = chosen_ops(request.op, {family: ops})
    providers = list(dict.fromkeys(request.provider or []))
    if providers:
        check_providers(providers, [name for name, _ in chosen])
    cases = make_all_cases(request, chosen, "cpu")  # rejects bad values before torch is loaded
    check_places(settings)
    device = device_of(settings)
    if device.is_gpu:  # a GPU has other default shapes
        cases = make_all_cases(request, chosen, device.type)
    rows = []
    for name, op, case in cases:
        rows += planning.rows_of_case(op, case, name, device, settings, providers)
    command = family if is_own(family) else f"bench.{family}"
    run = Run(settings, command, Path(family).stem, device, argv)
    measure_run(run, rows)
    return run


def make_all_cases(
    request: Request, chosen: Sequence[tuple[str, Op]], device_type: str
) -> list[tuple[str, Op, Case]]:
    """Return the cases of ops of several families, each with the options of its family."""
    cases = []
    for family, op in chosen:
        new = make_cases(family, op, device_type, request)
        cases += [(family, op, case) for case in new]
    return cases


def device_of(settings: Settings) -> Device:
    """Return the requested device; a CPU has the requested number of threads."""
    from bench.harness.device import device, gpu_state

    with busy("loading torch", settings.quiet or "torch" in sys.modules):
        detected = device.detect(settings.device)
    if settings.require_quiet and detected.is_gpu:
        device.check_quiet("GPU", gpu_state.health(detected.uuid)["utilization"] or 0.0)
    if settings.peak_memory and not detected.is_gpu:
        raise UsageError("--peak-memory requires a GPU, the device is a CPU; remove --peak-memory")
    handle_signals((leave,), signal.default_int_handler)
    if settings.threads is None:
        return detected
    if detected.is_gpu:
        raise UsageError(
            f"--threads {settings.threads} requires a CPU device, got a GPU; add --device cpu or "
            f"remove --threads"
        )
    return device.cpu_device(settings.threads)


def handle_signals(known: tuple[Any, ...], handler: Any) -> None:
    """Replace the handlers of Ctrl-C and SIGTERM if they are in `known`.

    While rows are measured, both raise `KeyboardInterrupt`, so finished rows are saved. Batch
    systems send SIGTERM.
    """
    for number in SIGNALS:
        if signal.getsignal(number) in known:
            signal.signal(number, handler)


def check_places(settings: Settings) -> None:
    """Reject an unknown GPU name, paths that cannot be written and busy cores, before measuring."""
    from bench.harness.device.device import busy_cores, check_quiet
    from results.store.runfile import runs_directory, target_of

    if sys.stdout is None:
        raise UsageError("stdout is closed; redirect it, to /dev/null for instance")
    if settings.no_save and settings.output is not None:
        raise UsageError("--no-save and --output are mutually exclusive")
    if settings.gpu is not None:
        from roofline.gpu_table import UnknownGpuError, find_gpu

        try:
            find_gpu(settings.gpu)
        except UnknownGpuError as error:
            raise UsageError(str(error)) from None
    try:
        if str(settings.plot).endswith("/"):
            raise UsageError(f"--plot {settings.plot} is a directory; name a file in it")
        if settings.plot is not None:
            from results.show.picture import check_picture

            check_picture(settings.plot)
            target_of(settings.plot)
            check_output(settings.plot, replaces=True)
        if not settings.no_save:
            check_output(settings.output or runs_directory())
    except OSError as error:
        raise UsageError(f"cannot write {error.filename}: {error.strerror}") from None
    if settings.require_quiet:
        check_quiet("CPU", busy_cores())


def check_output(path: Path | str, replaces: bool = False) -> None:
    """Reject a path that cannot be written, before measuring.

    A file is created in the directory or its nearest existing parent, because permissions do not
    cover read-only and virtual file systems.

    Args:
        path: a file or an existing directory; text is a directory to create.
        replaces: whether a file that is not empty may be replaced.
    """
    is_directory = isinstance(path, str)
    path = Path(path)
    if path.is_file() and path.stat().st_size and not (replaces or is_directory):
        raise UsageError(
            f"{path} exists and is not empty; runs are not overwritten, choose another --output"
        )
    directory = (path if is_directory or path.is_dir() else path.parent).absolute()
    nearest = next(parent for parent in (directory, *directory.parents) if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {nearest}: {error.strerror}; choose another path"
        ) from None


def check_providers(names: Iterable[str], families: Iterable[str]) -> None:
    """Reject providers that a family does not have."""
    from bench.harness.providers.registry import USER_KERNEL, is_user_kernel, provider_names
    from bench.harness.providers.user_kernel import find

    unique = list(dict.fromkeys(names))
    problems = [find(name).problem if is_user_kernel(name) else None for name in unique]
    for family in dict.fromkeys(families):
        known = provider_names(family)
        if unknown := next(
            (name for name in unique if not is_user_kernel(name) and name not in known), None
        ):
            listed = ", ".join((*known, USER_KERNEL))
            raise UsageError(f"unknown provider '{unknown}' for {family}; choose from {listed}")
    if problems and all(problems):
        raise UsageError(f"provider '{unique[0]}': {problems[0]}")
