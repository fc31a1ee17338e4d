"""Launchers on a machine without a GPU: what they ask the compiler for, and that they refuse CPU tensors.

The interpreter ignores compiler options and an ahead-of-time compile sees no launcher, so neither notices an
option or an argument that a real launch would reject. Here the launcher runs up to the point where the
finished binary would go to the device.
"""

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

import kernels.launch
from kernels.elementwise import v1_flat
from kernels.matvec import v1_rows

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


@pytest.mark.parametrize("dtype", kernels.launch.DTYPES, ids=str)
@pytest.mark.parametrize("op", v1_flat.KERNELS)
def test_elementwise_launch(launches, op, dtype, draw_inputs):
    inputs = draw_inputs(op, dtype, 3 * 1040, 1040)
    v1_flat.KERNELS[op](*inputs, out=torch.empty_like(inputs[0]))
    [((programs,), compiled)] = launches
    block = 2048 // dtype.itemsize  # 128 threads of 16 bytes
    assert programs == -(-3 * 1040 // block)
    assert compiled.metadata.num_warps == 4
    assert compiled.metadata.enable_fp_fusion is True
    aligned = {"x_ptr", "out_ptr"} | ({"y_ptr"} if len(inputs) == 2 else set())
    assert divisible(compiled) == ({"x_ptr", "bias_ptr", "out_ptr", "cols"} if op == "bias-gelu" else aligned)
    assert compiled.src.signature["n"] == "i32"


@pytest.mark.parametrize(("n", "aligned"), [(1040, True), (1041, False), (1, False)])
def test_matvec_launch(launches, n, aligned):
    v1_rows.KERNELS["matvec"](torch.ones(9, n), torch.ones(n), out=torch.empty(9))
    [((programs,), compiled)] = launches
    assert programs == 3
    assert compiled.metadata.enable_fp_fusion is True
    assert ("row_stride" in divisible(compiled)) is aligned


def test_odd_and_even_sizes_share_one_binary(launches):
    for n in (1, 16, 33):
        v1_flat.KERNELS["relu"](torch.ones(n), out=torch.empty(n))
    assert len({compiled.hash for _, compiled in launches}) == 1


@pytest.mark.parametrize("op", v1_flat.KERNELS)
def test_tensors_in_host_memory_are_refused(op, draw_inputs):
    inputs = draw_inputs(op, torch.float32, 8)
    with pytest.raises(ValueError, match=rf"^{op} v1: x is on cpu; Triton needs a GPU, device 'cuda'$"):
        v1_flat.KERNELS[op](*inputs, out=torch.empty_like(inputs[0]))


def test_matrix_in_host_memory_is_refused():
    with pytest.raises(ValueError, match=r"^matvec v1: a is on cpu; Triton needs a GPU, device 'cuda'$"):
        v1_rows.KERNELS["matvec"](torch.ones(2, 2), torch.ones(2), out=torch.ones(2))
