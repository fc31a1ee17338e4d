"""Choosing a GPU: slugs, exact driver names, what an unknown GPU gets, and the peak of each dtype."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from roofline.hardware.gpu import (
    PEAKS_OF_DTYPE,
    Gpu,
    UnknownGpuError,
    clock_limited_peak_flops_per_s,
    derive_unknown_gpu,
    derived_bandwidth_bytes_per_s,
    find_gpu,
    load_gpus,
    load_rates,
    match_driver_name,
    peak_key,
)
from roofline.work import DTYPES

GPUS = load_gpus()
MIB = 1 << 20
GIB = 1 << 30


def test_every_dtype_has_a_rule():
    assert tuple(PEAKS_OF_DTYPE) == DTYPES


# Dense peaks, TFLOP/s, as the datasheets give them.
@pytest.mark.parametrize(
    ("slug", "peaks"),
    [
        (
            "h100-sxm",
            {
                "fp64": 66.9,
                "fp32": 66.9,
                "tf32": 494.7,
                "fp16": 989.4,
                "bf16": 989.4,
                "fp8e4m3": 1978.9,
                "fp8e5m2": 1978.9,
                "int8": 1978.9,
            },
        ),
        ("a100-sxm-80gb", {"fp64": 19.5, "fp32": 19.5, "tf32": 156, "fp16": 312, "bf16": 312, "int8": 624}),
        ("t4", {"fp64": 0.254, "fp32": 8.1, "fp16": 65, "int8": 130}),
        ("p100-sxm-16gb", {"fp64": 5.3, "fp32": 10.6, "fp16": 21.2}),
        ("mi210", {"fp64": 45.3, "fp32": 45.3, "fp16": 181, "bf16": 181, "int8": 181}),
    ],
)
def test_peaks_by_dtype(slug, peaks):
    assert GPUS[slug].peaks_flops_per_s == {dtype: round(peak * 1e12) for dtype, peak in peaks.items()}


def test_fp16_accumulation_never_counts():
    """GeForce doubles fp16 there: 330.3 on RTX 4090, where sums in fp32 give 165.2."""
    assert GPUS["rtx-4090"].peaks_flops_per_s["fp16"] == 165_200_000_000_000
    assert GPUS["rtx-4090"].stated_peaks_flops_per_s["fp16_tensor_fp16acc"] == 330_300_000_000_000


def test_vector_peaks():
    assert GPUS["h100-sxm"].vector_peaks_flops_per_s == {"fp64": 33.5e12, "fp32": 66.9e12, "fp16": 133.8e12}


def test_fp4_of_amd_is_no_nvfp4():
    assert "nvfp4" not in GPUS["mi355x"].peaks_flops_per_s
    assert GPUS["mi355x"].lacks("nvfp4")
    assert GPUS["b200-sxm"].peaks_flops_per_s["nvfp4"] == 9_000_000_000_000_000


@pytest.mark.parametrize(
    ("slug", "dtype", "lacks"),
    [
        ("t4", "bf16", True),
        ("t4", "fp64", False),
        ("p100-sxm-16gb", "fp16", False),
        ("a100-sxm-80gb", "fp8e4m3", True),
        ("h100-sxm", "nvfp4", True),
        ("h100-sxm", "bf16", False),
    ],
)
def test_lacking_a_dtype(slug, dtype, lacks):
    assert GPUS[slug].lacks(dtype) is lacks


def test_not_knowing_a_peak_is_not_lacking_it():
    assert not derive_unknown_gpu("Some GPU").lacks("bf16")


@pytest.mark.parametrize("ask", [GPUS["t4"].lacks, lambda dtype: peak_key({}, dtype, None)])
def test_unknown_dtype(ask):
    with pytest.raises(ValueError, match="unknown dtype 'fp17'; known: fp64"):
        ask("fp17")


@pytest.mark.parametrize("slug", GPUS)
def test_find_by_slug(slug):
    assert find_gpu(slug).slug == slug


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("h100", "h100 is ambiguous: h100-nvl, h100-pcie, h100-sxm"),
        ("a100-80gb", "a100-80gb is ambiguous: a100-pcie-80gb, a100-sxm-80gb"),
        ("b200", "unknown GPU 'b200': did you mean b200-sxm?"),
        ("H100-SXM", "unknown GPU 'H100-SXM': did you mean h100-sxm?"),
        ("NVIDIA H200", "unknown GPU 'NVIDIA H200': did you mean h200-sxm?"),
        ("zzz", "unknown GPU 'zzz': `python -m roofline gpus` lists those it knows"),
        ("", "unknown GPU '': `python -m roofline gpus` lists those it knows"),
        ("\x1b[31mh", r"unknown GPU '\x1b[31mh': `python -m roofline gpus` lists those it knows"),
    ],
)
def test_find_unknown(asked, message):
    with pytest.raises(UnknownGpuError) as caught:
        find_gpu(asked)
    assert str(caught.value) == message


def test_find_typo():
    with pytest.raises(UnknownGpuError, match=r"did you mean .*\bh100-sxm\b"):
        find_gpu("h100-smx")


@pytest.mark.parametrize(
    ("driver_name", "slug"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA H200 NVL", "h200-nvl"),
        ("NVIDIA GH200 480GB", "gh200-96gb"),
        ("NVIDIA GH200 144G HBM3e", "gh200-144gb"),
        ("NVIDIA H800", "h800-sxm"),
        ("NVIDIA H20", "h20-sxm"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40gb"),
        ("A100-SXM4-40GB", "a100-sxm-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40", "l40"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA B200", "b200-sxm"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA B300 SXM6 AC", "b300-sxm"),
        ("Tesla T4", "t4"),
        ("Tesla V100-SXM2-32GB", "v100-sxm-32gb"),
        ("AMD Instinct MI250X/MI250", "mi250x-gcd"),
    ],
)
def test_match_exact_driver_name(driver_name, slug):
    match = match_driver_name(driver_name)
    assert match.gpu is GPUS[slug]
    assert not match.ambiguous


@pytest.mark.parametrize(
    "driver_name",
    [
        "NVIDIA H100",  # the 94 GB SXM5 card
        "NVIDIA A100",
        "NVIDIA A100-SXM-64GB",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA H20-3e",
        "NVIDIA H800 NVL",
        "NVIDIA L40G",
        "NVIDIA RTX A4000",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "nvidia h200",
        "GH100 [H100 SXM5 80GB]",
        "",
    ],
)
def test_no_match_by_part_of_a_name(driver_name):
    match = match_driver_name(driver_name)
    assert match.gpu is None
    assert match.ambiguous == ()
    assert "no GPU of the table" in match.reason


@pytest.mark.parametrize("slug", [slug for slug, gpu in GPUS.items() if gpu.memory_reported_bytes])
def test_match_with_the_memory_that_devices_report(slug):
    gpu = GPUS[slug]
    match = match_driver_name(gpu.driver_names[0], gpu.memory_reported_bytes, sm_count=gpu.sm_count)
    assert match.gpu is gpu


def twins(one_gib: int, other_gib: int) -> dict[str, Gpu]:
    return {
        f"twin-{size}gb": Gpu(slug=f"twin-{size}gb", name="Twin", driver_names=("Twin",), memory_bytes=size * GIB)
        for size in (one_gib, other_gib)
    }


@pytest.mark.parametrize(
    ("sizes", "reported_mib", "slug"),
    [
        ((40, 80), 40326, "twin-40gb"),
        ((40, 80), 81089, "twin-80gb"),
        ((80, 94), 81089, "twin-80gb"),
        ((80, 94), 95830, "twin-94gb"),
        ((12, 16), 15109, "twin-16gb"),
        ((40, 48), 45589, "twin-48gb"),
    ],
)
def test_a_shared_name_is_told_apart_by_memory(sizes, reported_mib, slug):
    match = match_driver_name("Twin", reported_mib * MIB, twins(*sizes))
    assert match.gpu is not None
    assert match.gpu.slug == slug


@pytest.mark.parametrize(
    ("sizes", "reported_mib"),
    [((40, 80), None), ((180, 192), 182642)],  # 182642 MiB: what a B200 reports, sold with 180 or 192 GB
)
def test_a_shared_name_may_stay_ambiguous(sizes, reported_mib):
    match = match_driver_name("Twin", None if reported_mib is None else reported_mib * MIB, twins(*sizes))
    assert match.gpu is None
    assert [gpu.slug for gpu in match.ambiguous] == [f"twin-{size}gb" for size in sizes]
    assert match.reason == f"the driver name 'Twin' is ambiguous: twin-{sizes[0]}gb, twin-{sizes[1]}gb"


def test_a_shared_name_is_told_apart_by_sms():
    """The name of MI250X and MI250 can be the same; 110 and 104 CUs per GCD tell them apart."""
    mi250x = GPUS["mi250x-gcd"]
    table = {"mi250x-gcd": mi250x, "mi250-gcd": replace(mi250x, slug="mi250-gcd", sm_count=104)}
    found = match_driver_name("AMD Instinct MI250X/MI250", 65520 * MIB, table, sm_count=104)
    assert found.gpu is table["mi250-gcd"]
    assert len(match_driver_name("AMD Instinct MI250X/MI250", 65520 * MIB, table).ambiguous) == 2


@pytest.mark.parametrize(
    ("driver_name", "memory_bytes", "sm_count", "shown"),
    [
        ("Orin", 30 * GIB, None, "30.0 GiB"),  # AGX Orin 32GB
        ("Orin", None, 8, "8 SMs"),  # Orin NX
        ("NVIDIA H100 80GB HBM3", 9856 * MIB, 16, "9.6 GiB and 16 SMs"),  # a MIG slice
        ("NVIDIA H100 80GB HBM3", 94 * GIB, 132, "94.0 GiB"),
        ("NVIDIA H100 80GB HBM3", 0, None, "0.0 GiB"),
    ],
)
def test_a_name_whose_device_does_not_fit_gives_no_peaks(driver_name, memory_bytes, sm_count, shown):
    match = match_driver_name(driver_name, memory_bytes, sm_count=sm_count)
    assert match.gpu is None
    assert match.ambiguous == ()
    assert shown in match.reason


@pytest.mark.parametrize(
    ("bits", "clock_mhz", "gb_per_s"),
    [
        (5120, 2619, 3352),  # H100 SXM
        (5120, 1593, 2039),  # H100 PCIe
        (6144, 3201, 4917),  # H200
        (8192, 3996, 8184),  # B200
        (256, 5001, 320),  # T4
    ],
)
def test_derived_bandwidth(bits, clock_mhz, gb_per_s):
    assert round(derived_bandwidth_bytes_per_s(clock_mhz * 1e6, bits) / 1e9) == gb_per_s


def test_unknown_gpu_has_derived_bandwidth_and_no_peak():
    gpu = derive_unknown_gpu("NVIDIA H100", 2.619e9, 5120, 95_830 * MIB, 132, "9.0")
    assert gpu.memory_bandwidth_bytes_per_s == pytest.approx(3352.32e9)
    assert gpu.bandwidth_kind == "derived"
    assert gpu.kind_of("memory_bandwidth_bytes_per_s").startswith("derived: bandwidth from 5120 bit x 2619 MHz")
    assert gpu.peaks_flops_per_s == gpu.vector_peaks_flops_per_s == gpu.stated_peaks_flops_per_s == {}
    assert gpu.rate_class is None
    assert clock_limited_peak_flops_per_s(gpu, "bf16", 1.98e9) is None
    assert (gpu.sm_count, gpu.memory_bytes, gpu.compute_capability) == (132, 95_830 * MIB, "9.0")


@pytest.mark.parametrize("clock", [None, 0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("bits", [None, 0, 5120])
def test_unknown_gpu_without_a_usable_clock_has_no_bandwidth(clock, bits):
    gpu = derive_unknown_gpu("Some GPU", clock, bits, 0, None, None)
    assert gpu.memory_bandwidth_bytes_per_s is None
    assert gpu.memory_bytes is None
    assert gpu.sm_count is None


def test_integrated_gpu_has_no_derived_bandwidth():
    """Jetson Orin reports 128 bit at 1.3 GHz, which would be 41.6 GB/s; it has 204.8."""
    assert derived_bandwidth_bytes_per_s(1.3e9, 128) == 41.6e9
    assert derive_unknown_gpu("Orin", 1.3e9, 128, 30 * GIB, 14, "8.7").memory_bandwidth_bytes_per_s is None


@pytest.mark.parametrize(
    ("driver_name", "slug"),
    [
        ("H100 SXM", "unknown-h100-sxm"),  # not the slug of a GPU that is in the table
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "unknown-nvidia-h100-80gb-hbm3-mig-1g-10gb"),
        ("../../etc/passwd", "unknown-etc-passwd"),
        ("\x1b[31m", "unknown-31m"),
        ("", "unknown"),
    ],
)
def test_slug_of_an_unknown_gpu_is_safe_in_a_path(driver_name, slug):
    assert derive_unknown_gpu(driver_name).slug == slug
    assert slug not in GPUS


@pytest.mark.parametrize(
    ("slug", "dtype", "clock_mhz", "tflops_per_s"),
    [
        ("h100-sxm", "bf16", 1830, 989.4),
        ("h100-sxm", "bf16", 1980, 1070.5),
        ("h100-sxm", "fp64", 1980, 66.9),
        ("a100-sxm-80gb", "tf32", 1410, 156),
        ("a10g", "bf16", 1710, 70.0),
        ("b300-sxm", "nvfp4", 1856, 13500),
        ("mi300x", "fp8e4m3", 2100, 2614.9),
        ("p100-sxm-16gb", "fp16", 1480, 21.2),
    ],
)
def test_clock_limited_peak(slug, dtype, clock_mhz, tflops_per_s):
    peak = clock_limited_peak_flops_per_s(GPUS[slug], dtype, clock_mhz * 1e6)
    assert peak == pytest.approx(tflops_per_s * 1e12, rel=0.002)


def test_clock_limited_peak_of_a_missing_dtype():
    assert clock_limited_peak_flops_per_s(GPUS["t4"], "bf16", 1.59e9) is None


@pytest.mark.parametrize(
    ("name", "key", "rate"),
    [  # stated by NVIDIA on its developer forum (t/244727), and by Proton for Blackwell
        ("sm_70", "fp16_tensor", 1024),
        ("sm_80", "bf16_tensor", 2048),
        ("sm_90", "bf16_tensor", 4096),
        ("sm_100", "bf16_tensor", 8192),
        ("sm_100", "fp8_tensor", 16384),
    ],
)
def test_published_rates(name, key, rate):
    assert load_rates()[name][key] == rate
