"""FLOPs and compulsory bytes against the published reference intensities, and where our count
differs from them.
"""

import pytest

from roofline.model import intensity
from roofline.work import (
    DTYPE_BITS,
    Work,
    bytes_of,
    dtype_named,
    elementwise_work,
    matmul_work,
    matvec_work,
    reduction_work,
)

N = 2**20


def of(work):
    value = intensity(work.flops, work.bytes)
    assert value is not None
    return value


def test_reference_intensities_in_bf16():
    """Source: Stanford CS336, lecture 2 (2025): ReLU 1/4, GELU 5 with 20 FLOPs each, dot 1/2,
    matmul n/3.
    """
    assert of(elementwise_work(N, 1, 1, "bf16")) == 0.25
    assert of(elementwise_work(N, 20, 1, "bf16")) == 5
    assert of(reduction_work(N, 2, 2, "bf16")) == pytest.approx(0.5, abs=3e-7)
    assert of(matvec_work(1024, 1024, "bf16")) == pytest.approx(0.998, abs=5e-4)
    assert of(matmul_work(1024, 1024, 1024, "bf16", "bf16")) == pytest.approx(341.33, abs=5e-3)


def test_half_a_byte_is_rounded_up():
    assert [bytes_of(n, "nvfp4") for n in (0, 1, 2, 3)] == [0, 1, 1, 2]
    assert bytes_of(3, "fp64") == 24


def test_an_unknown_dtype_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="unknown dtype 'bf17'; known: fp64, fp32"):
        bytes_of(1, "bf17")


@pytest.mark.parametrize("bad", [-1, 1.0, True, "1", None])
@pytest.mark.parametrize("name", ["flops", "bytes_read", "bytes_written"])
def test_only_whole_numbers_are_counts(name, bad):
    values = {"flops": 1, "bytes_read": 1, "bytes_written": 1} | {name: bad}
    with pytest.raises(ValueError, match=f"{name} must be an integer"):
        Work(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("word", "dtype"),
    [
        ("torch.bfloat16", "bf16"),
        ("Half", "fp16"),
        ("float8_e4m3fn", "fp8e4m3"),
    ],
)
def test_a_dtype_is_known_by_the_name_that_torch_has_for_it(word, dtype):
    assert dtype_named(word) == dtype


def test_a_dtype_keeps_its_name_and_a_word_that_is_none_stays_as_it_is():
    assert [dtype_named(name) for name in DTYPE_BITS] == list(DTYPE_BITS)
    assert dtype_named("Complex64") == "Complex64"
