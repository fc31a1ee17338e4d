"""What device this is: from a fake torch.cuda, with and without NVML; and the versions beside it."""

import json
import sys

import pytest
import torch

from bench.harness.device import host, stamp
from bench.harness.device.device import (
    DEFAULT_CPU_CACHE_BYTES,
    NoDeviceError,
    cpu_device,
    detect,
    gpu_device,
    slugify,
)
from tests.bench import nvml_replay

MIB, GIB = 2**20, 2**30


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("NVIDIA H100 80GB HBM3", "nvidia-h100-80gb-hbm3"),
        ("Intel(R) Xeon(R) CPU @ 2.20GHz", "intel-r-xeon-r-cpu-2-20ghz"),
        ("../../etc", "etc"),
        ("a/b\\c\x00d", "a-b-c-d"),
        ("", "unknown"),
        ("°°°", "unknown"),
    ],
)
def test_slugs_are_file_names(name, slug):
    assert slugify(name) == slug


def test_the_cpu_of_this_machine_is_complete():
    found = cpu_device()
    assert (found.type, found.torch_name, found.is_gpu) == ("cpu", "cpu", False)
    assert found.slug == f"cpu-{slugify(found.name)}-{found.threads}t"
    assert found.threads >= 1
    assert found.cache_bytes > 0
    assert 0 < found.free_bytes() <= found.memory_bytes
    assert json.loads(json.dumps(found.to_dict())) == found.to_dict()
    found.synchronize()


def test_an_unknown_cache_is_assumed_and_marked(monkeypatch):
    monkeypatch.setattr(host, "last_level_cache_bytes", lambda cpus, threads: None)
    found = cpu_device()
    assert (found.cache_bytes, found.cache_is_assumed) == (DEFAULT_CPU_CACHE_BYTES, True)


# ---- GPUs ----------------------------------------------------------------------------------------------------------


class Properties:
    """What torch tells of a GPU."""

    name = "NVIDIA H100 80GB HBM3"
    major, minor = 9, 0
    multi_processor_count = 132
    total_memory = 85_029_158_912
    L2_cache_size = 50 * MIB
    uuid = "5ba0c1de-0000-1111-2222-333344445555"


@pytest.fixture
def cuda(monkeypatch):
    """A machine with two GPUs of one kind and no NVML."""
    properties = Properties()
    chosen = []
    for name, value in {
        "is_available": lambda: True,
        "device_count": lambda: 2,
        "set_device": chosen.append,
        "get_device_properties": lambda index: properties,
        "mem_get_info": lambda name: (7 * GIB, 80 * GIB),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setitem(sys.modules, "pynvml", None)  # importing it raises ImportError
    properties.chosen = chosen
    return properties


def test_a_gpu_of_the_table_goes_by_its_slug(cuda):
    found = gpu_device(1)
    assert (found.type, found.torch_name, found.slug) == ("cuda", "cuda:1", "h100-sxm")
    assert (found.name, found.compute_capability, found.sm_count) == ("NVIDIA H100 80GB HBM3", "9.0", 132)
    assert (found.cache_bytes, found.cache_is_assumed, found.memory_bytes) == (50 * MIB, False, 85_029_158_912)
    assert found.uuid == "5ba0c1de-0000-1111-2222-333344445555"
    assert found.is_gpu
    assert found.free_bytes() == 7 * GIB
    assert cuda.chosen == [1]


def test_a_gpu_that_is_not_in_the_table_goes_by_its_name(cuda):
    cuda.name = "NVIDIA H100 Imaginary Edition"
    assert gpu_device(0).slug == "nvidia-h100-imaginary-edition"


def test_a_gpu_without_uuid_or_cache_size_is_still_a_device(cuda):
    cuda.uuid, cuda.L2_cache_size = None, 0
    found = gpu_device(0)
    assert found.cache_bytes > 0
    assert found.cache_is_assumed


def test_an_amd_gpu_says_so(cuda, monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert gpu_device(0).type == "rocm"


@pytest.mark.parametrize(("requested", "name"), [(None, "cuda:0"), ("cuda", "cuda:0"), ("cuda:1", "cuda:1")])
def test_the_first_gpu_unless_another_is_asked_for(cuda, requested, name):
    assert detect(requested).torch_name == name


def test_the_cpu_may_be_asked_for_beside_a_gpu(cuda):
    assert detect("cpu").type == "cpu"


def test_a_gpu_beyond_the_last_is_not_there(cuda):
    with pytest.raises(NoDeviceError, match=r"no device 'cuda:2': torch sees 2 GPU\(s\), from cuda:0"):
        detect("cuda:2")


@pytest.mark.parametrize("requested", ["cuda", "cuda:0"])
def test_without_a_gpu_the_message_says_what_to_do(monkeypatch, requested):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(NoDeviceError, match=f"no device '{requested}': torch sees no GPU here; --device cpu"):
        detect(requested)
    assert detect(None).type == "cpu"


def test_memory_clock_and_bus_come_from_nvml_by_uuid_in_si_units(monkeypatch, cuda):
    found = gpu_device(0)
    assert (found.memory_clock_hz, found.memory_bus_bits) == (None, None)
    nvml_replay.install(monkeypatch)
    found = gpu_device(0)
    assert (found.memory_clock_hz, found.memory_bus_bits) == (2619e6, 5120)


# ---- the stamp -----------------------------------------------------------------------------------------------------


def test_versions_are_text_or_missing():
    found = stamp.versions()
    assert found["torch"] == torch.__version__
    assert found["python"].count(".") == 2
    assert all(value is None or isinstance(value, str) for value in found.values())


def test_a_distribution_that_is_not_installed_has_no_version():
    assert stamp.installed_version("pytest") == pytest.__version__
    assert stamp.installed_version("no-such-distribution-anywhere") is None


def test_a_command_line_reproduces_the_run():
    assert stamp.command_line("bench.matmul", ["--dtype", "bf16"]) == [
        "python",
        "-m",
        "bench.matmul",
        "--dtype",
        "bf16",
    ]
