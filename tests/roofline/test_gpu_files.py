"""The files of roofline/gpus against published figures, against each other, and against what each
key may hold.
"""

import csv
import re
import tomllib
from pathlib import Path
from random import Random

import pytest

from roofline.__main__ import main
from roofline.gpu_file import PROVENANCE
from roofline.gpu_table import (
    GPU_FOLDER,
    RATES_FILE,
    UnknownGpuError,
    clock_limited_flops_per_s,
    find_gpu,
    load_gpus,
    load_rates,
)
from roofline.model import ridge_intensity

PUBLISHED = list(
    csv.DictReader(Path(__file__).with_name("published_gpus.csv").read_text().splitlines())
)
"""Of each GPU: dense TFLOP/s in a dtype, GB/s, ridge in FLOP/byte, tensor and maximum clock in MHz,
TFLOP/s at the latter. Datasheet figures and the arithmetic on them, as collected in November 2026
from the sources in each file.
"""

# Stated peaks over SMs x rate x clock, where they differ by more than 2 %: the notes of each file
# say why.
INCONSISTENT = {
    ("h20-sxm", "fp32"): 44 / 39.5,
    ("h20-3e", "fp32"): 44 / 39.5,
    ("b300-sxm", "fp64"): 1.25 / 1.20,
    ("b300-sxm", "fp64_tensor"): 1.25 / 1.20,
    ("b300-sxm", "int8_tensor"): 150 / 154,
    ("gb300", "fp64"): 1.3 / 1.25,
    ("gb300", "fp64_tensor"): 1.3 / 1.25,
    ("gb300", "int8_tensor"): 165 / 160.5,
}
CAPPED = {
    (slug, key)
    for slug in ("h800-sxm", "h800-pcie", "h20-sxm", "h20-3e")
    for key in ("fp64", "fp64_tensor")
}

GPUS = load_gpus()
FILES = {
    slug: tomllib.loads((GPU_FOLDER / f"{slug}.toml").read_text(encoding="utf-8")) for slug in GPUS
}
RATES = tomllib.loads(RATES_FILE.read_text(encoding="utf-8"))


def test_all_published_gpus_are_there():
    assert sorted(GPUS) == sorted(row["slug"] for row in PUBLISHED), (
        "a new GPU needs its row in published_gpus.csv"
    )
    assert len(GPUS) >= 70


def figures(row):
    """Return the columns of `published_gpus.csv` from the file of that GPU."""
    gpu = GPUS[row["slug"]]
    peak, bandwidth = gpu.peak(row["dtype"]).value, gpu.bandwidth().value
    at_max = None
    if gpu.max_clock_hz:
        at_max = clock_limited_flops_per_s(gpu, row["dtype"], gpu.max_clock_hz) / 1e12
    return {
        "tflops_per_s": peak / 1e12,
        "gb_per_s": bandwidth / 1e9,
        # as the published table rounds it: 312.5 is printed as 313
        "ridge": int(ridge_intensity(peak, bandwidth) + 0.5),
        "tensor_mhz": gpu.tensor_clock_hz and gpu.tensor_clock_hz / 1e6,
        "max_mhz": gpu.max_clock_hz and gpu.max_clock_hz / 1e6,
        "tflops_per_s_at_max": at_max and round(at_max, 1),
    }


def test_published_figures():
    for row in PUBLISHED:
        expected = {
            key: float(text) if text else None
            for key, text in row.items()
            if key not in ("slug", "dtype")
        }
        assert {row["slug"]: figures(row)} == {row["slug"]: pytest.approx(expected)}


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


def test_stated_peaks_follow_from_sms_rate_and_clock():
    ratios = {}
    for slug, key in set(STATED) - CAPPED:
        stated = GPUS[slug].stated_peaks_flops_per_s[key]
        ratios[slug, key] = stated / expected_flops_per_s(GPUS[slug], key)
    assert {pair for pair, ratio in ratios.items() if abs(ratio - 1) > 0.02} == set(INCONSISTENT)
    assert {pair: ratios[pair] for pair in INCONSISTENT} == pytest.approx(INCONSISTENT, rel=0.005)


@pytest.mark.parametrize(("slug", "key"), sorted(CAPPED))
def test_capped_peaks_are_never_computed(slug, key):
    gpu = GPUS[slug]
    assert key in gpu.capped
    assert gpu.peak("fp64").value <= 1e12
    assert clock_limited_flops_per_s(gpu, "fp64", 1.98e9) is None


def test_only_the_capped_say_so():
    assert {(slug, key) for slug, gpu in GPUS.items() for key in gpu.capped} == CAPPED


def test_every_file_has_a_head_and_sources_with_provenance():
    for slug in GPUS:
        head, first = (GPU_FOLDER / f"{slug}.toml").read_text(encoding="utf-8").splitlines()[:2]
        assert head.startswith("# ")
        assert "dense" in head
        assert not first.startswith("#")
        assert GPUS[slug].sources
        assert GPUS[slug].notes
        assert {source.partition(":")[0] for source in GPUS[slug].sources} <= set(PROVENANCE)


def test_every_value_of_a_file_is_one_that_its_key_may_hold():
    for slug in GPUS:
        data = FILES[slug]
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", slug)
        assert data.keys() >= {
            "driver_names",
            "architecture",
            "sm_count",
            "confidence",
            "memory_bytes",
        }
        assert data["confidence"] in ("high", "medium", "low")
        for key, value in data.items():
            if isinstance(value, list):
                assert len(value) == len(set(value)), key
        texts = [
            text
            for value in data.values()
            for text in (value if isinstance(value, list) else [value])
        ]
        assert all(text.isprintable() and text.strip() for text in texts if isinstance(text, str))


def test_peaks_and_kinds_of_a_file_fit_together():
    for slug in GPUS:
        data = FILES[slug]
        peaks, kinds = data["peaks_flops_per_s"], data.get("kinds", {})
        assert not set(data.get("unsupported", ())) & set(peaks)
        assert set(data.get("capped", ())) <= set(peaks)
        assert set(kinds) <= {*data, *peaks}
        assert {text.partition(": ")[0] for text in kinds.values()} <= set(PROVENANCE)


@pytest.mark.parametrize(
    ("name", "key", "rate"),
    [  # stated by NVIDIA on its developer forum (t/244727), and by Proton for Blackwell
        ("sm_80", "bf16_tensor", 2048),
        ("sm_90", "bf16_tensor", 4096),
        ("sm_100", "fp8_tensor", 16384),
    ],
)
def test_published_rates(name, key, rate):
    assert load_rates()[name][key] == rate


OWN = """
name = "My GPU"
vendor = "nvidia"
memory_bandwidth_bytes_per_s = 1e12
sources = ["vendor: its page"]
[peaks_flops_per_s]
bf16_tensor = 1e14
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Return a function that writes a file of the user; the table is read again after the test."""
    monkeypatch.setenv("ROOFMARK_GPUS", str(tmp_path))
    load_gpus.cache_clear()

    def write(text, name="my-gpu.toml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    yield write
    monkeypatch.undo()
    load_gpus.cache_clear()


def test_gpus_of_the_user_are_in_the_table(own, capsys):
    path = own(OWN)
    assert (
        load_gpus()["my-gpu"].peak("bf16").value == find_gpu(str(path)).peak("bf16").value == 1e14
    )
    assert main(["plot", "--gpu", "my-gpu", "--dtype", "bf16", "-o", f"{path}.svg"]) == 0
    assert main(["estimate", "matmul", "--gpu", str(path), "--shape", "64"]) == 0
    own("name = 1", "wrong.toml")
    load_gpus.cache_clear()
    assert main(["gpus"]) == 0
    printed = capsys.readouterr()
    assert "my-gpu" in printed.out
    assert printed.err.startswith("note: left out ")
    assert printed.err.endswith("wrong.toml: vendor is missing\n")
    assert main(["estimate", "matmul", "--gpu", "wrong", "--shape", "64"]) == 2
    assert "wrong.toml: vendor is missing" in capsys.readouterr().err


WRONG = {
    'vendor = "nvidia"': ("", "vendor is missing"),
    "bf16_tensor = 1e14": ("bf16 = 1e14", "unknown peak bf16; known: "),
    "= 1e14": ("= -1.0", "the peak bf16_tensor is -1.0, not from 1e+09 to 1e+18"),
    "= 1e12": ("= 0.0", "memory_bandwidth_bytes_per_s is missing"),
    "1e12": ("inf", "memory_bandwidth_bytes_per_s is inf, not from 1e+09 to 1e+15"),
    "memory_bandwidth": (
        "memory_bandwith",
        "unknown key memory_bandwith_bytes_per_s; did you mean",
    ),
    '["vendor: its page"]': ('["recalled"]', "source 'recalled': write one of vendor, "),
    '"My GPU"': ("{}", "name is missing"),
    "bf16_tensor =": ("bf16_tensor = {}\nfp8_tensor =", "the peak bf16_tensor is {}, not from "),
    "sources": ('rate_class = "sm_9"\nsources', "unknown rate_class 'sm_9'; known: gfx"),
    "\n[peaks": ('\nunsupported = ["fp8"]\n[peaks', "unknown peak fp8; known: "),
    "name": ("sm_count = true\nname", "Expected `int | null`, got `bool` - at `$.sm_count`"),
    "vendor = ": ("pcie_gen = 1e400\nvendor = ", "`$.pcie_gen`"),
    "[peaks": ("[peaks", "Invalid statement"),
}


@pytest.mark.parametrize("old", WRONG)
def test_a_wrong_file_is_one_line_with_file_and_key(own, old):
    new, said = WRONG[old]
    path = own(OWN.replace(old, new, 1) if old != "[peaks" else "= 1")
    with pytest.raises(UnknownGpuError) as raised:
        find_gpu(str(path))
    message = str(raised.value)
    assert message.startswith(f"{path}: ")
    assert said in message
    assert "\n" not in message


def problem_of(path):
    try:
        assert find_gpu(str(path)).bandwidth().value > 0
    except UnknownGpuError as error:
        return str(error)
    return ""


def test_any_value_of_another_type_is_one_line(own):
    random = Random(0)
    text = (GPU_FOLDER / "h100-sxm.toml").read_text(encoding="utf-8")
    problems = []
    lines = [line for line in text.splitlines() if re.match(r"\w+ = [^\[]", line)]
    for _ in range(300):
        line = random.choice(lines)
        wrong = random.choice(["-5_000", "{}", "[]", '""', "nan", "inf", "true", "1e300", "= x"])
        path = own(text.replace(line, f"{line.partition(' = ')[0]} = {wrong}"))
        problems.append(problem_of(path))
    assert all(problem.startswith(f"{path}: ") for problem in problems if problem)
    assert sum(map(bool, problems)) > 200
