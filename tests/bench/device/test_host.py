"""What the host reports: from files of sysfs and control groups that a test writes, and from a fake psutil."""

import json
import time
from types import SimpleNamespace

import pytest

from bench.harness.device import host
from bench.harness.device.host import (
    HostSnapshot,
    available_memory_bytes,
    cpu_name,
    cpu_quota,
    last_level_cache_bytes,
    lost_shares,
    rates,
    snapshot,
    total_memory_bytes,
)
from bench.harness.measure.evidence import preempted

MIB, GIB = 2**20, 2**30
CORES = frozenset({0, 1})


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


# ---- the quota ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        # cgroup v2, at the top of what a container sees
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, None),
        # cgroup v1
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4.0),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        # nothing, or nothing sensible
        ({}, None),
        ({"cpu.max": "150000 0"}, None),
        ({"cpu.max": "\x00\xff binary"}, None),
    ],
)
def test_the_quota_is_read_from_either_version(tmp_path, files, quota):
    root = write(tmp_path, {f"sys/fs/cgroup/{name}": text for name, text in files.items()})
    assert cpu_quota(root) == quota


def test_the_lowest_quota_of_the_groups_around_the_process_applies(tmp_path):
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


@pytest.mark.parametrize("text", ["0::/../../job\n", "torn", "0::/not/mounted\n"])
def test_a_path_that_is_not_mounted_leaves_the_top(tmp_path, text):
    root = write(tmp_path, {"proc/self/cgroup": text, "sys/fs/cgroup/cpu.max": "100000 100000"})
    assert cpu_quota(root) == 1.0


# ---- caches --------------------------------------------------------------------------------------------------------


def caches(root, cpu, **sizes):
    """Write the caches of one core: `L3="32768K on 0-7"`."""
    for index, text in enumerate(sizes.values()):
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


@pytest.mark.parametrize("text", ["", "big", "32768", "\x00\xff"])
def test_a_cache_without_a_size_is_unknown(tmp_path, text):
    assert last_level_cache_bytes([0], 1, tmp_path) is None
    caches(tmp_path, 0, L3=text)
    assert last_level_cache_bytes([0], 1, tmp_path) is None


# ---- memory --------------------------------------------------------------------------------------------------------


@pytest.fixture
def memory(monkeypatch):
    """A machine with 16 GiB, of which 12 are available."""
    monkeypatch.setattr(host.psutil, "virtual_memory", lambda: SimpleNamespace(total=16 * GIB, available=12 * GIB))


@pytest.mark.parametrize(
    ("files", "total", "available"),
    [
        ({}, 16 * GIB, 12 * GIB),
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
        # cgroup v1, with a limit and with its number for none
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
    ],
)
def test_memory_within_the_limits_of_control_groups(tmp_path, memory, files, total, available):
    root = write(tmp_path, {f"sys/fs/cgroup/{name}": text for name, text in files.items()})
    assert total_memory_bytes(root) == total
    assert available_memory_bytes(root) == available


def test_the_limit_of_a_nested_group_counts(tmp_path, memory):
    files = {
        "proc/self/cgroup": "0::/user.slice/job\n",
        "sys/fs/cgroup/user.slice/memory.max": f"{8 * GIB}",
        "sys/fs/cgroup/user.slice/memory.current": f"{7 * GIB}",
        "sys/fs/cgroup/user.slice/job/memory.max": f"{4 * GIB}",
        "sys/fs/cgroup/user.slice/job/memory.current": f"{1 * GIB}",
    }
    root = write(tmp_path, files)
    assert total_memory_bytes(root) == 4 * GIB
    assert available_memory_bytes(root) == 1 * GIB  # the outer group has less left


# ---- name, governor, turbo, load ------------------------------------------------------------------------------------


def test_the_processor_has_the_name_that_the_kernel_gives(tmp_path, monkeypatch):
    monkeypatch.setattr(host.platform, "processor", lambda: "")
    monkeypatch.setattr(host.platform, "machine", lambda: "aarch64")
    assert cpu_name(tmp_path) == "aarch64"
    text = "processor\t: 0\nmodel name\t: AMD EPYC 9654 96-Core Processor \nmodel name\t: another\n"
    assert cpu_name(write(tmp_path, {"proc/cpuinfo": text})) == "AMD EPYC 9654 96-Core Processor"


@pytest.mark.parametrize(
    ("path", "text", "turbo"),
    [
        ("intel_pstate/no_turbo", "0\n", True),
        ("intel_pstate/no_turbo", "1\n", False),
        ("cpufreq/boost", "1\n", True),
        ("cpufreq/boost", "0\n", False),
        ("cpufreq/boost", "perhaps\n", None),
    ],
)
def test_turbo_of_both_drivers(tmp_path, path, text, turbo):
    assert host.turbo(write(tmp_path, {f"sys/devices/system/cpu/{path}": text})) is turbo


def test_facts_of_a_host_that_reports_all_of_them_and_of_one_that_does_not(tmp_path, monkeypatch):
    monkeypatch.setattr(host.psutil, "getloadavg", lambda: (3.25, 2.0, 1.0))
    silent = host.facts(tmp_path)
    cpu = "sys/devices/system/cpu"
    files = {f"{cpu}/cpu0/cpufreq/scaling_governor": "powersave\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}
    facts = host.facts(write(tmp_path, files | {f"{cpu}/intel_pstate/no_turbo": "1\n"}))
    assert facts.pop("cores_allowed") == silent.pop("cores_allowed") >= 1
    assert facts == {"load_average": 3.25, "governor": "powersave", "turbo": False, "cgroup_quota_cores": 1.5}
    assert silent == {"load_average": 3.25, "governor": None, "turbo": None, "cgroup_quota_cores": None}
    json.dumps(host.facts(), allow_nan=False)


# ---- control groups that hold threads back ---------------------------------------------------------------------------

V2 = (
    "usage_usec 9000000\nuser_usec 8000000\nsystem_usec 1000000\nnr_periods {0}\nnr_throttled {1}\nthrottled_usec {2}\n"
)
V1 = "nr_periods {0}\nnr_throttled {1}\nthrottled_time {2}\nnr_bursts 0\nburst_time 0\n"


def quota_and_periods(before, after, window_s=2.0):
    lost, counted = lost_shares(before, after, window_s, 2), rates(before, after, window_s)
    return lost["cgroup_quota"], counted["cgroup_throttled_periods"]


@pytest.mark.parametrize(
    ("path", "lines", "group", "unit"),
    [
        ("sys/fs/cgroup/cpu.stat", V2, "0::/\n", 1),
        ("sys/fs/cgroup/system.slice/job.scope/cpu.stat", V2, "0::/system.slice/job.scope\n", 1),
        ("sys/fs/cgroup/cpu,cpuacct/batch/cpu.stat", V1, "4:cpu,cpuacct:/batch\n", 1000),
        ("sys/fs/cgroup/cpu/cpu.stat", V1, "4:cpu:/path/that/is/the/hosts\n", 1000),
    ],
)
def test_throttled_time_of_both_versions_as_a_share(tmp_path, path, lines, group, unit):
    write(tmp_path, {"proc/self/cgroup": group, path: lines.format(100, 7, 300_000 * unit)})
    before = snapshot(CORES, tmp_path)
    write(tmp_path, {path: lines.format(120, 17, 900_000 * unit)})
    after = snapshot(CORES, tmp_path)
    assert quota_and_periods(before, after) == (pytest.approx(0.6 / (2.0 * 2)), 10)  # 0.6 s of 2 cores x 2 s
    assert quota_and_periods(before, after, None) == (None, 10)
    assert quota_and_periods(after, before) == (None, None)  # a counter that went backwards
    assert quota_and_periods(before, before) == (0, 0)  # measured, and zero


def test_of_nested_groups_the_one_that_held_longest_counts(tmp_path):
    outer, inner = "sys/fs/cgroup/user/cpu.stat", "sys/fs/cgroup/user/job/cpu.stat"
    write(tmp_path, {"proc/self/cgroup": "0::/user/job\n"} | dict.fromkeys((outer, inner), V2.format(0, 0, 0)))
    before = snapshot(CORES, tmp_path)
    write(tmp_path, {outer: V2.format(20, 4, 400_000), inner: V2.format(20, 1, 100_000)})
    assert quota_and_periods(before, snapshot(CORES, tmp_path)) == (pytest.approx(0.1), 4)


@pytest.mark.parametrize("text", ["", "nr_throttled 5\n", "nr_throttled x\nthrottled_usec 1\n", "\0\xff"])
def test_a_group_that_counts_no_throttling_is_missing_not_zero(tmp_path, text):
    seen = snapshot(CORES, write(tmp_path, {"sys/fs/cgroup/cpu.stat": text}))
    assert quota_and_periods(seen, seen) == (None, None)


def test_a_throttle_counter_that_cannot_be_true_is_missing(tmp_path):
    before = snapshot(CORES, write(tmp_path, {"sys/fs/cgroup/cpu.stat": V2.format(0, 3, 1_000_000)}))
    after = snapshot(CORES, write(tmp_path, {"sys/fs/cgroup/cpu.stat": V2.format(9, 3, 5_300_000)}))
    assert quota_and_periods(before, after)[0] is None


# ---- steal and context switches --------------------------------------------------------------------------------------


def psutil_times(*cores):
    """Times as psutil has them on Linux, the steal in eighth place, before those of guests."""

    class Times(tuple):
        steal = property(lambda self: self[7])

    return [Times((user, 0.0, 0.0, idle, 0.0, 0.0, 0.0, steal, guest, 0.0)) for user, idle, steal, guest in cores]


def test_stolen_time_is_a_share_of_the_time_of_our_cores(tmp_path, monkeypatch):
    monkeypatch.setattr(host.psutil, "cpu_times", lambda percpu: psutil_times((1, 5, 0, 9), (1, 5, 0, 9), (1, 5, 0, 0)))
    before = snapshot(CORES, tmp_path)
    # 2 s on each of three cores: 0.6 and 0.2 stolen from the two that are ours, 2 from the third; guests are users
    monkeypatch.setattr(
        host.psutil, "cpu_times", lambda percpu: psutil_times((2.4, 5, 0.6, 10), (1, 6.8, 0.2, 9), (1, 5, 2, 0))
    )
    after = snapshot(CORES, tmp_path)
    assert lost_shares(before, after, 2.0, 2)["steal"] == pytest.approx(0.8 / 4)
    assert lost_shares(before, before, 2.0, 2)["steal"] is None  # no time went by
    assert lost_shares(after, before, 2.0, 2)["steal"] is None


def test_a_system_without_steal_does_not_report_it(tmp_path, monkeypatch):
    monkeypatch.setattr(host.psutil, "cpu_times", lambda percpu: [(1.0, 2.0, 3.0, 4.0)] * 2)
    seen = snapshot(CORES, tmp_path)
    assert (seen.steal_s, lost_shares(seen, seen, 1.0, 2)["steal"]) == (None, None)


def test_switches_are_differences_per_second():
    before, after = (HostSnapshot(switches, {}, None, None) for switches in ((100, 7), (150, 7)))
    found = rates(before, after, 2.0)
    assert (found["involuntary_switches_per_s"], found["voluntary_switches_per_s"]) == (25.0, 0.0)
    untold = HostSnapshot(None, {}, None, None)
    for pair in ((before, untold), (untold, after)):
        assert rates(*pair, 2.0)["involuntary_switches_per_s"] is None
    assert rates(before, after, None)["involuntary_switches_per_s"] is None


def test_preemption_is_that_of_one_thread_however_many_there_are(tmp_path):
    def snapshot_of(counts):
        for thread, count in enumerate(counts):
            status = tmp_path / f"proc/self/task/{thread}/status"
            status.parent.mkdir(parents=True, exist_ok=True)
            status.write_text(f"Name:\tpython\nvoluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t{count}\n")
        return host.snapshot(frozenset({0}), tmp_path)

    before = snapshot_of([100] * 16)
    quiet = rates(before, snapshot_of([120] * 16), 1.0)
    assert quiet["thread_switches_per_s"] == 20.0
    assert preempted(quiet | {"window_s": 1.0, "involuntary_switches_per_s": 320.0}) is None
    busy = rates(before, snapshot_of([120] * 15 + [300, 50]), 1.0)
    assert preempted(busy | {"window_s": 1.0}).reason == "200 times a second a thread lost its core"


def test_a_process_that_waits_counts_voluntary_switches():
    before = snapshot(CORES)
    for _ in range(20):
        time.sleep(1e-4)
    found = rates(before, snapshot(CORES), 1.0)
    assert found["voluntary_switches_per_s"] >= 20
    assert found["involuntary_switches_per_s"] >= 0
