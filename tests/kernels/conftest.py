"""Reference values, error bounds and guarded tensors shared by the kernel tests.

Every result is judged against fp64 with a bound on each element. The bound has two parts: half a unit in
the last place (ulp) of the output dtype for the one final rounding, and the error the formula may collect
in fp32 before it. Fixtures hand the checks out, so the test files need no import path of their own.
"""

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from exact import EPS32, Expected, assert_close, run_guarded


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
def check_matvec() -> Callable[..., None]:
    """Run `launcher` on A, x and compare every element of the product; `block` is the kernel's step."""

    def check(launcher: Callable[..., None], a: torch.Tensor, x: torch.Tensor, block: int, device: str = "cpu") -> None:
        out = run_guarded(launcher, (a, x), (a.shape[0],), device)
        assert_close(out, expect_matvec(a, x, block), f"matvec {tuple(a.shape)}")

    return check
