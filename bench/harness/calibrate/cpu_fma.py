"""The highest rate of multiply-adds of a CPU outside matmul: chains that stay in its vector registers, compiled from C.

An elementwise operation of a library reads and writes its operands, so that its rate is a bandwidth of the caches. Here
each thread multiplies and adds in registers alone: as many independent chains as hide the latency of one operation.
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

from bench.harness.calibrate.search import Candidate, Launch, NotMeasuredError
from bench.harness.device.device import Device

TYPES = {"fp64": "double", "fp32": "float"}
"""Dtypes that a CPU has vector arithmetic of everywhere; narrower floats torch computes in fp32."""

COMPILERS = ("cc", "gcc", "clang")
COMPILE_LIMIT_S = 30.0

SHAPES = ((16, 12), (32, 12), (64, 12), (64, 24))
"""Bytes of a vector and chains a thread: 12 chains and two factors fit into 16 registers, 24 into the 32 of AVX-512.
Two units of a latency of four cycles need 8. What a processor has not is computed in parts, and is slower."""

STEPS = 12 * 2**20
"""Multiply-adds of a vector in one launch of a thread: two milliseconds at 3 GHz and two a cycle."""

FACTOR, SUMMAND = 0.75, 0.25
"""Every chain goes to 1, so that no number overflows or becomes subnormal, and the result can be checked."""

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


def candidates(dtype: str, device: Device) -> list[Candidate]:
    """Return chains of each width that may be the fastest; each multiply-add counts as 2 FLOPs.

    Raises:
        NotMeasuredError: the dtype has no vector arithmetic of its own, or there is no C compiler.
    """
    if dtype not in TYPES:
        raise NotMeasuredError(f"no vector multiply-add in {dtype} on every CPU; there are: {', '.join(TYPES)}")
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise NotMeasuredError(f"chains in registers need a C compiler, and there is none of {', '.join(COMPILERS)}")
    threads = device.threads or 1
    return [
        Candidate(
            f"C, {chains} chains of {8 * size_bytes} bits a thread",
            partial(_launch, compiler, dtype, size_bytes, chains, threads),
        )
        for size_bytes, chains in SHAPES
    ]


def _launch(compiler: str, dtype: str, size_bytes: int, chains: int, threads: int) -> Launch:
    """Compile one width, check what it computes, and return its launch on all threads."""
    function = _compiled(compiler, TYPES[dtype], size_bytes, chains)
    lanes = size_bytes // (8 if dtype == "fp64" else 4)
    steps = STEPS // chains
    if abs(function(steps, FACTOR, SUMMAND) / (lanes * chains) - 1) > 1e-3:
        raise NotMeasuredError("the chains of multiply-adds do not compute what they should")
    if threads == 1:
        return Launch(partial(function, steps, FACTOR, SUMMAND), 2 * lanes * chains * steps)
    pool = ThreadPoolExecutor(threads)

    def call() -> None:
        list(pool.map(lambda _: function(steps, FACTOR, SUMMAND), range(threads)))  # ctypes lets other threads run

    return Launch(call, 2 * lanes * chains * steps * threads)


def _compiled(compiler: str, real: str, size_bytes: int, chains: int) -> Callable[..., Any]:
    with tempfile.TemporaryDirectory(prefix="chains-") as folder:
        source, library = Path(folder, "chains.c"), Path(folder, "chains.so")
        source.write_text(_source(real, size_bytes, chains))
        options = ("-O3", "-ffp-contract=fast", "-march=native", "-shared", "-fPIC", "-w")
        command = [compiler, *options, "-o", str(library), str(source)]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMPILE_LIMIT_S, check=False
        )
        if done.returncode:
            raise NotMeasuredError(f"{compiler} cannot compile the chains: {done.stderr.strip()[:100]}")
        function: Any = ctypes.CDLL(str(library)).chains
    function.argtypes, function.restype = (ctypes.c_long, ctypes.c_double, ctypes.c_double), ctypes.c_double
    return function  # type: ignore[no-any-return]


def _source(real: str, size_bytes: int, chains: int) -> str:
    """Return the text to compile: a variable for each chain, which a compiler keeps in a register, as no array is."""
    return SOURCE.format(
        real=real,
        size_bytes=size_bytes,
        starts=" ".join(f"vector x{i} = (vector){{0}} + ({real}){i + 2};" for i in range(chains)),
        multiply_adds=" ".join(f"x{i} = x{i} * a + b;" for i in range(chains)),
        sum=" + ".join(f"x{i}" for i in range(chains)),
    )
