"""Inputs, fp64 references and error bounds of the matrix-vector product, in every dtype and with int8 weights."""

import importlib
import math
import mmap
from collections.abc import Callable
from types import ModuleType

import torch
from exact import EPS32, Expected, assert_close, run_guarded

from kernels.versions import modules

DTYPES = {"fp32": torch.float32, "fp16": torch.float16}
FAR_STRIDE = 2**30  # of rows; the third begins at 2^31 elements, which a 32-bit offset does not reach
FAR_ROWS = 4
MAP_NORESERVE = 0x4000  # Linux; named in `mmap` from Python 3.13


def versions() -> dict[str, ModuleType]:
    """Import every version of the family, oldest first."""
    return {version: importlib.import_module(name) for version, name in modules("matvec").items()}


def depth(n: int) -> int:
    """Return the most fp32 additions a term takes part in, for n columns, in any of the versions.

    Version 2 in fp32 has the longest way: blocks of 256 columns one after another, then a tree. The rest is that tree
    (8), or the fixed part of version 3: 16 in an access, 4 loads, 7 for the lanes, 6 and 1 for splits, 2 for edges.
    """
    return math.ceil(n / 256) + 36


def expect(a: torch.Tensor, x: torch.Tensor, scales: torch.Tensor | None = None) -> Expected:
    """Evaluate the product in fp64. NaN and infinities of a row leave no bound for the row, nor need one."""
    a, x = a.double(), x.double()
    exact, magnitude = a @ x, a.abs() @ x.abs()
    error = depth(len(x)) * EPS32 / 2 * magnitude
    if scales is None:
        return Expected(exact, error)
    scaled = exact * scales.double()
    return Expected(scaled, error * scales.double().abs() + scaled.abs() * EPS32 / 2)


def draw(op: str, dtype: torch.dtype, m: int, n: int) -> tuple[torch.Tensor, ...]:
    """Draw seeded inputs."""
    generator = torch.Generator().manual_seed(1000 * m + n)
    x = torch.randn(n, generator=generator).to(dtype)
    if op == "matvec":
        return torch.randn((m, n), generator=generator).to(dtype), x
    a = torch.randint(-128, 128, (m, n), generator=generator, dtype=torch.int8)
    return a, x, torch.rand(m, generator=generator) / 64 - 0.004


def draw_integers(op: str, dtype: torch.dtype, m: int, n: int) -> tuple[torch.Tensor, ...]:
    """Draw inputs whose products and sums are integers that fp32 holds, so that the result must be exact."""
    generator = torch.Generator().manual_seed(n)
    small = torch.randint(-3, 4, (m + 1, n), generator=generator)
    x = small[m].to(dtype)
    if op == "matvec":
        return small[:m].to(dtype), x
    return small[:m].to(torch.int8), x, torch.exp2(torch.arange(m) % 3 - 1.0)


def draw_cancelling(op: str, n: int) -> tuple[torch.Tensor, ...]:
    """Return fp16 inputs whose sum leaves the range of fp16 on the way and comes back."""
    a = torch.full((2, n), 100, dtype=torch.int8 if op == "matvec-int8" else torch.float16)
    a[:, n // 2 :] = -100
    a[1, 0] = 50
    return a, torch.full((n,), 200.0).half(), *([torch.ones(2)] if op == "matvec-int8" else [])


def check(op: str, launcher: Callable[..., None], *inputs: torch.Tensor, device: str = "cpu") -> None:
    """Run `launcher` between guard elements and hold every element of the product against fp64."""
    m = inputs[0].shape[0]
    out = run_guarded(launcher, inputs, (m,), device, out_dtype=inputs[1].dtype)
    assert_close(out, expect(*inputs), f"{op} {tuple(inputs[0].shape)}")


def check_exact(op: str, launcher: Callable[..., None], *inputs: torch.Tensor, device: str = "cpu") -> None:
    """Run `launcher` on integers and compare bit for bit with the rounded result."""
    out = run_guarded(launcher, inputs, (inputs[0].shape[0],), device, out_dtype=inputs[1].dtype)
    exact = expect(*inputs).exact
    assert torch.equal(out.cpu(), exact.to(out.dtype)), f"{op} {tuple(inputs[0].shape)}: integers come out inexact"


def check_padded(op: str, launcher: Callable[..., None], m: int, n: int, stride: int, dtype: torch.dtype) -> None:
    """Run `launcher` on rows of n elements, `stride` apart, with what must not be read in between."""
    a, *rest = draw(op, dtype, m, n)
    storage = (
        torch.full((m, stride), 113, dtype=torch.int8) if op == "matvec-int8" else torch.full((m, stride), math.nan)
    )
    storage = storage.to(a.dtype)
    storage[:, :n] = a
    # On the device of the launch `a` lies dense between guards; the view into `storage` takes its place.
    check(op, lambda _, *others, out: launcher(storage[:, :n], *others, out=out), a, *rest)


def far_rows(n: int, stride: int, dtype: torch.dtype) -> torch.Tensor:
    """Return rows of 1, 2, 3 ... in memory that is mapped but never filled in between.

    As much is mapped before the first row as an offset that wraps round to a negative number reaches: it reads zeros
    there, where elsewhere it would end the process.
    """
    before, last = 2**31, (FAR_ROWS - 1) * stride + n
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    memory = mmap.mmap(-1, (before + last) * dtype.itemsize, flags=flags)
    rows = torch.frombuffer(memory, dtype=dtype)[before:].as_strided((FAR_ROWS, n), (stride, 1))
    for number, row in enumerate(rows, start=1):
        row.fill_(number)
    return rows


def check_far_rows(op: str, launcher: Callable[..., None], stride: int, dtype: torch.dtype = torch.float16) -> None:
    """Multiply rows that begin beyond 2^31 elements by a vector of ones."""
    is_int8 = op == "matvec-int8"
    a = far_rows(40, stride, torch.int8 if is_int8 else dtype)
    out = torch.zeros(FAR_ROWS, dtype=dtype)
    launcher(a, torch.ones(40, dtype=dtype), *([torch.ones(FAR_ROWS)] if is_int8 else []), out=out)
    assert out.tolist() == [40.0 * number for number in range(1, FAR_ROWS + 1)], f"{op}: rows beyond 2^31 elements"
