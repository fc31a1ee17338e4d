"""Inputs, fp64 references and error bounds of the reductions to one number."""

import importlib
from collections.abc import Callable
from types import ModuleType

import torch
from exact import EPS32, Expected, assert_close, run_guarded

from kernels.versions import modules

DTYPES = {"fp32": torch.float32, "fp16": torch.float16}


def versions() -> dict[str, ModuleType]:
    """Import every version of the family, oldest first."""
    return {version: importlib.import_module(name) for version, name in modules("reduction").items()}


def depth(n: int) -> int:
    """Return the most fp32 roundings a term goes through, for n elements, in any of the versions.

    Version 2: one product, ACCESS + LOADS + 2 log2(LANES) + SLOTS / LANES = 8 + 8 + 16 + 4, and a round for each
    49,152 elements or more (dot in fp32 with 12 programs, in the interpreter). Version 1 stays below that.
    """
    return 37 + n // 49152


def expect(x: torch.Tensor, y: torch.Tensor | None = None) -> Expected:
    """Evaluate the sum in fp64."""
    terms = x.double() if y is None else x.double() * y.double()
    return Expected(terms.sum(), depth(len(x)) * EPS32 / 2 * terms.abs().sum())


def draw(op: str, dtype: torch.dtype, n: int) -> tuple[torch.Tensor, ...]:
    """Draw seeded normal inputs."""
    generator = torch.Generator().manual_seed(n)
    return tuple(torch.randn(n, generator=generator).to(dtype) for _ in range(1 if op == "sum" else 2))


def draw_integers(op: str, dtype: torch.dtype, n: int) -> tuple[torch.Tensor, ...]:
    """Draw integers, none of them 0, whose sums fp32 holds, so that the result must be exact and miss none of them."""
    generator = torch.Generator().manual_seed(n)

    def integers() -> torch.Tensor:
        size = torch.randint(1, 4, (n,), generator=generator)
        return (size * (2 * torch.randint(0, 2, (n,), generator=generator) - 1)).to(dtype)

    return tuple(integers() for _ in range(1 if op == "sum" else 2))


def draw_cancelling(op: str, n: int) -> tuple[torch.Tensor, ...]:
    """Return fp16 inputs whose sum leaves the range of fp16 on the way and comes back."""
    x = torch.full((n,), 200.0).half()
    x[n // 2 :] = -200.0
    x[0] = 100.0
    return (x,) if op == "sum" else (x, torch.full((n,), 200.0).half())


def check(op: str, launcher: Callable[..., None], *inputs: torch.Tensor, device: str = "cpu") -> None:
    """Run `launcher` between guard elements and hold the number against fp64."""
    out = run_guarded(launcher, inputs, (), device)
    assert_close(out[None], _row(expect(*inputs)), f"{op} of {len(inputs[0])}")


def check_exact(op: str, launcher: Callable[..., None], *inputs: torch.Tensor, device: str = "cpu") -> None:
    """Run `launcher` on integers and compare bit for bit with the rounded result."""
    out = run_guarded(launcher, inputs, (), device)
    exact = expect(*inputs).exact
    assert torch.equal(out.cpu(), exact.to(out.dtype)), f"{op} of {len(inputs[0])}: {out} where {exact} is exact"


def _row(number: Expected) -> Expected:
    return Expected(number.exact[None], number.fp32_error[None])
