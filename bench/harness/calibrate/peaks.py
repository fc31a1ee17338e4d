"""Arithmetic peaks: the fastest matmul of each dtype, and fused multiply-adds (FMA), both with warm
caches.

The FMA peak comes from a Triton kernel with independent chains in registers, enough to hide the
latency of an FMA; its instructions are counted in its machine code (`kernels/fma`). A CPU has no
FMA peak, because elementwise library functions read and write their operands, so they measure cache
bandwidth.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from bench.harness.calibrate.setup import Candidate, Measured, NotMeasuredError, Rate, Setup
from bench.harness.data.inputs import Filler, make_sets, torch_dtype
from bench.harness.device.device import Device
from bench.harness.op import Case, Op, parse_shapes
from bench.harness.op_file import module_of, options_of
from bench.harness.providers.registry import has_triton, load, numerics
from bench.harness.timing.samplers import Call

GPU_SHAPES = (
    # fastest in bf16 of A100 PCIe, A100 SXM, H100 and H200, GH200, B200, GB200, B300, MI300X
    "2048x5120x6144",
    "1024x10240x5120",
    "2048x2048x13312",
    "1024x15360x4096",
    "1792x16128x3072",
    "4096x9728x2048",
    "12288x18432x1024",
    "10240x15360x8192",
    # fastest in fp8 of H100, H200, GH200, B200
    "1024x9216x14336",
    "1280x4096x12032",
    "1024x14336x14336",
    "15360x4096x3072",
    "2048",
    "4096",
    "8192",
    "16384",
)
"""Shapes of the matmuls to try on a GPU.

Source: "Maximum Achievable Matmul FLOPS" of stas00/ml-engineering, compute/accelerator/README.md, a
search over thousands of shapes; and four squares."""

CPU_SHAPES = (
    "192",
    "256",
    "384",
    "512",
    "768",
    "1024",
    "1536",
    "2048",
    "3072",
    "4096",
    "2048x2048x512",
    "4096x1024x1024",
    "512x2048x4096",
    "2048x4096x2048",
)
"""Shapes of the matmuls to try on a CPU.

Source: on two cores of an AMD EPYC with torch 2.13, 256 and 512 were the fastest in fp32, 512 and
768 in bf16; the larger ones are for more cores."""

MATMULS_IN_MEMORY = 8  # free memory must hold the three matrices this many times
MAX_CALL_S = 0.15  # matmuls that would take longer are skipped: each is called a dozen times


def matmul(setup: Setup, dtype: str) -> list[Measured]:
    case, rate = _fastest(setup, dtype)
    if dtype == "fp16" and not setup.device.is_gpu:
        # Without fp16 instructions, a CPU is a thousand times slower than with a conversion to
        # fp32.
        wide_case, wide = _fastest(setup, "fp32")
        if wide.value > rate.value:
            name = f"{wide.candidate.name}, converted to fp32"
            case = wide_case
            rate = replace(wide, candidate=replace(wide.candidate, name=name))
    work = matmul_op().work(case)
    fields = {
        "flops": work.flops,
        "bytes_read": work.bytes_read,
        "bytes_written": work.bytes_written,
        "fill": "uniform",
        "options": {"layout": case.options["layout"], "config": rate.candidate.name},
    }
    return [setup.measured("flops", dtype, rate, "matmul", case.dtype, dict(case.shape), **fields)]


def matmul_op() -> Op:
    op: Op = module_of("matmul").OPS[0]
    return op


def _fastest(setup: Setup, dtype: str) -> tuple[Case, Rate]:
    cases = {f"matmul {case.name}": case for case in cases_of(setup.device, dtype)}
    candidates = [
        Candidate(name, matmul_op().work(case).flops, partial(_launch, setup.device, case))
        for name, case in cases.items()
    ]
    with numerics(dtype):
        rate = setup.fastest_of(candidates, MAX_CALL_S)
    return cases[rate.candidate.name], rate


def cases_of(device: Device, dtype: str) -> list[Case]:
    memory_bytes = device.free_bytes() // MATMULS_IN_MEMORY
    work = matmul_op().work
    cases = [
        Case.of("matmul", dtype, shape, options_of("matmul"))
        for shape in parse_shapes(GPU_SHAPES if device.is_gpu else CPU_SHAPES, matmul_op())
    ]
    cases = [case for case in cases if work(case).bytes <= memory_bytes]
    if not cases:
        raise NotMeasuredError(
            f"no {dtype} matmul in the list fits into {memory_bytes / 1e9:.2g} GB"
        )
    return sorted(cases, key=lambda case: work(case).flops)


def _launch(device: Device, case: Case) -> Call:
    op = matmul_op()
    op.check(case, device.type)
    [inputs] = make_sets(op, case, Filler("uniform", case.dtype, device, seed=0), device, copies=1)
    return load("torch", op, "matmul", device).call(inputs)


ISSUE_SLOTS = 2**22  # warp instructions per scheduler and launch: 2 ms at 2 GHz with one per clock
LANES_PER_CLOCK = 128
"""Threads that the four warp schedulers of an SM serve per clock.

Source: NVIDIA, CUDA C++ Programming Guide, Compute Capabilities: four warp schedulers per SM from
7.0 to 10.0."""

FMA_DTYPES = ("fp64", "fp32", "fp16", "bf16")


def fma(setup: Setup, dtype: str) -> list[Measured]:
    """Return the FMA peak of a GPU in a dtype; an FMA counts as 2 FLOPs."""
    rate = setup.fastest_of(fma_candidates(dtype, setup.device))
    flops = rate.candidate.work
    return [
        setup.measured("fma", dtype, rate, "fma", dtype, {"n": max(1, flops // 2)}, flops=flops)
    ]


def fma_candidates(dtype: str, device: Device) -> list[Candidate]:
    if device.type != "cuda" or not has_triton():
        raise NotMeasuredError("the FMA kernel needs an NVIDIA GPU and Triton")
    import torch

    from kernels import fma

    def prepare(config: Any, elements: int, iterations: int) -> Call:
        ab = fma.coefficients(torch_dtype(dtype), device.torch_name)
        generator = torch.Generator(device=device.torch_name).manual_seed(0)
        start = torch.rand(elements, device=device.torch_name, generator=generator).to(
            torch_dtype(dtype)
        )
        out = torch.empty_like(start)
        programs = elements // config.block
        return partial(fma.variant(config).launch, programs, ab, start, out, iterations)

    candidates = []
    for config in fma.CONFIGS:
        elements = config.elements(device.sm_count or 1)
        iterations = (
            ISSUE_SLOTS * LANES_PER_CLOCK // (config.threads_per_sm * config.chains * fma.UNROLL)
        )
        flops = fma.flops(elements, iterations)
        candidates.append(
            Candidate(
                f"triton v1, {config.label}", flops, partial(prepare, config, elements, iterations)
            )
        )
    return candidates
