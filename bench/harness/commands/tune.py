"""`python -m bench tune`: times the configurations of a kernel on this GPU, and keeps the fastest for later runs."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.harness.cli.arguments import CaseWords, UsageError, add_device, add_list, chosen_ops, dtype_words, make_cases
from bench.harness.cli.arguments import shape_words as shape_list
from bench.harness.op import Case, Op
from bench.harness.op_file import options_of
from results.show.table import format_rate, format_time
from results.show.terminal import print_out, say

if TYPE_CHECKING:
    from bench.harness.calibrate.search import Chosen, Launch, Trial
    from bench.harness.device.device import Device

DESCRIPTION = """\
Compile the configurations of a kernel in parallel processes, time them one after the other by the protocol of every
measurement, and keep the fastest and the whole table for this GPU. The provider triton-v5-autotune takes it from then
on, as long as Triton and the text of the kernel are the same. Each result is verified before it is timed.

The table is in kernels/tuned, or in the folder that RIDGEPOINT_TUNED names."""

EPILOG = """\
exit codes: 0 ok; 1 no configuration runs or is right; 2 usage; 3 no GPU of CUDA;
            130 interrupted, the cases that were finished are kept

examples:
  python -m bench tune matmul --dtype bf16 --shape 4096,8192
  python -m bench tune matmul --dtype fp8e4m3 --shape 16x4096x14336 --layout nt"""

TUNED = {"matmul": "kernels.matmul.v5_split_k"}
"""By op the version that has configurations to search."""

SCREENING_S, CONFIRMING_S = 0.15, 2.0
"""Most time of one configuration, and of the fastest, which is measured afresh."""

SHOWN = 8
"""Rows of the table on the screen; the file has all."""

NOTHING_RIGHT = 1
OWN_REASON = "NotMeasuredError: "
"""Beginning of a reason that is our own refusal, not a library's error."""


@dataclass(frozen=True)
class Tuning:
    """What is searched for one case."""

    key: str
    """What the kept configuration is found by."""
    configs: Mapping[str, Any]
    """By their words, the fixed choice first."""
    cache: str
    """`cold` where the launches of a configuration go round copies that flush each other out of the cache."""
    prepare: Callable[[Any], Launch]
    """Returns a launch in a configuration, verified. Raises where it does not run or is wrong."""


def add_parser(commands: Any) -> None:
    """Add the command to `python -m bench`."""
    parser = commands.add_parser(
        "tune",
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    parser.add_argument("op", metavar="OP", help=f"one of: {', '.join(TUNED)}")
    add_list(parser, "--dtype", "dtypes (default: bf16)", dtype_words)
    add_list(parser, "--shape", "shapes, MxNxK or N (default: those of the op)", shape_list)
    for option in options_of("matmul"):
        add_list(parser, f"--{option.name}", option.help)
    add_device(parser)
    parser.add_argument("--format", choices=("table", "json"), default="table", help="of the answer (default: table)")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, families: Mapping[str, tuple[Op, ...]], argv: Sequence[str] | None) -> int:
    """Tune what is asked for and return the exit code.

    Raises:
        UsageError: the op has no configurations to search, or what is kept cannot be read or written.
        NoDeviceError: there is no GPU of CUDA, or no Triton.
    """
    from bench.harness.calibrate.search import NotMeasuredError, best_of
    from bench.harness.cli import main
    from bench.harness.cli.terminal import Progress

    [(family, op)] = chosen_ops([args.op], families)
    if op.name not in TUNED:
        raise UsageError(f"{op.name} has no configurations to search; there are some of: {', '.join(TUNED)}")
    cases = make_cases([op], options_of(family), CaseWords.of(args, options_of(family)), "cuda")
    device = main.device_of(args)
    _require_triton(device)
    from kernels import tuned, versions

    answers, missed = [], 0
    for _, case in cases:
        try:
            with Progress(args.quiet) as progress:
                progress.say(f"{case.dtype} {case.name}: compiling")
                tuning = tuning_of(op, case, device)
                found = best_of(candidates(tuning), trial_of(device, case, tuning.cache, progress.say))
        except NotMeasuredError as error:
            say(f"{case.dtype} {case.name}: {error}")
            missed += 1
            continue
        table = table_of(found, tuning.configs)
        sha = versions.source_sha256(TUNED[op.name])
        try:
            path = tuned.keep(_gpu(device), tuning.key, table, sha)
        except tuned.TunedFileError as error:
            raise UsageError(str(error)) from None
        answers.append({"case": case.name, "dtype": case.dtype, "key": tuning.key, "file": str(path), "table": table})
        if args.format == "table":
            print_out("\n".join(lines_of(case, found, tuning.configs)) + f"\n  kept in {path}\n")
    if args.format == "json":
        print_out(json.dumps({"tuned": answers}, indent=1) + "\n")
    return NOTHING_RIGHT if missed and not answers else 0


def _require_triton(device: Device) -> None:
    from bench.harness.device.device import NoDeviceError
    from bench.harness.providers.registry import has_triton

    if device.type != "cuda":
        raise NoDeviceError(f"tuning times kernels on a GPU of CUDA; {device.name} is none")
    if not has_triton():
        raise NoDeviceError("tuning needs Triton, which is not installed; there are wheels for Linux only")


def _gpu(device: Device) -> Any:
    import torch

    from kernels.launch import gpu_of

    return gpu_of(torch.device(device.torch_name))


def candidates(tuning: Tuning) -> list[Any]:
    """Return the configurations as the search of ceilings takes them."""
    from bench.harness.calibrate.search import Candidate

    return [Candidate(words, partial(tuning.prepare, config)) for words, config in tuning.configs.items()]


def trial_of(device: Device, case: Case, cache: str, note: Callable[[str], None]) -> Trial:
    """Return how configurations are compared: by the protocol, briefly, and the fastest once more."""
    from bench.harness.calibrate.search import Trial
    from bench.harness.providers.registry import numerics
    from bench.harness.timing.protocol import collect, limits_of, no_garbage_collection
    from bench.harness.timing.samplers import make_sampler

    def measure(calls: Sequence[Callable[[], Any]], limits: Any) -> Any:
        with numerics(case.dtype), no_garbage_collection():
            return collect(make_sampler(calls, device, limits), limits, cache)

    confirming = replace(limits_of(device), cap_s=CONFIRMING_S)
    screening = replace(confirming, cap_s=SCREENING_S, min_time_s=SCREENING_S / 3, warm_up_s=SCREENING_S / 3)
    return Trial(measure, screening, confirming, lambda words: note(f"{case.dtype} {case.name}: {words}"))


def tuning_of(op: Op, case: Case, device: Device) -> Tuning:
    """Return what is searched for a matmul, all of it compiled and in Triton's cache.

    Raises:
        NotMeasuredError: the kernel does not take the case.
    """
    from bench.harness.calibrate.search import Launch, NotMeasuredError
    from bench.harness.data import inputs, verify
    from bench.harness.providers.registry import numerics
    from kernels.matmul import operands
    from kernels.matmul import v5_split_k as version
    from kernels.precompile import precompile

    size_bytes = op.work(case).bytes
    rotation = inputs.plan_rotation(size_bytes, device.cache_bytes, device.free_bytes(), device.type, "cold")
    filler = inputs.Filler("uniform", case.dtype, device, 0)
    sets = inputs.make_sets(op, case, filler, device, rotation.copies)
    first = sets[0]
    with numerics(case.dtype):
        try:
            asked = operands.read(version.LABEL, *first.inputs[:2], first.inputs[2:], first.out)
            configs = version.candidates(asked)
        except (ValueError, KeyError) as error:
            raise NotMeasuredError(str(error)) from None
    absent, out = [tensor.to("meta") for tensor in first.inputs], first.out.to("meta")
    refused = precompile(
        {config.words: partial(version.launch_config, *absent, out=out, config=config) for config in configs},
        _gpu(device),
    )

    def prepare(config: Any) -> Launch:
        if config.words in refused:
            raise NotMeasuredError(f"does not compile: {refused[config.words]}")
        calls = [partial(version.launch_config, *data.inputs, out=data.out, config=config) for data in sets]
        with numerics(case.dtype):
            checked = verify.check(op, case, first, verify.run_poisoned(calls[0], first.out, device.synchronize))
        if not checked.is_right:
            raise NotMeasuredError(checked.reason or "wrong result")
        turns = itertools.cycle(calls)
        return Launch(lambda: next(turns)(), op.work(case).flops)

    return Tuning(version.key_of(asked), {config.words: config for config in configs}, rotation.cache, prepare)


def table_of(found: Chosen, configs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what was timed: the fastest first, as measured afresh, the others as screened, and what was refused."""
    work, samples = found.rate.work_per_launch, found.rate.samples
    best = {"median_s": samples.median_s, "ci95_s": list(samples.ci95_s), "screened_s": work / found.screened[0][1]}
    rows = [{"config": _json(configs[found.rate.config]), **best}]
    rows += [{"config": _json(configs[words]), "screened_s": work / rate} for words, rate in found.screened[1:]]
    return rows + [
        {"config": _json(configs[words]), "refused": reason.removeprefix(OWN_REASON)} for words, reason in found.refused
    ]


def _json(config: Any) -> dict[str, Any]:
    return dict(config._asdict())


def lines_of(case: Case, found: Chosen, configs: Mapping[str, Any]) -> list[str]:
    """Return what people read: the fastest, where the fixed choice stands, and the next ones."""
    samples = found.rate.samples
    fixed, rates = next(iter(configs)), dict(found.screened)
    rate_now = format_rate(found.rate.value, "FLOP/s")
    lines = [
        f"{case.op} {case.dtype} {case.name}: {format_time(samples.median_s)}, {rate_now}",
        f"  fastest  {found.rate.config}",
    ]
    share = rates[fixed] / found.screened[0][1] if fixed in rates else None
    lines.append(
        f"  fixed    {fixed}: " + ("does not run here" if share is None else f"{100 * share:.1f} % of its speed")
    )
    for words, rate in found.screened[1:SHOWN]:
        lines.append(f"           {words}: {100 * rate / found.screened[0][1]:.1f} %")
    return [*lines, f"  {len(found.screened)} timed, {len(found.refused)} do not run or are wrong"]
