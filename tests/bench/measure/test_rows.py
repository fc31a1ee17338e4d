"""Cases rejected before allocation: an unsupported dtype, a shape, too much memory."""

from dataclasses import replace

import pytest
from test_measure_row import CPU, GPU, MATMUL_OP, matmul_case

from bench.harness.device.device import Device
from bench.harness.measure.rows import CPU_DTYPES, Settings, has_dtype, one_line, plan
from results.record import Record
from results.store.runfile import encode_line

# From which compute capability on NVIDIA GPUs multiply in a dtype: Volta 7.0, Ampere 8.0, Ada 8.9,
# Hopper 9.0, Blackwell 10.0.
ALWAYS = {"fp64", "fp32", "fp16"}
AMPERE = ALWAYS | {"tf32", "bf16", "int8"}
ADA = AMPERE | {"fp8e4m3", "fp8e5m2"}
DTYPES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8e4m3", "fp8e5m2", "int8")


@pytest.mark.parametrize(
    ("capability", "has"),
    [
        ("5.2", {"fp64", "fp32"}),
        ("7.0", ALWAYS),
        ("7.5", ALWAYS | {"int8"}),
        ("8.0", AMPERE),
        ("8.6", AMPERE),
        ("8.9", ADA),
        ("9.0", ADA),
        ("10.0", ADA),
        ("12.1", ADA),
    ],
)
def test_the_dtypes_of_a_gpu_follow_its_compute_capability(capability, has):
    device = replace(GPU, compute_capability=capability)
    assert {dtype for dtype in DTYPES if has_dtype(device, dtype)} == has


def test_a_cpu_has_no_tf32_and_no_fp8():
    assert (
        {dtype for dtype in DTYPES if has_dtype(CPU, dtype)} == set(CPU_DTYPES) == AMPERE - {"tf32"}
    )


@pytest.mark.parametrize(
    ("interpreter", "said"),
    [
        ("", "a Triton kernel needs a GPU; without one, use TRITON_INTERPRET=1 "),
        ("1", "Triton's autotuner needs a GPU; with TRITON_INTERPRET=1, launch the kernel "),
    ],
)
def test_a_kernel_without_a_gpu_gets_an_advice_that_is_not_followed_yet(
    monkeypatch, interpreter, said
):
    monkeypatch.setenv("TRITON_INTERPRET", interpreter)
    error = RuntimeError("0 active drivers ([]). There should only be one.")
    assert one_line(error).startswith(said)


@pytest.fixture
def free(monkeypatch):
    monkeypatch.setattr(Device, "free_bytes", lambda self: 141_000_000_000)


@pytest.mark.parametrize(
    ("case", "device", "reason"),
    [
        (matmul_case(64, 64, 64, "fp8e4m3", "nt"), CPU, "a CPU has no fp8e4m3 arithmetic"),
        (matmul_case(64, 64, 64, "tf32"), CPU, "a CPU has no tf32 arithmetic"),
        (
            matmul_case(64, 64, 64),
            replace(GPU, compute_capability="7.0"),
            "NVIDIA Test has no bf16 arithmetic",
        ),
        (
            matmul_case(64, 64, 64, "fp8e4m3"),
            GPU,
            "fp8e4m3 tensor cores take layout nt only; use --layout nt",
        ),
        (
            matmul_case(64, 40, 64, "fp8e4m3", "nt"),
            GPU,
            "fp8e4m3 needs n and k that are multiples of 16",
        ),
        (matmul_case(64, 64, 36, "int8"), GPU, "int8 needs n and k that are multiples of 8"),
        (matmul_case(16, 64, 64, "int8"), GPU, "int8 needs m above 16 in torch"),
        (
            matmul_case(64, 64, 64, "int8", batch=2),
            CPU,
            "int8 has no batched product in torch; use --batch 1",
        ),
    ],
)
def test_unsupported_cases_are_rejected_with_the_reason(free, case, device, reason):
    rows = plan(MATMUL_OP, case, ["torch", "torch-compile"], device, Settings())
    assert [(row.provider, row.refused.status, row.refused.reason) for row in rows] == [
        ("torch", "skipped", reason),
        ("torch-compile", "skipped", reason),
    ]


def test_memory_is_estimated_before_allocation(free):
    # 150 000 x 150 000 in bf16 is 45 GB a matrix; three of them, twice, and B in fp64, squared in
    # place.
    rows = plan(MATMUL_OP, matmul_case(150_000, 150_000, 150_000), ["torch"], CPU, Settings())
    assert rows[0].refused.reason == "needs 450.0 GB, the device has 141 GB free"


@pytest.mark.parametrize("extent", [10**5, 10**12, 10**18 - 1])
def test_rejected_rows_of_any_size_can_be_saved(free, extent):
    row = plan(
        MATMUL_OP,
        matmul_case(extent, extent, extent, batch=10**9 - 1),
        ["torch"],
        CPU,
        Settings(),
    )[0]
    assert "the device has 141 GB free" in row.refused.reason
    assert len(row.refused.reason) < 80
    assert Record.from_dict(row.refused.to_dict()) == row.refused
    assert encode_line(row.refused)
