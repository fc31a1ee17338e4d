"""Compiles launches beforehand, in many processes at once, so that nothing is compiled while something is timed.

A launch goes through Triton as ever, up to where the binary would be loaded. So what it leaves in Triton's cache is
what the same launch on tensors of the GPU finds there.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from kernels import launch, workers
from kernels.launch import Gpu

Launch = Callable[[], object]
"""Calls a launcher on tensors of the device `meta`, which have a shape and no memory. It must be picklable: a
`functools.partial` of a function of a module, such as `launch_version`."""

NO_DEVICE = 1_000_000
"""Number of the device that stands in for a GPU, which no real one has: Triton keeps by device what it has compiled."""


def precompile(launches: Mapping[str, Launch], gpu: Gpu | None = None, processes: int | None = None) -> dict[str, str]:
    """Compile launches in processes of their own; stderr is told how far it is.

    Time nothing meanwhile: all cores are busy. This process starts nothing on the GPU, and neither do the others.

    Args:
        launches: By a name of each.
        gpu: What to compile for; None is the current CUDA device.
        processes: How many share the work; None is one for each core.

    Returns:
        What does not compile, by name, each with the first line of the reason. The rest is in Triton's cache.
    """
    if gpu is None:
        import torch

        gpu = launch.gpu_of(torch.device("cuda", torch.cuda.current_device()))
    chunks = [[item] for item in launches.items()]
    wanted = min(processes or workers.cores(), len(chunks))
    found: dict[str, str] = {}
    try:
        for chunk in workers.in_processes(partial(_compile, gpu), chunks, wanted) if chunks else ():
            found |= chunk
    except BrokenProcessPool:
        found = dict.fromkeys(launches, workers.ENDED) | found
    return {name: found[name] for name in launches if found.get(name)}


def launch_version(module: str, op: str, *inputs: Any, out: Any) -> None:
    """Call the launcher of an operation by the name of its version's module, which can be pickled where it cannot."""
    importlib.import_module(module).KERNELS[op](*inputs, out=out)


def _compile(gpu: Gpu, chunk: list[tuple[str, Launch]]) -> dict[str, str]:
    """Return by name why a launch does not compile, in a line; nothing where it does."""
    reasons = dict.fromkeys((name for name, _ in chunk), "")
    with compile_only(gpu):
        for name, call in chunk:
            try:
                call()
            except Exception as error:  # whatever a launcher, Triton and its assembler raise; the others go on
                lines = [line for line in str(error).splitlines() if line.strip()]
                reasons[name] = f"{type(error).__name__}: {lines[0].strip() if lines else 'no message'}"[:300]
    return reasons


@contextmanager
def compile_only(gpu: Gpu) -> Iterator[list[Any]]:
    """Let launches compile for a GPU that need not be here, and start nothing.

    Yields:
        What was compiled, in order; a kernel that had been compiled before is among it too.
    """
    compiled: list[Any] = []
    run = JITFunction.run

    def warm_up(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        compiled.append(run(kernel, *args, grid=grid, warmup=True, **kwargs))
        return compiled[-1]

    with (
        patch.object(JITFunction, "run", warm_up),
        patch.object(triton.runtime.driver, "_active", _NoDriver(gpu.arch)),
        patch.object(launch, "stand_in", gpu),
        patch.object(launch, "INTERPRETED", True),  # tensors need not be on a GPU
    ):
        yield compiled


class _NoDriver:
    """A driver for a GPU that is not there: it answers what Triton asks before it compiles."""

    def __init__(self, arch: int) -> None:
        self._arch = arch

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._arch, 32)

    def get_current_device(self) -> int:
        return NO_DEVICE + self._arch

    def get_current_stream(self, device: int) -> int:
        return 0
