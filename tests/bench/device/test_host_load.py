"""What the host's cores were doing, from files of cgroups, /proc and sysfs as Linux writes them."""

import pytest

from bench.harness.device.host_load import lost_shares, snapshot, switches_and_state

V2 = (
    "usage_usec 9000000\nuser_usec 8000000\nsystem_usec 1000000\nnr_periods {0}\nnr_throttled {1}\nthrottled_usec {2}\n"
)
V1 = "nr_periods {0}\nnr_throttled {1}\nthrottled_time {2}\nnr_bursts 0\nburst_time 0\n"

CORES = frozenset({0, 1})


class Host:
    """A root folder of which tests change single files."""

    def __init__(self, root):
        self.root = root

    def write(self, path, text):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def ticks(self, *cores):
        lines = [f"cpu{number} {' '.join(map(str, states))} 0 0" for number, states in enumerate(cores)]
        self.write("proc/stat", "\n".join(["cpu  1 1 1 1 1 1 1 1 0 0", *lines, "intr 5 0 0", "ctxt 7"]) + "\n")

    def snapshot(self):
        return snapshot(CORES, self.root)


@pytest.fixture
def host(tmp_path):
    found = Host(tmp_path)
    found.ticks((100, 0, 10, 50, 0, 0, 0, 5), (100, 0, 10, 50, 0, 0, 0, 5))
    found.write("proc/self/cgroup", "0::/\n")
    found.write("proc/loadavg", "1.50 1.00 0.50 2/300 12345\n")
    return found


def shares(before, after, window_s=2.0, cores=2):
    found = lost_shares(before, after, window_s, cores)
    return found["cgroup_quota"], found["steal"]


# ---- cgroups -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "lines", "group", "unit"),
    [
        ("sys/fs/cgroup/cpu.stat", V2, "0::/\n", 1),
        ("sys/fs/cgroup/system.slice/job.scope/cpu.stat", V2, "0::/system.slice/job.scope\n", 1),
        ("sys/fs/cgroup/cpu/docker/ab12/cpu.stat", V1, "5:memory:/x\n4:cpu:/docker/ab12\n0::/\n", 1000),
        ("sys/fs/cgroup/cpu,cpuacct/batch/cpu.stat", V1, "4:cpu,cpuacct:/batch\n", 1000),
        ("sys/fs/cgroup/cpu/cpu.stat", V1, "4:cpu:/path/that/is/the/hosts\n", 1000),
    ],
)
def test_throttled_time_of_both_versions_in_seconds_and_shares(host, path, lines, group, unit):
    host.write("proc/self/cgroup", group)
    host.write(path, lines.format(100, 7, 300_000 * unit))
    before = host.snapshot()
    host.write(path, lines.format(120, 17, 900_000 * unit))
    after = host.snapshot()
    quota, _ = shares(before, after)
    assert quota.value == pytest.approx(0.6 / (2.0 * 2))  # 0.6 s of 2 cores x 2 s
    assert switches_and_state(before, after, 2.0)["cgroup_throttled_periods"].value == 10


def test_of_nested_groups_the_one_that_held_longest_counts(host):
    host.write("proc/self/cgroup", "0::/user/job\n")
    outer, inner = "sys/fs/cgroup/user/cpu.stat", "sys/fs/cgroup/user/job/cpu.stat"
    for path in (outer, inner):
        host.write(path, V2.format(0, 0, 0))
    before = host.snapshot()
    host.write(outer, V2.format(20, 4, 400_000))
    host.write(inner, V2.format(20, 1, 100_000))
    after = host.snapshot()
    assert shares(before, after)[0].value == pytest.approx(0.1)
    assert switches_and_state(before, after, 2.0)["cgroup_throttled_periods"].value == 4


@pytest.mark.parametrize(
    "text", ["", "usage_usec 5\nuser_usec 5\n", "nr_throttled 5\n", "nr_throttled x\nthrottled_usec 1\n", "\0\xff"]
)
def test_a_group_that_counts_no_throttling_is_missing_not_zero(host, text):
    host.write("sys/fs/cgroup/cpu.stat", text)
    seen = host.snapshot()
    assert shares(seen, seen)[0].value is None
    assert shares(seen, seen)[0].error == "NoCounter"
    assert switches_and_state(seen, seen, 2.0)["cgroup_throttled_periods"].value is None


def test_a_quota_that_was_never_reached_is_a_measured_zero(host):
    host.write("sys/fs/cgroup/cpu.stat", V2.format(100, 0, 0))
    seen = host.snapshot()
    assert shares(seen, seen)[0].value == 0


@pytest.mark.parametrize(
    ("grown_us", "error"),
    [(-1, "CounterWentBackwards"), (4_300_000, "CounterTooFast: 4.3 s on 2 cores in 2 s")],
)
def test_a_throttle_counter_that_cannot_be_true_is_missing(host, grown_us, error):
    host.write("sys/fs/cgroup/cpu.stat", V2.format(0, 3, 1_000_000))
    before = host.snapshot()
    host.write("sys/fs/cgroup/cpu.stat", V2.format(9, 3, 1_000_000 + grown_us))
    assert shares(before, host.snapshot())[0].error == error


@pytest.mark.parametrize("window_s", [0.0, float("nan")])
def test_without_a_window_there_is_no_share_and_no_rate(host, window_s):
    host.write("sys/fs/cgroup/cpu.stat", V2.format(0, 0, 0))
    seen = host.snapshot()
    assert shares(seen, seen, window_s)[0].error == "NoWindow"
    assert switches_and_state(seen, seen, window_s)["involuntary_switches_per_s"].error == "NoWindow"


# ---- steal ---------------------------------------------------------------------------------------------------------


def test_stolen_time_is_a_share_of_the_ticks_of_our_cores(host):
    before = host.snapshot()
    # 200 ticks on each of three cores; 60 and 20 stolen of the two that are ours, all 200 of the third
    host.ticks((240, 0, 10, 50, 0, 0, 0, 65), (200, 0, 20, 120, 0, 0, 0, 25), (0, 0, 0, 0, 0, 0, 0, 200))
    assert shares(before, host.snapshot())[1].value == pytest.approx(80 / 400)


def test_guest_time_is_not_counted_twice(host):
    host.write("proc/stat", "cpu0 100 0 0 100 0 0 0 0 90 0\ncpu1 0 0 0 0 0 0 0 0 0 0\n")
    before = host.snapshot()
    host.write("proc/stat", "cpu0 150 0 0 100 0 0 0 50 140 0\ncpu1 0 0 0 0 0 0 0 0 0 0\n")
    assert shares(before, host.snapshot())[1].value == pytest.approx(0.5)


def test_a_window_without_a_tick_has_no_share_of_steal(host):
    seen = host.snapshot()
    assert shares(seen, seen)[1].error == "WindowTooShort"


def test_steal_that_goes_backwards_is_missing(host):
    before = host.snapshot()
    host.ticks((300, 0, 10, 50, 0, 0, 0, 4), (100, 0, 10, 50, 0, 0, 0, 5))
    assert shares(before, host.snapshot())[1].error == "CounterWentBackwards"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "NoValue"),
        ("cpu7 1 1 1 1 1 1 1 1\n", "NoValue"),
        ("cpu0 1 2 3\n", "IndexError"),
        ("cpu0 a b c d e f g h\n", "ValueError"),
    ],
)
def test_a_strange_proc_stat_is_an_error_by_name(host, text, error):
    host.write("proc/stat", text)
    seen = host.snapshot()
    assert shares(seen, seen)[1].error == error


# ---- state ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "text", "turbo"),
    [
        ("intel_pstate/no_turbo", "0\n", True),
        ("intel_pstate/no_turbo", "1\n", False),
        ("cpufreq/boost", "1\n", True),
        ("cpufreq/boost", "0\n", False),
        ("cpufreq/boost", "perhaps\n", None),
        ("cpufreq/boost", "", None),
    ],
)
def test_turbo_of_both_drivers(host, path, text, turbo):
    host.write(f"sys/devices/system/cpu/{path}", text)
    assert host.snapshot().turbo.value is turbo


def test_load_and_governor(host):
    host.write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n")
    seen = host.snapshot()
    state = switches_and_state(seen, seen, 2.0)
    assert (state["load_average"].value, state["governor"].value) == (1.5, "performance")


def test_an_empty_root_gives_errors_and_no_exception(tmp_path):
    seen = snapshot(CORES, tmp_path)
    found = lost_shares(seen, seen, 2.0, 2) | switches_and_state(seen, seen, 2.0)
    missing = {"cgroup_quota", "steal", "cgroup_throttled_periods", "load_average", "governor", "turbo"}
    assert {name for name, reading in found.items() if reading.error is not None} == missing


def test_a_process_that_waits_counts_voluntary_switches(host):
    import time

    before = host.snapshot()
    for _ in range(20):
        time.sleep(1e-4)
    found = switches_and_state(before, host.snapshot(), 1.0)
    assert found["voluntary_switches_per_s"].value >= 20
    assert found["involuntary_switches_per_s"].value >= 0
