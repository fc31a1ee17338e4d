"""Reference values, error bounds and guarded tensors shared by the kernel tests.

Every result is judged against fp64 with a bound on each element. The bound has two parts: half a unit in
the last place (ulp) of the output dtype for the one final rounding, and the error the formula may collect
in fp32 before it. Fixtures hand the checks out, so the test files need no import path of their own.
"""

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from exact import EPS32, TINY32, Expected, assert_close, run_guarded

UNARY = ("copy", "relu", "gelu", "gelu-tanh", "silu")


def _gelu(v: torch.Tensor, argument_error: torch.Tensor) -> Expected:
    exact = 0.5 * v * torch.special.erfc(-v * math.sqrt(0.5))
    # 1 + erf cancels in the negative tail, so the error is absolute there; the slope of GELU stays below 1.13.
    return Expected(exact, (0.5 * v.abs() + exact.abs()) * 4 * EPS32 + 1.13 * argument_error)


def _logistic_product(v: torch.Tensor, argument: torch.Tensor, argument_eps: int) -> Expected:
    exact = v * torch.sigmoid(argument)
    # A relative error of the argument grows by |argument| (1 - logistic), which is large in the negative tail only.
    growth = argument.abs() * torch.sigmoid(-argument)
    return Expected(exact, exact.abs() * (6 + argument_eps * growth) * EPS32 + v.abs() * TINY32)


def expect_elementwise(op: str, x: torch.Tensor, y: torch.Tensor | None = None) -> Expected:
    """Evaluate one operation in fp64; `y` is the second input, a bias or a residual."""
    x = x.double()
    y = torch.zeros_like(x) if y is None else y.double()
    if op == "copy":
        return Expected(x, None)
    if op == "relu":
        return Expected(torch.where(x <= 0, 0.0, x), None)
    if op in ("add", "residual-add", "mul"):
        exact = x * y if op == "mul" else x + y
        return Expected(exact, exact.abs() * EPS32 / 2)
    if op == "gelu":
        return _gelu(x, torch.zeros_like(x))
    if op == "bias-gelu":
        return _gelu(x + y, (x + y).abs() * EPS32 / 2)
    if op == "gelu-tanh":
        return _logistic_product(x, 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3), argument_eps=4)
    gate = _logistic_product(x, x, argument_eps=2)
    if op == "silu":
        return gate
    assert op == "swiglu", f"no reference for {op}"
    exact = gate.exact * y
    return Expected(exact, gate.fp32_error * y.abs() + exact.abs() * EPS32)


def expect_matvec(a: torch.Tensor, x: torch.Tensor, block: int) -> Expected:
    """Evaluate A x in fp64; the error of the sum follows its depth, one step for each block and the last tree."""
    depth = math.ceil(a.shape[1] / block) + math.ceil(math.log2(block)) + 2
    sum_of_magnitudes = a.double().abs() @ x.double().abs()
    return Expected(a.double() @ x.double(), depth * EPS32 / 2 * sum_of_magnitudes)


@pytest.fixture(scope="session", autouse=True)
def empty_compile_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compile everything anew: Triton's cache does not notice every change, a kernel's name among them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield


@pytest.fixture
def check_elementwise() -> Callable[..., None]:
    """Run `launcher` for `op` on the given inputs and compare every element, zeros with their sign."""

    def check(op: str, launcher: Callable[..., None], *inputs: torch.Tensor, device: str = "cpu") -> None:
        out = run_guarded(launcher, inputs, tuple(inputs[0].shape), device).cpu()
        expected = expect_elementwise(op, *inputs)
        assert_close(out, expected, op)
        zero = expected.exact == 0
        if op != "relu":  # the larger of -0 and 0 may be either
            assert torch.equal(torch.signbit(out)[zero], torch.signbit(expected.exact)[zero]), f"{op}: sign of zero"

    return check


@pytest.fixture
def check_matvec() -> Callable[..., None]:
    """Run `launcher` on A, x and compare every element of the product; `block` is the kernel's step."""

    def check(launcher: Callable[..., None], a: torch.Tensor, x: torch.Tensor, block: int, device: str = "cpu") -> None:
        out = run_guarded(launcher, (a, x), (a.shape[0],), device)
        assert_close(out, expect_matvec(a, x, block), f"matvec {tuple(a.shape)}")

    return check


@pytest.fixture
def draw_inputs() -> Callable[..., tuple[torch.Tensor, ...]]:
    """Draw seeded normal inputs of an elementwise operation, n elements in rows of `cols` if it has a bias."""

    def draw(op: str, dtype: torch.dtype, n: int, cols: int | None = None) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(n)

        def normal(*shape: int) -> torch.Tensor:
            return (3 * torch.randn(shape, generator=generator)).to(dtype)

        if op == "bias-gelu":
            cols = cols or n
            return normal(n // cols, cols), normal(cols)
        return (normal(n),) if op in UNARY else (normal(n), normal(n))

    return draw
