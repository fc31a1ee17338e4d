"""Launchers on a machine without a GPU: what they ask the compiler for, and that they refuse CPU tensors.

The interpreter ignores compiler options and an ahead-of-time compile sees no launcher, so neither notices an
option or an argument that a real launch would reject. Here the launcher runs up to the point where the
finished binary would go to the device.
"""

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

import kernels.launch

pytestmark = pytest.mark.skipif(kernels.launch.INTERPRETED, reason="interpreted kernels are not compiled")


class NoDevice:
    """Stands in for the driver of a GPU that is not there; its number is used by no real one."""

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 1_000_000

    def get_current_stream(self, device):
        return 0


@pytest.fixture
def launches(monkeypatch):
    """Grid and compiled kernel of every launch, in order; nothing is executed."""
    run, seen = JITFunction.run, []

    def compile_only(kernel, *args, grid, warmup, **kwargs):
        seen.append((grid, run(kernel, *args, grid=grid, warmup=True, **kwargs)))

    monkeypatch.setattr(JITFunction, "run", compile_only)
    monkeypatch.setattr(kernels.launch, "INTERPRETED", True)  # so that CPU tensors pass
    monkeypatch.setattr(triton.runtime.driver, "_active", NoDevice())
    monkeypatch.setattr(triton.knobs.language, "default_fp_fusion", False)  # the default to come in Triton 3.10
    return seen


def divisible(compiled):
    names = compiled.src.fn.arg_names
    return {names[path[0]] for path, attributes in compiled.src.attrs.items() if attributes}
