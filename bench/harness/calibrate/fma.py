"""The highest rate of fused multiply-adds outside matmul: chains of them that stay in registers.

On a GPU they come from a Triton kernel whose instructions are counted in its machine code (`kernels/fma`). On a CPU
they are compiled from C, where there is a compiler: an elementwise operation of a library reads and writes its
operands, so that its rate is a bandwidth of the caches. Each thread multiplies and adds in registers alone, as many
independent chains as hide the latency of one operation.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from bench.harness.calibrate.setup import Candidate, Launch, Measured, NotMeasuredError, Setup
from bench.harness.data.inputs import torch_dtype
from bench.harness.device.device import Device
from bench.harness.providers.registry import has_triton

GPU_DTYPES = ("fp64", "fp32", "fp16", "bf16")

ISSUE_SLOTS = 2**22  # warp instructions of a launch for each scheduler: 2 ms at 2 GHz and one a clock
LANES_A_CLOCK = 128
"""Threads that the four schedulers of a multiprocessor serve in one clock.

Source: NVIDIA, CUDA C++ Programming Guide, Compute Capabilities: four warp schedulers an SM from 7.0 to 10.0."""

CPU_TYPES = {"fp64": "double", "fp32": "float"}
"""C's names of the dtypes of a CPU's vector arithmetic; torch computes narrower floats in fp32."""

COMPILERS = ("cc", "gcc", "clang")

WIDTHS = ((16, 12), (32, 12), (64, 12), (64, 24))
"""Bytes of a vector and chains a thread: 12 chains and two factors fit into 16 registers, 24 into the 32 of AVX-512.
Two units of a latency of four cycles need 8. A width that the processor lacks is computed in parts, and is slower."""

STEPS = 12 * 2**20  # multiply-adds of a vector in one launch of a thread: 2 ms at 3 GHz and two a cycle
FACTOR, SUMMAND = 0.75, 0.25  # every chain goes to 1: no number overflows, and the result can be checked

SOURCE = """
typedef {real} vector __attribute__((vector_size({size_bytes})));

double chains(long steps, double factor, double summand) {{
    vector a = (vector){{0}} + ({real})factor, b = (vector){{0}} + ({real})summand;
    {starts}
    for (long step = 0; step < steps; step++) {{ {multiply_adds} }}
    vector all = {sum};
    double sum = 0;
    for (unsigned lane = 0; lane < sizeof all / sizeof all[0]; lane++) sum += all[lane];
    return sum;
}}
"""
"""Each chain is a variable, because a compiler keeps no array in registers."""


def dtypes_of(device: Device) -> tuple[str, ...]:
    """Return the dtypes whose rate can be measured on a device."""
    return GPU_DTYPES if device.is_gpu else tuple(CPU_TYPES)


def measure(setup: Setup, dtype: str) -> list[Measured]:
    """Return the rate of fused multiply-adds of a dtype; each counts as 2 FLOPs."""
    with ThreadPoolExecutor(setup.device.threads or 1) as pool:
        rate, _ = setup.fastest_of(candidates(dtype, setup.device, pool))
    return [setup.measured("fma", dtype, rate, "fma", dtype, {"n": max(1, rate.work // 2)}, flops=rate.work)]


def candidates(dtype: str, device: Device, pool: ThreadPoolExecutor) -> list[Candidate]:
    """Return the configurations to try for a dtype; on a CPU they run on the threads of `pool`.

    Raises:
        NotMeasuredError: the rate cannot be measured here; the message says why.
    """
    return _gpu_candidates(dtype, device) if device.is_gpu else _cpu_candidates(dtype, device.threads or 1, pool)


def _gpu_candidates(dtype: str, device: Device) -> list[Candidate]:
    if device.type != "cuda" or not has_triton():
        raise NotMeasuredError("its kernel needs an NVIDIA GPU and Triton")
    import torch

    from kernels.fma import v1_chains

    def prepare(config: Any) -> Launch:
        elements = config.elements(device.sm_count or 1)
        iterations = ISSUE_SLOTS * LANES_A_CLOCK // (config.threads_per_sm * config.chains * v1_chains.UNROLL)
        ab = v1_chains.coefficients(torch_dtype(dtype), device.torch_name)
        generator = torch.Generator(device=device.torch_name).manual_seed(0)
        start = torch.rand(elements, device=device.torch_name, generator=generator).to(torch_dtype(dtype))
        call = partial(v1_chains.launch, ab, start, iterations, out=torch.empty_like(start), config=config)
        return Launch(call, v1_chains.flops(elements, iterations))

    return [Candidate(f"triton v1, {config.words}", partial(prepare, config)) for config in v1_chains.CONFIGS]


def _cpu_candidates(dtype: str, threads: int, pool: ThreadPoolExecutor) -> list[Candidate]:
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise NotMeasuredError(f"chains in registers need a C compiler, and there is none of {', '.join(COMPILERS)}")

    def prepare(size_bytes: int, chains: int) -> Launch:
        function = _compiled(compiler, CPU_TYPES[dtype], size_bytes, chains)
        lanes, steps = size_bytes // (8 if dtype == "fp64" else 4), STEPS // chains
        if abs(function(steps, FACTOR, SUMMAND) / (lanes * chains) - 1) > 1e-3:
            raise NotMeasuredError("the chains of multiply-adds do not compute what they should")

        def call() -> None:
            list(pool.map(lambda _: function(steps, FACTOR, SUMMAND), range(threads)))  # ctypes lets other threads run

        return Launch(call, 2 * lanes * chains * steps * threads)

    return [
        Candidate(f"C, {chains} chains of {8 * size_bytes} bits a thread", partial(prepare, size_bytes, chains))
        for size_bytes, chains in WIDTHS
    ]


def _compiled(compiler: str, real: str, size_bytes: int, chains: int) -> Callable[..., Any]:
    numbers = range(chains)
    text = SOURCE.format(
        real=real,
        size_bytes=size_bytes,
        starts=" ".join(f"vector x{i} = (vector){{0}} + ({real}){i + 2};" for i in numbers),
        multiply_adds=" ".join(f"x{i} = x{i} * a + b;" for i in numbers),
        sum=" + ".join(f"x{i}" for i in numbers),
    )
    with tempfile.TemporaryDirectory(prefix="chains-") as folder:
        source, library = Path(folder, "chains.c"), Path(folder, "chains.so")
        source.write_text(text)
        options = ("-O3", "-ffp-contract=fast", "-march=native", "-shared", "-fPIC", "-w")
        command = [compiler, *options, "-o", str(library), str(source)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)
        if done.returncode:
            raise NotMeasuredError(f"{compiler} cannot compile the chains: {done.stderr.strip()[:100]}")
        function: Any = ctypes.CDLL(str(library)).chains
    function.argtypes, function.restype = (ctypes.c_long, ctypes.c_double, ctypes.c_double), ctypes.c_double
    return function  # type: ignore[no-any-return]
