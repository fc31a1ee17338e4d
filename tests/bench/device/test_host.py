"""Facts of the host, from written sysfs and cgroup files and from a fake psutil."""

from types import SimpleNamespace

import pytest

from bench.harness.device import device as host
from bench.harness.device import telemetry
from bench.harness.device.telemetry import row_telemetry, snapshot
from bench.harness.measure.flags import MAX_CORE_WAIT, disturbance
from tests.bench.commands import CPU

MIB, GIB = 2**20, 2**30
GROUP = "sys/fs/cgroup"
VERSION_1 = "4:memory:/job\n1:cpu,cpuacct:/job\n0::/\n"
"""`/proc/self/cgroup` of a hybrid layout: version 2 is mounted, without controllers."""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Return a function that writes files of a system that reports nothing else."""
    monkeypatch.setattr(host, "ROOT", tmp_path)
    monkeypatch.setattr(host.psutil.Process, "cpu_affinity", lambda self: [0, 1])

    def files(texts):
        for name, text in texts.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    return files


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        (
            {
                "proc/self/cgroup": "0::/system.slice/job_1/step_0\n",
                f"{GROUP}/system.slice/cpu.max": "800000 100000",
                f"{GROUP}/system.slice/job_1/cpu.max": "200000 100000",
                f"{GROUP}/system.slice/job_1/step_0/cpu.max": "max 100000",
                f"{GROUP}/other.slice/cpu.max": "100000 100000",
            },
            2.0,
        ),
        (
            {
                "proc/self/cgroup": f"5:cpuset:/a\n{VERSION_1}",
                f"{GROUP}/cpu/job/cpu.cfs_quota_us": "50000\n",
                f"{GROUP}/cpu/job/cpu.cfs_period_us": "100000\n",
                f"{GROUP}/cpu/cpu.cfs_quota_us": "-1\n",
                f"{GROUP}/cpu/cpu.cfs_period_us": "100000\n",
                f"{GROUP}/cpuset/a/cpu.cfs_quota_us": "10000\n",
                f"{GROUP}/cpuset/a/cpu.cfs_period_us": "100000\n",
            },
            0.5,
        ),
        (
            {
                "proc/self/cgroup": "4:cpuacct,cpu:/docker/host/path\n",
                f"{GROUP}/cpu/cpu.cfs_quota_us": "150000",
                f"{GROUP}/cpu/cpu.cfs_period_us": "100000",
            },
            1.5,
        ),
        ({"proc/self/cgroup": "0::/../../job\n", f"{GROUP}/cpu.max": "100000 100000"}, 1.0),
    ],
    ids=[
        "none",
        "nested",
        "hybrid",
        "container",
        "outside",
    ],
)
def test_lowest_quota_of_the_control_groups(write, files, quota):
    write(files)
    assert host.usable_cores().quota == quota


def caches(cpu, **sizes):
    """Return the files of the caches of one core: `L3="32768K on 0-7"`."""
    files = {}
    for index, text in enumerate(sizes.values()):
        size, _, shared = text.partition(" on ")
        folder = f"sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
        files |= {f"{folder}/size": f"{size}\n", f"{folder}/shared_cpu_list": f"{shared or cpu}\n"}
    return files


def test_last_level_caches_are_counted_once_each(write):
    assert host.last_level_cache_bytes([0], 1) is None
    for cpu in range(16):
        write(caches(cpu, L1d="48K", L2="1024K", L3=f"32M on {cpu // 8 * 8}-{cpu // 8 * 8 + 7}"))
    assert host.last_level_cache_bytes(range(16), 16) == 64 * MIB
    assert host.last_level_cache_bytes(range(8), 8) == 32 * MIB  # affinity keeps to one of them
    assert host.last_level_cache_bytes(range(16), 1) == 32 * MIB  # one thread reaches one at a time


@pytest.mark.parametrize(
    ("files", "total", "available"),
    [
        ({}, 16 * GIB, 12 * GIB),
        ({f"{GROUP}/memory.max": "max", f"{GROUP}/memory.current": "5"}, 16 * GIB, 12 * GIB),
        (
            {
                f"{GROUP}/memory.max": f"{4 * GIB}",
                f"{GROUP}/memory.current": f"{3 * GIB}",
                f"{GROUP}/memory.stat": f"anon 7\ninactive_file {2 * GIB}\nactive_file 9\n",
            },
            4 * GIB,
            3 * GIB,
        ),
        (
            {
                "proc/self/cgroup": "0::/user.slice/job\n",
                f"{GROUP}/user.slice/memory.max": f"{8 * GIB}",
                f"{GROUP}/user.slice/memory.current": f"{7 * GIB}",
                f"{GROUP}/user.slice/job/memory.max": f"{4 * GIB}",
                f"{GROUP}/user.slice/job/memory.current": f"{1 * GIB}",
            },
            4 * GIB,
            1 * GIB,  # the outer group has less left
        ),
        (
            {
                "proc/self/cgroup": VERSION_1,
                f"{GROUP}/memory/job/memory.limit_in_bytes": f"{4 * GIB}",
                f"{GROUP}/memory/job/memory.usage_in_bytes": f"{3 * GIB}",
                f"{GROUP}/memory/job/memory.stat": (
                    f"inactive_file 5\ntotal_inactive_file {2 * GIB}\n"
                ),
                f"{GROUP}/memory/memory.limit_in_bytes": "9223372036854771712",
                f"{GROUP}/memory/memory.usage_in_bytes": f"{9 * GIB}",
            },
            4 * GIB,
            3 * GIB,
        ),
    ],
    ids=["none", "no limit", "file pages", "nested", "version 1"],
)
def test_memory_within_the_limits_of_control_groups(write, monkeypatch, files, total, available):
    monkeypatch.setattr(
        host.psutil, "virtual_memory", lambda: SimpleNamespace(total=16 * GIB, available=12 * GIB)
    )
    write(files)
    assert host.memory_bytes() == (total, available)


def test_processor_governor_and_turbo(write, monkeypatch):
    monkeypatch.setattr(host.platform, "processor", lambda: "aarch64")
    monkeypatch.setattr(host.psutil, "getloadavg", lambda: (3.25, 2.0, 1.0))
    state = {"load_average": 3.25, "governor": None, "turbo": None}
    assert (host.environment_facts()["host"]["cpu"], host.host_state()) == ("aarch64", state)
    cpu = "sys/devices/system/cpu"
    write({"proc/cpuinfo": "processor\t: 0\nmodel name\t: AMD EPYC 9654 \nmodel name\t: another\n"})
    write({f"{cpu}/cpu0/cpufreq/scaling_governor": "powersave\n", f"{cpu}/cpufreq/boost": "1\n"})
    state |= {"governor": "powersave", "turbo": True}
    assert (host.environment_facts()["host"]["cpu"], host.host_state()) == ("AMD EPYC 9654", state)
    write({f"{cpu}/intel_pstate/no_turbo": "1\n"})
    assert host.host_state()["turbo"] is False


STAT = "usage_usec 9000000\nnr_periods {0}\nnr_throttled {1}\nthrottled_usec {2}\n"


def changes(before, after, window_s=2.0):
    return row_telemetry(before, after._replace(taken_s=before.taken_s + window_s))


def quota_and_periods(before, after):
    row = changes(before, after)
    return row["throttle"]["cgroup_quota"], row["cgroup_throttled_periods"]


def test_time_lost_to_a_quota(write):
    path = f"{GROUP}/system.slice/job.scope/cpu.stat"
    write({"proc/self/cgroup": "0::/system.slice/job.scope\n", path: STAT.format(100, 7, 300_000)})
    before = snapshot(CPU)
    write({path: STAT.format(120, 17, 900_000)})
    after = snapshot(CPU)
    # 0.6 s of 2 cores x 2 s.
    assert quota_and_periods(before, after) == (pytest.approx(0.6 / (2.0 * 2)), 10)
    assert quota_and_periods(before, before) == (0, 0)  # measured, and zero
    assert quota_and_periods(after, before)[0] is None  # a counter that went backwards
    write({path: STAT.format(120, 17, 5_300_000)})
    assert quota_and_periods(before, snapshot(CPU))[0] is None  # more than there is


def test_time_lost_to_a_quota_of_version_1(write):
    path = f"{GROUP}/cpu/job/cpu.stat"
    stat = "nr_periods 9\nnr_throttled {0}\nthrottled_time {1}\n"
    write({"proc/self/cgroup": VERSION_1, path: stat.format(7, 300_000_000)})
    before = snapshot(CPU)
    write({path: stat.format(17, 900_000_000)})
    assert quota_and_periods(before, snapshot(CPU)) == (pytest.approx(0.6 / (2.0 * 2)), 10)


def test_time_lost_in_nested_groups_is_not_added(write):
    outer, inner = f"{GROUP}/user/cpu.stat", f"{GROUP}/user/job/cpu.stat"
    write(
        {"proc/self/cgroup": "0::/user/job\n"} | dict.fromkeys((outer, inner), STAT.format(0, 0, 0))
    )
    before = snapshot(CPU)
    write({outer: STAT.format(20, 4, 400_000), inner: STAT.format(20, 1, 100_000)})
    assert quota_and_periods(before, snapshot(CPU)) == (pytest.approx(0.1), 4)


def psutil_times(*cores):
    """Return times as psutil has them on Linux: steal is eighth, before the guest times."""

    class Times(tuple):
        steal = property(lambda self: self[7])

    return [
        Times((user, 0.0, 0.0, idle, 0.0, 0.0, 0.0, steal, guest, 0.0))
        for user, idle, steal, guest in cores
    ]


def test_steal_is_a_fraction_of_the_time_of_the_used_cores(write, monkeypatch):
    times = psutil_times((1, 5, 0, 9), (1, 5, 0, 9), (1, 5, 0, 0))
    monkeypatch.setattr(telemetry.psutil, "cpu_times", lambda percpu: times)
    before = snapshot(CPU)
    # 2 s on each of three cores: 0.6 and 0.2 stolen from the two that are ours, 2 from the third;
    # guests are users
    times = psutil_times((2.4, 5, 0.6, 10), (1, 6.8, 0.2, 9), (1, 5, 2, 0))
    assert changes(before, snapshot(CPU))["throttle"]["steal"] == pytest.approx(0.8 / 4)
    times = [(1.0, 2.0, 3.0, 4.0)] * 2  # a system without steal
    assert changes(before, snapshot(CPU))["throttle"]["steal"] is None


def test_preemption_is_counted_per_thread(write):
    def counted(counts):
        for thread, count in enumerate(counts):
            status = f"Name:\tpython\nvoluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t{count}\n"  # noqa: E501
            write({f"proc/self/task/{thread}/status": status})
        return snapshot(CPU)

    before = counted([100] * 16)
    quiet = changes(before, counted([120] * 16), 1.0)
    assert quiet["thread_switches_per_s"] == 20.0
    assert (
        disturbance(
            quiet | {"window_s": 1.0, "throttle": {}, "involuntary_switches_per_s": 320.0}, False
        )
        is None
    )
    busy = changes(before, counted([120] * 15 + [300, 50]), 1.0)
    assert (
        disturbance(busy | {"window_s": 1.0, "throttle": {}}, is_gpu=False).reason
        == "a thread lost its core 200 times per second"
    )


def test_waits_of_threads_decide_whether_others_had_the_cores(write):
    """Not the switches: with many competitors there are few."""

    def waited(**waits_s):
        for thread, wait_s in waits_s.items():
            status = "nonvoluntary_ctxt_switches:\t5\n"
            times = f"900000000 {int(wait_s * 1e9)} 12\n"
            folder = f"proc/self/task/{thread}"
            write({f"{folder}/status": status, f"{folder}/schedstat": times})
        return snapshot(CPU)

    before = waited(old=70.0, other=3.0)
    quiet = changes(before, waited(old=70.0 + 2.0 * MAX_CORE_WAIT, other=3.0))
    assert quiet["core_wait"] == pytest.approx(MAX_CORE_WAIT)
    assert quiet["thread_switches_per_s"] == 0.0
    busy = changes(before, waited(old=70.5, other=4.5, new=0.3))
    assert busy["core_wait"] == pytest.approx(0.75)  # of two seconds
    busy["throttle"] = {}  # the time stolen from this machine is real
    assert disturbance(busy, False).reason == "a thread waited for a core 75 % of the time"
