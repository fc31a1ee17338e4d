"""`python -m bench compare a.py:f b.py:f`: your own functions on the same arguments, without an
op.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

from bench.api.comparing import interleaved
from bench.api.function import Function, extents, known_ceilings
from bench.comparing.classes import GET_INIT_INPUTS, GET_INPUTS, Classes, required_of
from bench.comparing.turns import ComparePolicy
from bench.harness import worker
from bench.harness.cli import main
from bench.harness.cli.arguments import UsageError
from bench.harness.data.inputs import Filler
from bench.harness.data.torch_settings import settings_kept
from bench.harness.device.device import Device
from bench.harness.measure.flags import Flag, of_settings
from bench.harness.providers.user_kernel import UserKernelError, find
from bench.harness.run import Run
from bench.harness.settings import Settings
from bench.harness.timing import protocol
from bench.profiling.target import guarded_call
from results.record import Record

if TYPE_CHECKING:
    from bench.commands.compare import Options

MAKE_INPUTS = "make_inputs"
"""Name of the function in a user's file that returns the arguments of one call."""

FLOPS = "FLOPS"
"""Name of the function that returns the FLOPs of a call from its arguments."""

BYTES = "BYTES"
"""Name of the function that returns the bytes read and those written, from the arguments."""


def filled(
    name: str, function: Callable[..., Any], fill: Filler, shapes: Sequence[tuple[int, ...]]
) -> tuple[Any, ...]:
    """Return the arguments of a call if no file has `make_inputs`: a tensor of `--shape` for each
    parameter.
    """
    if not shapes:
        raise UsageError(
            f"no file has a function {MAKE_INPUTS}(); add one, or use --shape and --dtype"
        )
    required = required_of(getattr(function, "forward", function))
    if len(shapes) not in (1, len(required)):
        names = ", ".join(each.name for each in required)
        raise UsageError(
            f"expected one --shape for all parameters of {name}, or {len(required)}: {names}"
        )
    if len(shapes) == 1:
        shapes = [*shapes] * len(required)
    return tuple(fill(*shape) for shape in shapes)


def run_functions(
    options: Options, settings: Settings, argv: Sequence[str] | None, ops: Collection[str]
) -> Run:
    """Measure the functions that the options name, in a worker, and return the run, not shown
    yet. `ops` are the names of all ops.
    """
    names = checked_names(options)
    shapes = [extents(text) for text in options.shape or ()]
    dtypes = options.dtype or ["fp32"]
    if len(dtypes) > 1:
        raise UsageError("functions are compared in one --dtype")
    main.check_places(settings)
    worker.start_server()
    device = main.device_of(settings)
    policy = ComparePolicy(
        options.margin,
        settings.budget_s or 10.0,
        options.rounds,
        settings.seed,
        rows=len(names) - 1,
    )
    saved = policy.to_dict()
    saved |= {"fill": settings.fill, "cache": settings.cache, "baseline": names[0]}
    if settings.in_place:
        saved["in_place"] = True
    with Run(settings, "bench", "compare", device, argv, saved) as run:
        run.ceilings = known_ceilings(device)
        run.start(None)
        for op in sorted({name.partition(":")[2] for name in options.functions} & set(ops)):
            run.progress.note(f"{op} is an op: --op {op} --provider checks it against fp64")
        run.progress.say(", ".join(names))
        try:
            records, _ = worker.call(
                measure_in_worker,
                names,
                shapes,
                dtypes[0],
                settings,
                device,
                policy,
                timeout_s=settings.timeout_s,
            )
        except worker.WorkerError as error:
            culprit = "" if error.index is None else f"{names[error.index]}: "
            raise UsageError(f"{culprit}{error}") from None
        for record in records:
            run.keep(record)
    return run


def checked_names(options: Options) -> list[str]:
    """Return the functions, the baseline first; what shows without running a file is reported
    here.
    """
    for option in ("op", "provider", "size"):
        if getattr(options, option) is not None:
            raise UsageError(f"functions are compared without --{option}; remove it")
    names = list(options.functions)
    if len(names) < 2:
        raise UsageError(f"expected at least two functions, got only {names[0]}")
    if options.baseline is not None:
        if options.baseline not in names:
            raise UsageError(f"--baseline {options.baseline} must be one of {', '.join(names)}")
        names.sort(key=lambda name: name != options.baseline)
    for name in names:
        try:
            problem = find(name).problem
        except UserKernelError:
            problem = "must be written path/to/file.py:function"
        if problem:
            raise UsageError(f"'{name}': {problem}")
    return labels(names)


def labels(names: Sequence[str]) -> list[str]:
    """Return the names, each different: the second of two equal ones ends in `#2`."""
    different = []
    for index, name in enumerate(names):
        count = names[:index].count(name) + 1
        different.append(f"{name}#{count}" if count > 1 else name)
    return different


def measure_in_worker(
    names: Sequence[str],
    shapes: Sequence[tuple[int, ...]],
    dtype: str,
    settings: Settings,
    device: Device,
    policy: ComparePolicy,
) -> list[Record]:
    """Import the functions, make their arguments and time them in turns."""
    functions: dict[str, Callable[..., Any]] = {}
    modules: list[ModuleType] = []
    restored: dict[str, tuple[Flag, ...]] = {}
    for index, name in enumerate(names):
        protocol.announce(index)
        source = find(name)
        with guarded_call(name), settings_kept() as changed:
            modules.append(source.module())
            functions[name] = getattr(modules[-1], source.function)
        restored[name] = of_settings(changed, "importing the file")
    classes = Classes(defined(modules, GET_INIT_INPUTS), dtype, device.torch_name, settings.seed)
    for index, name in enumerate(names):
        protocol.announce(index)
        with guarded_call(name):
            functions[name] = classes.called(name, functions[name])
    make = defined(modules, MAKE_INPUTS) or classes.inputs(defined(modules, GET_INPUTS))
    with guarded_call(MAKE_INPUTS):
        made = make() if make else None
    protocol.announce(runs=False)
    baseline = functions[names[0]]
    if made is None:
        fill = Filler(settings.fill, dtype, device, settings.seed)
        made = filled(names[0], baseline, fill, shapes)
    inputs = made if isinstance(made, tuple) else (made,)
    subject = Function(
        baseline,
        inputs,
        {},
        None,
        declared_work(modules, inputs),
        None,
        settings.cache,
        device.torch_name,
        settings.in_place,
    )
    _, records = interleaved(
        functions, subject, policy, settings.tolerance, make_inputs=make, flags=restored
    )
    return [
        replace(
            record,
            dtype=record.dtype or dtype,  # unknown if no torch operation computes anything
            source_sha256=find(record.provider).sha256(),
        )
        for record in records
    ]


def defined(modules: Sequence[ModuleType], name: str) -> Callable[..., Any] | None:
    """Return the function of this name in the first file that has one."""
    return next((vars(each)[name] for each in modules if name in vars(each)), None)


def declared_work(modules: Sequence[ModuleType], inputs: Sequence[Any]) -> dict[str, Any]:
    """Return what `FLOPS` and `BYTES` of the files say about a call with these inputs."""
    work: dict[str, Any] = {}
    flops = defined(modules, FLOPS)
    moved = defined(modules, BYTES)
    if flops:
        with guarded_call(FLOPS):
            work["flops"] = flops(*inputs)
    if moved:
        with guarded_call(BYTES):
            read, written = moved(*inputs)
            work |= {"bytes_read": read, "bytes_written": written}
    return work
