"""What machine this is: read from files that a test writes, from a fake torch.cuda, and with no NVML anywhere."""

import json
import sys
import types

import pytest
import torch

from bench.harness.device import linux, stamp
from bench.harness.device.device import (
    DEFAULT_CPU_CACHE_BYTES,
    Device,
    NoDeviceError,
    cpu_device,
    detect,
    gpu_device,
    slugify,
)
from bench.harness.device.linux import (
    available_memory_bytes,
    cpu_name,
    cpu_quota,
    last_level_cache_bytes,
    total_memory_bytes,
    usable_threads,
)

KIB, MIB, GIB = 2**10, 2**20, 2**30


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


# ---- threads -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("affinity", "quota", "threads"),
    [(8, None, 8), (8, 16.0, 8), (8, 4.0, 4), (8, 1.5, 1), (8, 0.5, 1), (2, 2.99, 2), (1, None, 1)],
)
def test_threads_follow_affinity_and_quota(affinity, quota, threads):
    assert usable_threads(affinity, quota) == threads


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        # cgroup v2, at the top of what a container sees
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, None),
        # cgroup v1
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4.0),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000\n"}, None),
        # nothing, or nothing sensible
        ({}, None),
        ({"cpu.max": ""}, None),
        ({"cpu.max": "150000"}, None),
        ({"cpu.max": "150000 0"}, None),
        ({"cpu.max": "-5 100000"}, None),
        ({"cpu.max": "\x00\xff binary"}, None),
        ({"cpu.max": "² 100000"}, None),
    ],
)
def test_the_quota_is_read_from_either_version(tmp_path, files, quota):
    root = write(tmp_path, {f"sys/fs/cgroup/{name}": text for name, text in files.items()})
    assert cpu_quota(root) == quota


def test_the_least_quota_of_the_groups_around_the_process_binds(tmp_path):
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/system.slice/job_1/step_0\n",
            "sys/fs/cgroup/system.slice/cpu.max": "800000 100000",
            "sys/fs/cgroup/system.slice/job_1/cpu.max": "200000 100000",
            "sys/fs/cgroup/system.slice/job_1/step_0/cpu.max": "max 100000",
            "sys/fs/cgroup/other.slice/cpu.max": "100000 100000",  # somebody else's
        },
    )
    assert cpu_quota(root) == 2.0


def test_a_group_of_version_1_with_two_controllers_is_found(tmp_path):
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/m\n4:cpu,cpuacct:/job\n0::/\n",
            "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "300000",
            "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/memory/m/cpu.cfs_quota_us": "100000",  # not where the CPU is limited
            "sys/fs/cgroup/memory/m/cpu.cfs_period_us": "100000",
        },
    )
    assert cpu_quota(root) == 3.0


@pytest.mark.parametrize("text", ["0::/../../job\n", "torn", "0:", "\x00", "0::/not/mounted\n"])
def test_a_path_that_is_not_mounted_leaves_the_top(tmp_path, text):
    root = write(tmp_path, {"proc/self/cgroup": text, "sys/fs/cgroup/cpu.max": "100000 100000"})
    assert cpu_quota(root) == 1.0


# ---- caches --------------------------------------------------------------------------------------------------------


def caches(root, cpu, **sizes):
    """Write the caches of one core: `L3="32768K on 0-7"`."""
    for index, (_, text) in enumerate(sizes.items()):
        size, _, shared = text.partition(" on ")
        folder = f"sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
        write(root, {f"{folder}/size": f"{size}\n", f"{folder}/shared_cpu_list": f"{shared or cpu}\n"})


def test_the_last_level_cache_is_the_largest_and_is_counted_once(tmp_path):
    for cpu in (0, 1):
        caches(tmp_path, cpu, L1d="48K", L1i="32K", L2="1024K", L3="32768K on 0-1")
    assert last_level_cache_bytes([0, 1], 2, tmp_path) == 32 * MIB


def test_a_processor_with_several_last_level_caches_has_them_together(tmp_path):
    for cpu in range(16):
        caches(tmp_path, cpu, L2="1024K", L3=f"32M on {cpu // 8 * 8}-{cpu // 8 * 8 + 7}")
    assert last_level_cache_bytes(range(16), 16, tmp_path) == 64 * MIB
    assert last_level_cache_bytes(range(8), 8, tmp_path) == 32 * MIB  # affinity keeps to one of them
    assert last_level_cache_bytes([0, 8], 2, tmp_path) == 64 * MIB
    assert last_level_cache_bytes(range(16), 1, tmp_path) == 32 * MIB  # one thread reaches one at a time


def test_cores_without_a_shared_cache_have_one_each(tmp_path):
    for cpu in range(4):
        caches(tmp_path, cpu, L1d="64K", L2="2M")
    assert last_level_cache_bytes(range(4), 4, tmp_path) == 8 * MIB


@pytest.mark.parametrize("text", ["", "big", "32768", "K", "-1K", "\x00\xff", "32768 K", "1e3K"])
def test_a_cache_of_no_size_is_not_told(tmp_path, text):
    caches(tmp_path, 0, L3=text)
    assert last_level_cache_bytes([0], 1, tmp_path) is None


def test_no_sysfs_is_no_cache(tmp_path):
    assert last_level_cache_bytes([0, 1], 2, tmp_path) is None
    assert last_level_cache_bytes([], 1, tmp_path) is None


# ---- memory --------------------------------------------------------------------------------------------------------

MEMINFO = {"proc/meminfo": f"MemTotal:       {16 * MIB} kB\nMemFree: 1 kB\nMemAvailable:   {12 * MIB} kB\n"}


def test_memory_of_the_machine(tmp_path):
    root = write(tmp_path, MEMINFO)
    assert total_memory_bytes(root) == 16 * GIB
    assert available_memory_bytes(root) == 12 * GIB


@pytest.mark.parametrize(
    ("files", "total", "available"),
    [
        ({"memory.max": "max", "memory.current": "5"}, 16 * GIB, 12 * GIB),
        ({"memory.max": f"{4 * GIB}", "memory.current": f"{1 * GIB}"}, 4 * GIB, 3 * GIB),
        ({"memory.max": f"{64 * GIB}", "memory.current": f"{1 * GIB}"}, 16 * GIB, 12 * GIB),
        ({"memory.max": f"{4 * GIB}", "memory.current": f"{5 * GIB}"}, 4 * GIB, 0),
        # pages of files that were read once, as by an installation, are given up first
        (
            {
                "memory.max": f"{4 * GIB}",
                "memory.current": f"{3 * GIB}",
                "memory.stat": f"anon 7\ninactive_file {2 * GIB}\nactive_file 9\n",
            },
            4 * GIB,
            3 * GIB,
        ),
        # cgroup v1, with a limit and with its word for none
        (
            {
                "memory/memory.limit_in_bytes": f"{4 * GIB}",
                "memory/memory.usage_in_bytes": f"{2 * GIB}",
                "memory/memory.stat": f"inactive_file 1\ntotal_inactive_file {1 * GIB}\n",
            },
            4 * GIB,
            2 * GIB + 1,
        ),
        (
            {"memory/memory.limit_in_bytes": "9223372036854771712", "memory/memory.usage_in_bytes": f"{2 * GIB}"},
            16 * GIB,
            12 * GIB,
        ),
        ({"memory.max": f"{4 * GIB}"}, 16 * GIB, 12 * GIB),
        ({"memory.max": "much", "memory.current": "little"}, 16 * GIB, 12 * GIB),
    ],
)
def test_memory_within_the_limits_of_control_groups(tmp_path, files, total, available):
    root = write(tmp_path, MEMINFO | {f"sys/fs/cgroup/{name}": text for name, text in files.items()})
    assert total_memory_bytes(root) == total
    assert available_memory_bytes(root) == available


def test_the_limit_of_a_nested_group_counts(tmp_path):
    files = {
        "proc/self/cgroup": "0::/user.slice/job\n",
        "sys/fs/cgroup/user.slice/memory.max": f"{8 * GIB}",
        "sys/fs/cgroup/user.slice/memory.current": f"{7 * GIB}",
        "sys/fs/cgroup/user.slice/job/memory.max": f"{4 * GIB}",
        "sys/fs/cgroup/user.slice/job/memory.current": f"{1 * GIB}",
    }
    root = write(tmp_path, MEMINFO | files)
    assert total_memory_bytes(root) == 4 * GIB
    assert available_memory_bytes(root) == 1 * GIB  # the outer group has less left


def test_no_meminfo_is_memory_that_nobody_knows(tmp_path):
    assert (total_memory_bytes(tmp_path), available_memory_bytes(tmp_path)) == (None, None)


# ---- names ---------------------------------------------------------------------------------------------------------


def test_the_processor_is_named_as_the_kernel_names_it(tmp_path):
    text = "processor\t: 0\nmodel name\t: AMD EPYC 9654 96-Core Processor \nmodel name\t: another\n"
    assert cpu_name(write(tmp_path, {"proc/cpuinfo": text})) == "AMD EPYC 9654 96-Core Processor"


def test_a_processor_without_a_model_name_has_its_architecture(tmp_path, monkeypatch):
    monkeypatch.setattr(linux.platform, "machine", lambda: "aarch64")
    assert cpu_name(write(tmp_path, {"proc/cpuinfo": "Features : fp asimd\n"})) == "aarch64"
    assert cpu_name(tmp_path / "nowhere") == "aarch64"


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


def test_an_untold_cache_is_assumed_and_marked(monkeypatch):
    monkeypatch.setattr(linux, "last_level_cache_bytes", lambda cpus, threads: None)
    found = cpu_device()
    assert (found.cache_bytes, found.cache_is_assumed) == (DEFAULT_CPU_CACHE_BYTES, True)


def test_the_quota_sets_the_threads_of_the_cpu(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 3, 5, 7})
    monkeypatch.setattr(linux, "cpu_quota", lambda: 2.5)
    found = cpu_device()
    assert found.threads == 2
    assert found.slug.endswith("-2t")


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


# ---- NVML ----------------------------------------------------------------------------------------------------------


def test_without_nvml_memory_clock_and_bus_are_not_known(cuda):
    found = gpu_device(0)
    assert (found.memory_clock_hz, found.memory_bus_bits) == (None, None)


def test_memory_clock_and_bus_come_from_nvml_by_uuid_in_si_units(monkeypatch, cuda):
    asked = []
    fake = types.SimpleNamespace(
        NVML_CLOCK_MEM=2,
        NVML_SUCCESS=0,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: asked.append(uuid) or "handle",
        nvmlDeviceGetMaxClockInfo=lambda handle, kind: {2: 2619}[kind],
        nvmlDeviceGetMemoryBusWidth=lambda handle: 5120,
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    found = gpu_device(0)
    assert asked[0] == "GPU-5ba0c1de-0000-1111-2222-333344445555"
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


def test_device_is_frozen():
    with pytest.raises(AttributeError):
        Device("cpu", "cpu", "cpu", "a CPU", 1, 1).threads = 3
