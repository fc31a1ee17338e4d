"""Cases for the scripts beside this file: how one is written, what a datasheet gives it, its launches on a device.

A case is written `op/dtype/shape`, as `matmul/bf16/4096` or `rmsnorm/fp32/512x4096`; the shape as `--shape` takes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.__main__ import families
from bench.harness.cli.arguments import UsageError
from bench.harness.data import inputs, verify
from bench.harness.device.device import Device
from bench.harness.measure.plan import refusal
from bench.harness.op import Case, Op
from bench.harness.op_file import options_of
from bench.harness.providers.registry import load, numerics
from bench.harness.shapes import parse_shapes
from bench.harness.timing.samplers import Call
from roofline.hardware.gpu import load_gpus
from roofline.model import least_time_s

GPU_CASES = (
    *("gelu/bf16/4194304", "matmul/bf16/1536", "rmsnorm/bf16/2048x4096", "matmul/bf16/2048"),
    *("softmax/bf16/4096x8192", "matvec/bf16/16384x8192", "matmul/bf16/4096", "sum/bf16/268435456"),
    *("cross-entropy/bf16/8192x128256", "matmul/bf16/8192", "add/bf16/1073741824", "matmul/bf16/13312"),
)
"""From 5 us to 5 ms by the datasheet roofline of an H100 SXM (989.4 TFLOP/s, 3.352 TB/s), shortest first."""

CPU_CASES = (
    *("gelu/fp32/65536", "matmul/bf16/256", "rmsnorm/fp32/128x4096", "matmul/fp32/256"),
    *("softmax/fp32/128x8192", "matvec/fp32/1024x4096", "matmul/bf16/512", "sum/fp32/4194304"),
    *("cross-entropy/fp32/16x32000", "matmul/fp32/512", "add/fp32/4194304", "matmul/bf16/1024"),
)
"""The same ops, so small that a CPU takes milliseconds at most."""


class WrongResultError(RuntimeError):
    """What was to be timed computes something else; the message says by how much."""


@dataclass(frozen=True)
class Listed:
    """A case with the op and the family that it is of."""

    name: str
    family: str
    op: Op
    case: Case


def parse_case(text: str) -> Listed:
    """Return the case that is written `op/dtype/shape`.

    Raises:
        UsageError: there is no such op, dtype or shape.
    """
    parts = text.split("/")
    if len(parts) != 3:
        raise UsageError(f"case '{text}' is not op/dtype/shape; write matmul/bf16/4096 for instance")
    name, dtype, shape = parts
    known = {op.name: (family, op) for family, ops in families().items() for op in ops}
    if name not in known:
        raise UsageError(f"unknown op '{name}' in case '{text}'; there are: {', '.join(known)}")
    family, op = known[name]
    if dtype not in op.dtypes:
        raise UsageError(f"{name} has no dtype '{dtype}'; it has: {', '.join(op.dtypes)}")
    try:
        shapes = parse_shapes([shape], op)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if len(shapes) != 1:
        raise UsageError(f"case '{text}' names {len(shapes)} shapes; write them one by one")
    options = options_of(family)
    values = {one.name: one.default(dtype) for one in options}
    return Listed(text, family, op, Case.of(name, dtype, shapes[0], options, values))


def chosen_cases(words: Sequence[str] | None, default: Sequence[str]) -> list[Listed]:
    """Return the cases that are named, each once, else the default ones.

    Raises:
        UsageError: one of them cannot be, or none is named.
    """
    if words is not None and not words:
        raise UsageError("--case is empty; name at least one, as matmul/bf16/4096")
    return [parse_case(word) for word in dict.fromkeys(default if words is None else words)]


def estimate_s(listed: Listed, slug: str) -> float | None:
    """Return the least time of a launch by the datasheet of a GPU of the table, s; None where the table lacks a value.

    Source: `roofline.model.least_time_s` on the peak and the bandwidth of `roofline/gpus/<slug>.toml`. A launch itself
    takes some microseconds more.
    """
    gpu, work = load_gpus().get(slug), listed.op.work(listed.case)
    if gpu is None or not gpu.memory_bandwidth_bytes_per_s:
        return None
    peaks = gpu.peaks_flops_per_s if listed.family == "matmul" else gpu.vector_peaks_flops_per_s
    peak = peaks.get(listed.case.dtype) or peaks.get("fp32")
    if not peak:
        return None
    return least_time_s(work.flops, work.bytes, peak, gpu.memory_bandwidth_bytes_per_s)


@dataclass(frozen=True)
class Ready:
    """One case on a device: verified, with a launch for each copy of its inputs."""

    listed: Listed
    device: Device
    cache: str
    """`cold` where the copies flush each other out of the cache, else `warm`: then there is no cold time."""
    sets: list[inputs.InputSet] = field(repr=False)
    calls: list[Call] = field(repr=False)
    """One launch for each copy; the first of them alone is the warm one."""

    def verify(self, index: int) -> None:
        """Hold the result of one launch against the fp64 reference.

        Raises:
            WrongResultError: it is wrong.
        """
        op, case, data = self.listed.op, self.listed.case, self.sets[index]
        result = verify.run_poisoned(self.calls[index], data.out, self.device.synchronize)
        verdict = verify.check(op, case, data, result)
        if not verdict.is_right:
            raise WrongResultError(f"{self.listed.name}: {verdict.reason}")


def make_ready(listed: Listed, device: Device, seed: int = 0, by: str = "torch") -> Ready:
    """Return the launches of a case by one provider, the first result held against the fp64 reference.

    Raises:
        UsageError: the device cannot run it, with the reason.
        ProviderUnavailableError: the provider cannot.
        WrongResultError: the result is wrong.
    """
    op, case = listed.op, listed.case
    reason = refusal(op, case, device)
    if reason:
        raise UsageError(reason)
    provider = load(by, op, listed.family, device)
    plan = inputs.plan_rotation(op.work(case).bytes, device.cache_bytes, device.free_bytes(), device.type, "cold")
    filler = inputs.Filler("uniform", case.dtype, device, seed)
    sets = inputs.make_sets(op, case, filler, device, plan.copies)
    ready = Ready(listed, device, plan.cache, sets, [provider.call(data) for data in sets])
    with numerics(case.dtype):
        ready.verify(0)
    return ready
