"""Device detection with a fake torch.cuda, with and without NVML."""

import json
import sys
from dataclasses import asdict

import pytest
import torch

from bench.harness.device import device as host
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
        ("../../etc", "etc"),
        ("°°°", "unknown"),
    ],
)
def test_slugs_are_file_names(name, slug):
    assert slugify(name) == slug


def test_the_cpu_device_is_complete():
    device = cpu_device()
    assert (device.type, device.torch_name, device.is_gpu) == ("cpu", "cpu", False)
    assert device.slug == f"cpu-{slugify(device.name)}-{device.threads}t"
    assert device.threads >= 1
    assert device.cache_bytes > 0
    assert 0 < device.free_bytes() <= device.memory_bytes
    assert json.loads(json.dumps(asdict(device))) == asdict(device)
    device.synchronize()


def test_an_unknown_cache_is_assumed_and_marked(monkeypatch):
    monkeypatch.setattr(host, "last_level_cache_bytes", lambda cpus, threads: None)
    device = cpu_device()
    assert (device.cache_bytes, device.cache_is_assumed) == (DEFAULT_CPU_CACHE_BYTES, True)


class Properties:
    name = "NVIDIA H100 80GB HBM3"
    major, minor = 9, 0
    multi_processor_count = 132
    total_memory = 85_029_158_912
    L2_cache_size = 50 * MIB
    uuid = "5ba0c1de-0000-1111-2222-333344445555"


@pytest.fixture
def cuda(monkeypatch):
    """Simulate two GPUs of one model, without NVML."""
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


def test_a_gpu_of_the_table_has_its_slug(cuda, monkeypatch):
    device = gpu_device(1)
    assert (device.type, device.torch_name, device.slug) == ("cuda", "cuda:1", "h100-sxm")
    assert (device.name, device.compute_capability, device.sm_count) == (
        "NVIDIA H100 80GB HBM3",
        "9.0",
        132,
    )
    assert (device.cache_bytes, device.cache_is_assumed, device.memory_bytes) == (
        50 * MIB,
        False,
        85_029_158_912,
    )
    assert device.uuid == "5ba0c1de-0000-1111-2222-333344445555"
    assert device.free_bytes() == 7 * GIB
    assert cuda.chosen == [1]
    assert (device.memory_clock_hz, device.memory_bus_bits) == (None, None)
    nvml_replay.install(monkeypatch)
    device = gpu_device(0)
    assert (device.memory_clock_hz, device.memory_bus_bits) == (2619e6, 5120)


def test_a_gpu_outside_the_table_has_a_slug_of_its_name(cuda, monkeypatch):
    cuda.name, cuda.uuid, cuda.L2_cache_size = "NVIDIA H100 Imaginary Edition", None, 0
    monkeypatch.setattr(torch.version, "hip", "6.4")
    device = gpu_device(0)
    assert (device.slug, device.type) == ("nvidia-h100-imaginary-edition", "rocm")
    assert device.cache_bytes > 0
    assert device.cache_is_assumed


@pytest.mark.parametrize(
    ("requested", "name"),
    [(None, "cuda:0"), ("cuda", "cuda:0"), ("cuda:1", "cuda:1"), ("cpu",) * 2],
)
def test_the_default_device_is_the_first_gpu(cuda, requested, name):
    assert detect(requested).torch_name == name


def test_a_missing_device_is_an_error_with_advice(cuda, monkeypatch):
    with pytest.raises(
        NoDeviceError,
        match=r"device 'cuda:2' is not available: torch found 2 GPU\(s\), from cuda:0",
    ):
        detect("cuda:2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        NoDeviceError, match="device 'cuda' is not available: torch found no GPU; use --device cpu"
    ):
        detect("cuda")
    assert detect(None).type == "cpu"
