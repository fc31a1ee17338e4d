"""The files of roofline/gpus against published figures, against each other, and against what each
key may hold.
"""

from __future__ import annotations

import re
import tomllib

import msgspec
import pytest

from roofline.gpu_table import (
    GPU_FOLDER,
    RATES_FILE,
    clock_limited_flops_per_s,
    load_gpus,
    load_rates,
)
from roofline.machine import Machine
from roofline.model import ridge_intensity

# slug, dtype, dense TFLOP/s, GB/s, ridge FLOP/byte, tensor clock MHz, maximum clock MHz, TFLOP/s at
# the latter. Datasheet figures and the arithmetic on them, as collected in November 2026 from the
# sources in each file.
PUBLISHED = [
    ("h100-sxm", "bf16", 989.4, 3352, 295, 1830, 1980, 1070.5),
    ("h100-pcie", "bf16", 756.4, 2039, 371, 1620, 1755, 819.5),
    ("h100-nvl", "bf16", 835.5, 3938, 212, 1545, 1785, 965.1),
    ("h200-sxm", "bf16", 989.4, 4800, 206, 1830, 1980, 1070.5),
    ("h200-nvl", "bf16", 835.5, 4800, 174, 1545, 1785, 965.1),
    ("gh200-96gb", "bf16", 989.4, 4000, 247, 1830, 1980, 1070.5),
    ("gh200-144gb", "bf16", 989.4, 4900, 202, 1830, None, None),
    ("h800-sxm", "bf16", 989.4, 3352, 295, 1830, None, None),
    ("h800-pcie", "bf16", 756.4, 2039, 371, 1620, None, None),
    ("h20-sxm", "bf16", 148, 4000, 37, 1830, None, None),
    ("a100-sxm-40gb", "bf16", 312, 1555, 201, 1410, 1410, 311.9),
    ("a100-sxm-80gb", "bf16", 312, 2039, 153, 1410, 1410, 311.9),
    ("a100-pcie-40gb", "bf16", 312, 1555, 201, 1410, 1410, 311.9),
    ("a100-pcie-80gb", "bf16", 312, 1935, 161, 1410, 1410, 311.9),
    ("a800-sxm-80gb", "bf16", 312, 2039, 153, 1410, 1410, 311.9),
    ("a800-pcie-80gb", "bf16", 312, 1935, 161, 1410, 1410, 311.9),
    ("a30", "bf16", 165, 933, 177, 1440, 1440, 165.2),
    ("a40", "bf16", 149.7, 696, 215, 1740, 1740, 149.7),
    ("a10", "bf16", 125, 600, 208, 1695, 1695, 125.0),
    ("a10g", "bf16", 70, 600, 117, 1710, 1710, 70.0),
    ("a2", "bf16", 18, 200, 90, 1770, 1770, 18.1),
    ("b100-sxm", "bf16", 1750, 8000, 219, 1443, None, None),
    ("b200-sxm", "bf16", 2250, 8000, 281, 1856, 1965, 2382.4),
    ("gb200", "bf16", 2500, 8000, 313, 2008, 2062, 2567.6),
    ("b300-sxm", "bf16", 2250, 8000, 281, 1856, 2032, 2463.6),
    ("gb300", "bf16", 2500, 8000, 313, 2008, None, None),
    ("l4", "bf16", 121, 300, 403, 2040, 2040, 121.2),
    ("l40", "bf16", 181.05, 864, 210, 2490, 2490, 181.0),
    ("l40s", "bf16", 362.05, 864, 419, 2520, 2520, 366.4),
    ("t4", "fp16", 65, 320, 203, 1590, 1590, 65.1),
    ("v100-sxm-16gb", "fp16", 125, 898, 139, 1530, 1530, 125.3),
    ("v100-sxm-32gb", "fp16", 125, 898, 139, 1530, 1530, 125.3),
    ("v100-pcie-16gb", "fp16", 112, 897, 125, 1380, 1380, 113.0),
    ("v100-pcie-32gb", "fp16", 112, 897, 125, 1380, 1380, 113.0),
    ("p100-sxm-16gb", "fp16", 21.2, 732, 29, 1480, 1480, 21.2),
    ("p100-pcie-16gb", "fp16", 18.7, 732, 26, 1303, 1328, 19.0),
    ("rtx-3090", "bf16", 71.2, 936, 76, 1695, None, None),
    ("rtx-4090", "bf16", 165.2, 1008, 164, 2520, None, None),
    ("rtx-5090", "bf16", 209.5, 1792, 117, 2407, None, None),
    ("rtx-a6000", "bf16", 154.8, 768, 202, 1800, None, None),
    ("rtx-6000-ada", "bf16", 364.2, 960, 379, 2505, None, None),
    ("rtx-pro-6000-blackwell-workstation", "bf16", 503.8, 1792, 281, 2617, 3090, 594.9),
    ("rtx-pro-6000-blackwell-max-q", "bf16", 440.5, 1792, 246, 2288, None, None),
    ("rtx-pro-6000-blackwell-server", "bf16", 480, 1597, 301, 2493, None, None),
    ("jetson-agx-orin-64gb", "bf16", 42.5, 204.8, 208, 1300, 1301, 42.6),
    ("mi210", "bf16", 181, 1638, 111, 1700, 1700, 181.0),
    ("mi250x-gcd", "bf16", 191.5, 1638, 117, 1700, 1700, 191.5),
    ("mi300x", "bf16", 1307.4, 5300, 247, 2100, 2100, 1307.4),
    ("mi325x", "bf16", 1307.4, 6000, 218, 2100, 2100, 1307.4),
    ("mi355x", "bf16", 2516.6, 8000, 315, 2400, 2400, 2516.6),
    ("tpu-v4", "bf16", 275, 1200, 229, None, None, None),
    ("tpu-v5e", "bf16", 197, 819, 241, None, None, None),
    ("tpu-v5p", "bf16", 459, 2765, 166, None, None, None),
    ("tpu-v6e", "bf16", 918, 1638, 560, None, None, None),
    ("trainium2", "bf16", 667, 2900, 230, None, None, None),
]

# Stated peaks over SMs x rate x clock, where they differ by more than 2 %: the notes of each file
# say why.
INCONSISTENT = {
    ("h20-sxm", "fp32"): 44 / 39.5,
    ("b300-sxm", "fp64"): 1.25 / 1.20,
    ("b300-sxm", "fp64_tensor"): 1.25 / 1.20,
    ("b300-sxm", "int8_tensor"): 150 / 154,
    ("gb300", "fp64"): 1.3 / 1.25,
    ("gb300", "fp64_tensor"): 1.3 / 1.25,
    ("gb300", "int8_tensor"): 165 / 160.5,
}
CAPPED = {
    (slug, key) for slug in ("h800-sxm", "h800-pcie", "h20-sxm") for key in ("fp64", "fp64_tensor")
}

PROVENANCE = {
    "vendor": "a page of the vendor, read",
    "datasheet": "published by the vendor",
    "vendor-forum": "the vendor's developer forum",
    "vendor-adjacent": "somebody close to the vendor, or with the vendor's parts in hand",
    "copy": "a third party's copy of a vendor's sheet",
    "copy+device": "such a copy, beside what a device reports",
    "device": "reported by or measured on a real device",
    "device-table": "the table of names shipped with the driver",
    "db": "a database of specifications",
    "lib": "a value in a public library",
    "lib-doc": "the documentation of a public library",
    "thread": "an issue or pull request",
    "derived": "arithmetic on other values",
    "assumed": "taken from a close relative, not confirmed",
    "recalled": "general knowledge; the vendor's document was not read again",
    "leaked": "a leaked table that others repeat",
}
"""The words that open each source and each kind, so that a reader sees how far to trust a value."""

RANGES = {
    "sm_count": (1, 10_000),
    **dict.fromkeys(("tensor_clock_hz", "boost_clock_hz", "max_clock_hz"), (1e8, 1e10)),
    **dict.fromkeys(("memory_bytes", "memory_reported_bytes"), (1 << 28, 1 << 45)),
    **dict.fromkeys(
        ("memory_bandwidth_bytes_per_s", "bandwidth_from_device_clock_bytes_per_s"), (1e9, 1e15)
    ),
    **dict.fromkeys(("l2_bytes", "llc_bytes"), (1 << 15, 1 << 34)),
    "tdp_w": (1, 20_000),
    "link_bytes_per_s": (0, 1e14),
    "pcie_gen": (1, 10),
    "pcie_lanes": (1, 32),
}
"""Of each number: wide, but narrow enough to catch a wrong unit."""
NEEDED = (
    "name",
    "driver_names",
    "vendor",
    "architecture",
    "sm_count",
    "confidence",
    "memory_bytes",
    "sources",
)

GPUS = load_gpus()
FILES = {
    slug: tomllib.loads((GPU_FOLDER / f"{slug}.toml").read_text(encoding="utf-8")) for slug in GPUS
}
RATES = tomllib.loads(RATES_FILE.read_text(encoding="utf-8"))


def test_all_published_gpus_are_there():
    assert sorted(GPUS) == sorted(row[0] for row in PUBLISHED), (
        "a new GPU needs its row in PUBLISHED"
    )
    assert len(GPUS) >= 50


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: row[0])
def test_published_figures(row):
    slug, dtype, tflops_per_s, gb_per_s, ridge, tensor_mhz, max_mhz, at_max = row
    gpu = GPUS[slug]
    peak, bandwidth = gpu.peak(dtype).value, gpu.bandwidth().value
    assert peak == round(tflops_per_s * 1e12)
    assert bandwidth == round(gb_per_s * 1e9)
    # as the published table rounds it: 312.5 is printed as 313
    assert int(ridge_intensity(peak, bandwidth) + 0.5) == ridge
    assert gpu.tensor_clock_hz == (None if tensor_mhz is None else tensor_mhz * 1_000_000)
    assert gpu.max_clock_hz == (None if max_mhz is None else max_mhz * 1_000_000)
    if max_mhz is not None:
        limit = clock_limited_flops_per_s(gpu, dtype, max_mhz * 1e6)
        assert limit == pytest.approx(at_max * 1e12, abs=0.06e12)


def expected_flops_per_s(gpu, key):
    at_boost = RATES["classes"][gpu.rate_class].get("boost_clock_keys", RATES["boost_clock_keys"])
    clock = gpu.boost_clock_hz if key in at_boost else gpu.tensor_clock_hz
    return gpu.sm_count * load_rates()[gpu.rate_class][key] * clock


STATED = [
    (slug, key)
    for slug, gpu in GPUS.items()
    if gpu.rate_class
    for key in gpu.stated_peaks_flops_per_s
]


@pytest.mark.parametrize(("slug", "key"), [pair for pair in STATED if pair not in CAPPED])
def test_stated_peak_follows_from_sms_rate_and_clock(slug, key):
    ratio = GPUS[slug].stated_peaks_flops_per_s[key] / expected_flops_per_s(GPUS[slug], key)
    if (slug, key) in INCONSISTENT:
        assert ratio == pytest.approx(INCONSISTENT[slug, key], rel=0.005)
        assert abs(ratio - 1) > 0.02, "no exception any more: take it out of INCONSISTENT"
    else:
        assert ratio == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize(("slug", "key"), sorted(CAPPED))
def test_capped_peaks_are_never_computed(slug, key):
    gpu = GPUS[slug]
    assert key in gpu.capped
    assert gpu.peak("fp64").value <= 1e12
    assert clock_limited_flops_per_s(gpu, "fp64", 1.98e9) is None


def test_only_the_capped_say_so():
    assert {(slug, key) for slug, gpu in GPUS.items() for key in gpu.capped} == CAPPED


@pytest.mark.parametrize("slug", GPUS)
def test_every_file_has_a_head_and_sources_with_provenance(slug):
    head, first = (GPU_FOLDER / f"{slug}.toml").read_text(encoding="utf-8").splitlines()[:2]
    assert head.startswith("# ")
    assert "dense" in head
    assert not first.startswith("#")
    assert GPUS[slug].sources
    assert GPUS[slug].notes
    assert {source.partition(":")[0] for source in GPUS[slug].sources} <= set(PROVENANCE)


def test_no_two_files_share_a_driver_name():
    names = [name for gpu in GPUS.values() for name in gpu.driver_names]
    assert len(names) == len(set(names))


def test_what_devices_report_lies_within_the_marketed_memory():
    shares = [
        g.memory_reported_bytes / g.memory_bytes for g in GPUS.values() if g.memory_reported_bytes
    ]
    assert len(shares) >= 13
    assert min(shares) == pytest.approx(22587 / (24 * 1024))  # A10G
    assert max(shares) < 1


def test_twenty_rate_classes_and_all_are_used():
    assert len(load_rates()) == 20
    assert {gpu.rate_class for gpu in GPUS.values() if gpu.rate_class} == set(load_rates())


@pytest.mark.parametrize("slug", GPUS)
def test_every_value_of_a_file_is_one_that_its_key_may_hold(slug):
    data = FILES[slug]
    msgspec.convert({**data, "slug": slug}, Machine)
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", slug)
    assert [key for key in NEEDED if not data.get(key)] == []
    assert data["confidence"] in ("high", "medium", "low")
    for key, value in data.items():
        if key in RANGES:
            low, high = RANGES[key]
            assert low <= value <= high, key
        elif isinstance(value, list):
            assert len(value) == len(set(value)), key
    texts = [
        text for value in data.values() for text in (value if isinstance(value, list) else [value])
    ]
    assert all(text.isprintable() and text.strip() for text in texts if isinstance(text, str))


@pytest.mark.parametrize("slug", GPUS)
def test_peaks_and_kinds_of_a_file_fit_together(slug):
    data = FILES[slug]
    peaks, kinds = data["peaks_flops_per_s"], data.get("kinds", {})
    known = {key for rates in load_rates().values() for key in rates}
    assert peaks
    assert known >= {*peaks, *data.get("unsupported", ()), *data.get("capped", ())}
    assert all(1e10 <= peak <= 1e18 for peak in peaks.values())
    assert not set(data.get("unsupported", ())) & set(peaks)
    assert set(data.get("capped", ())) <= set(peaks)
    assert set(kinds) <= {*data, *peaks}
    assert {text.partition(": ")[0] for text in kinds.values()} <= set(PROVENANCE)


@pytest.mark.parametrize("name", RATES["classes"])
def test_rates_of_a_class_are_whole_numbers_with_sources(name):
    entry = RATES["classes"][name]
    assert all(
        isinstance(rate, int) and 1 <= rate <= 1 << 20
        for rate in entry["flops_per_clock_per_sm"].values()
    )
    assert entry["description"]
    assert {source.partition(": ")[0] for source in entry["sources"]} <= set(PROVENANCE)


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
