"""Choosing a GPU: slugs, exact driver names, what an unknown GPU gets, and the peak of each
dtype.
"""

from dataclasses import replace

import pytest

from roofline import gpu_table
from roofline.gpu_table import (
    UnknownGpuError,
    clock_limited_flops_per_s,
    find_gpu,
    gpus_named,
    lacks,
    load_gpus,
    unknown_gpu,
)
from roofline.machine import Machine

GPUS = load_gpus()
MIB = 1 << 20
GIB = 1 << 30
H100_TFLOPS = {
    **{"fp64": 66.9, "fp32": 66.9, "tf32": 494.7, "fp16": 989.4, "bf16": 989.4},
    **{"fp8e4m3": 1978.9, "fp8e5m2": 1978.9, "int8": 1978.9},
}


def tera(gpu, quantity):
    return {entry.name: entry.value / 1e12 for entry in gpu.entries if entry.quantity == quantity}


# Dense peaks, TFLOP/s, as the datasheets give them. Sums in fp16 never count: RTX 4090 has 330.3
# with them.
@pytest.mark.parametrize(
    ("slug", "peaks"),
    [
        ("h100-sxm", H100_TFLOPS),
        ("t4", {"fp64": 0.254, "fp32": 8.1, "fp16": 65, "int8": 130}),
        ("p100-sxm-16gb", {"fp64": 5.3, "fp32": 10.6, "fp16": 21.2}),
        ("rtx-4090", {"fp16": 165.2}),
        ("b200-sxm", {"nvfp4": 9000}),
    ],
)
def test_peaks_by_dtype(slug, peaks):
    found = tera(GPUS[slug], "flops")
    assert {dtype: found[dtype] for dtype in (found if len(peaks) > 1 else peaks)} == pytest.approx(
        peaks
    )


def test_vector_peaks():
    assert tera(GPUS["h100-sxm"], "fma") == pytest.approx(
        {"fp64": 33.5, "fp32": 66.9, "fp16": 133.8}
    )


@pytest.mark.parametrize(
    ("gpu", "dtype", "is_lacking"),
    [
        (GPUS["t4"], "bf16", True),
        (GPUS["p100-sxm-16gb"], "fp16", False),
        (GPUS["mi355x"], "nvfp4", True),  # its fp4 has another format
        (GPUS["h100-sxm"], "bf16", False),
        (unknown_gpu("Some GPU"), "bf16", False),
    ],
)
def test_lacking_a_dtype_is_not_the_same_as_an_unknown_peak(gpu, dtype, is_lacking):
    assert lacks(gpu, dtype) is is_lacking


INSTEAD = "; estimates take --peak, --bandwidth and --memory instead"
LIST = f"list GPUs with `python -m roofline gpus`{INSTEAD}"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("h100", "h100 is ambiguous: h100-nvl, h100-pcie, h100-sxm"),
        (
            "h100-smx",
            f"unknown GPU 'h100-smx'; did you mean h100-sxm, h800-sxm or h200-sxm?{INSTEAD}",
        ),
        ("", f"unknown GPU ''; {LIST}"),
        ("\x1b[31mh", rf"unknown GPU '\x1b[31mh'; {LIST}"),
    ],
)
def test_an_unknown_slug_is_reported_with_the_closest_ones(asked, message):
    assert all(find_gpu(slug).slug == slug for slug in GPUS)
    with pytest.raises(UnknownGpuError) as caught:
        find_gpu(asked)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("asked", "slug"),
    [
        ("4090", "rtx-4090"),
        ("b200", "b200-sxm"),
        ("H100-SXM", "h100-sxm"),
        ("NVIDIA H200", "h200-sxm"),  # the name that the driver reports
    ],
)
def test_a_name_that_means_one_gpu_is_taken(asked, slug):
    assert find_gpu(asked).slug == slug


def test_match_exact_driver_name():
    names = {name: gpu for gpu in GPUS.values() for name in gpu.driver_names}
    assert [gpus_named(name) for name in names] == [[gpu] for gpu in names.values()]
    assert names["NVIDIA H100 80GB HBM3"].slug == "h100-sxm"
    assert names["A100-SXM4-40GB"].slug == "a100-sxm-40gb"


@pytest.mark.parametrize(
    "driver_name",
    [
        "NVIDIA H100",  # the 94 GB SXM5 card
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "nvidia h200",
        "",
    ],
)
def test_no_match_by_part_of_a_name(driver_name):
    assert gpus_named(driver_name) == []


@pytest.mark.parametrize("slug", [slug for slug, gpu in GPUS.items() if gpu.memory_reported_bytes])
def test_match_with_the_memory_that_devices_report(slug):
    gpu = GPUS[slug]
    assert gpus_named(gpu.driver_names[0], gpu.memory_reported_bytes, gpu.sm_count) == [gpu]


@pytest.mark.parametrize(
    ("sizes", "reported_mib", "fitting"),
    [
        ((40, 80), 40326, (40,)),
        ((80, 94), 95830, (94,)),
        ((40, 80), None, (40, 80)),
        ((180, 192), 182642, (180, 192)),  # what a B200 reports, sold with 180 or 192 GB
    ],
)
def test_a_shared_name_is_distinguished_by_memory_or_stays_ambiguous(
    sizes, reported_mib, fitting, monkeypatch
):
    twins = {
        f"{size}gb": Machine(f"{size}gb", "Twin", driver_names=("Twin",), memory_bytes=size * GIB)
        for size in sizes
    }
    monkeypatch.setattr(gpu_table, "load_gpus", lambda: twins)
    found = gpus_named("Twin", None if reported_mib is None else reported_mib * MIB)
    assert [gpu.slug for gpu in found] == [f"{size}gb" for size in fitting]


def test_a_shared_name_is_distinguished_by_sms(monkeypatch):
    """The name of MI250X and MI250 can be the same; they have 110 and 104 CUs per GCD."""
    mi250x, name = GPUS["mi250x-gcd"], "AMD Instinct MI250X/MI250"
    table = {"mi250x-gcd": mi250x, "mi250-gcd": replace(mi250x, slug="mi250-gcd", sm_count=104)}
    monkeypatch.setattr(gpu_table, "load_gpus", lambda: table)
    assert gpus_named(name, 65520 * MIB, 104) == [table["mi250-gcd"]]
    assert len(gpus_named(name, 65520 * MIB)) == 2


@pytest.mark.parametrize(
    ("driver_name", "memory_bytes", "sm_count"),
    [
        ("Orin", 30 * GIB, None),  # AGX Orin 32GB
        ("NVIDIA H100 80GB HBM3", 9856 * MIB, 16),  # a MIG slice
        ("NVIDIA H100 80GB HBM3", 0, None),
    ],
)
def test_a_name_whose_device_does_not_fit_gives_no_peaks(driver_name, memory_bytes, sm_count):
    assert gpus_named(driver_name, memory_bytes, sm_count) == []


@pytest.mark.parametrize(
    ("bits", "clock_mhz", "gb_per_s"),
    [
        (5120, 2619, 3352),  # H100 SXM
        (256, 5001, 320),  # T4
    ],
)
def test_an_unknown_gpu_has_derived_bandwidth_and_no_peak(bits, clock_mhz, gb_per_s):
    [bandwidth] = unknown_gpu("New", clock_mhz * 1e6, bits, "9.0").entries
    assert (bandwidth.quantity, bandwidth.kind, round(bandwidth.value / 1e9)) == (
        "bandwidth",
        "derived",
        gb_per_s,
    )
    assert f"derived: bandwidth from {bits} bit x {clock_mhz} MHz" in bandwidth.source


@pytest.mark.parametrize(
    ("clock_hz", "bits", "capability"),
    [(None, 5120, "9.0"), (1e9, 0, None), (1.3e9, 128, "8.7")],
)
def test_without_a_usable_clock_or_bus_there_is_no_bandwidth(clock_hz, bits, capability):
    """Jetson Orin, 8.7, reports 128 bit at 1.3 GHz, which would be 41.6 GB/s; it has 204.8."""
    assert unknown_gpu("Some GPU", clock_hz, bits, capability).entries == ()


@pytest.mark.parametrize(
    ("driver_name", "slug"),
    [
        ("H100 SXM", "unknown-h100-sxm"),  # not the slug of a GPU that is in the table
        ("../../etc/passwd", "unknown-etc-passwd"),
        ("", "unknown"),
    ],
)
def test_slug_of_an_unknown_gpu_is_safe_in_a_path(driver_name, slug):
    assert unknown_gpu(driver_name).slug == slug
    assert slug not in GPUS


def test_clock_limited_peak_without_tensor_cores_or_of_a_missing_dtype():
    assert clock_limited_flops_per_s(GPUS["h100-sxm"], "bf16", 1.98e9) == pytest.approx(
        1070.5e12, rel=1e-4
    )
    assert clock_limited_flops_per_s(
        GPUS["h100-sxm"], "fp32", 1.98e9, is_vector=True
    ) == pytest.approx(66.9e12, 0.001)
    assert clock_limited_flops_per_s(GPUS["t4"], "bf16", 1.59e9) is None
