"""The profiler's events and Nsight Compute's tables: what they hold, what they say, and what is no such thing."""

import json
from types import SimpleNamespace

import pytest

from bench.harness.device.device import cpu_device
from bench.harness.profile.counters.ncu import READ, WRITTEN, CountersError, ForbiddenError, parse_counters
from bench.validation import profiler_times
from bench.validation.profiler_times import (
    L2,
    Activity,
    ActivityError,
    Counted,
    Timeline,
    activities_of,
    counted,
    timeline,
)
from roofline.work import Work

MIB = 2**20


def event(name, start, end, device="CUDA", **more):
    span = SimpleNamespace(start=start, end=end)
    return SimpleNamespace(name=name, device_type=SimpleNamespace(name=device), time_range=span, **more)


# ---- the profiler's events ----------------------------------------------------------------------------------------


def test_kernels_are_told_from_the_host_and_from_ranges():
    events = [
        event("second", 20.0, 30.0),
        event("first", 1.0, 11.0),
        event("cudaGraphLaunch", 0.0, 50.0, "CPU", cpu_parent=None),
        event("my range", 0.0, 50.0, is_user_annotation=True),
    ]
    found = activities_of(events, on_gpu=True)
    assert [one.name for one in found] == ["first", "second"]
    assert found[0].end_s - found[0].start_s == pytest.approx(10e-6)


def test_on_a_cpu_operators_that_no_other_called_count():
    events = [
        event("aten::matmul", 0.0, 10.0, "CPU", cpu_parent=None),
        event("aten::mm", 1.0, 9.0, "CPU", cpu_parent="matmul"),
    ]
    assert [one.name for one in activities_of(events, on_gpu=False)] == ["aten::matmul"]


@pytest.mark.parametrize(("start", "end"), [(1.0, 1.0), (2.0, 1.0), (float("nan"), 1.0), (0.0, float("inf"))])
def test_an_event_without_a_time_is_no_activity(start, end):
    assert activities_of([event("k", start, end), SimpleNamespace(name="empty")], on_gpu=True) == []


def test_a_launch_has_its_kernels_and_the_gaps_between_them_but_not_those_between_samples():
    sample = [Activity("a", 0.0, 3.0), Activity("b", 4.0, 6.0), Activity("a", 8.0, 11.0), Activity("b", 12.0, 14.0)]
    later = [Activity(one.name, one.start_s + 1000, one.end_s + 1000) for one in sample]
    found = timeline([*sample, *later], samples=2, launches_per_sample=2)
    assert (found.busy_s, found.covered_s, found.gap_s) == (5.0, 5.0, 2.0)
    assert (found.activities, found.names) == (2, ("a", "b"))


def test_overlapping_kernels_cover_less_than_their_sum():
    found = timeline([Activity("a", 0.0, 4.0), Activity("b", 2.0, 6.0), Activity("c", 3.0, 5.0)], 1, 1)
    assert (found.busy_s, found.covered_s, found.gap_s) == (10.0, 6.0, 0.0)
    found = timeline([Activity("a", 0.0, 10.0), Activity("b", 2.0, 4.0), Activity("c", 6.0, 8.0)], 1, 1)
    assert (found.busy_s, found.covered_s, found.gap_s) == (14.0, 10.0, 0.0)


def test_lost_activities_are_no_timeline():
    with pytest.raises(ActivityError, match="nothing"):
        timeline([], 3, 10)
    with pytest.raises(ActivityError, match="3 activities for 2 launches"):
        timeline([Activity("a", 0.0, 1.0)] * 3, 1, 2)


@pytest.mark.parametrize(
    ("profiled_s", "busy_s", "covered_s", "gap_s", "is_known", "said"),
    [
        (10.0, 9.6, 9.6, 0.3, True, "within 5 %"),
        (10.0, 7.0, 7.0, 2.9, True, "29.0% of our time are gaps"),
        (10.0, 15.0, 10.1, 0.0, True, "kernels overlap: 49.0%"),
        (13.0, 9.0, 9.0, 4.0, True, "1.30 times ours"),
        (10.0, 7.0, 7.0, 0.1, False, "unexplained"),
        (10.0, 15.0, 15.0, 0.1, False, "unexplained"),
    ],
)
def test_the_difference_is_explained_by_what_was_seen(profiled_s, busy_s, covered_s, gap_s, is_known, said):
    found = profiler_times.time_verdict(10.0, profiled_s, Timeline(busy_s, covered_s, gap_s, 2, ("a", "b")))
    assert found[0] == is_known
    assert said in found[1]


def test_torchs_own_profiler_is_read_on_a_cpu(capsys):
    args = profiler_times.build_parser().parse_args(["--case", "sum/fp32/65536", "--device", "cpu"])
    assert profiler_times.run(args) == 0
    captured = capsys.readouterr()
    assert "1 operators a launch" in captured.out
    assert "bytes were not counted: that needs an NVIDIA GPU" in captured.err


@pytest.mark.gpu
def test_the_kernels_of_a_graph_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(profiler_times, "COUNTED", ())
    args = profiler_times.build_parser().parse_args(["--device", "cuda", "--output", str(tmp_path)])
    assert profiler_times.run(args) == 0
    (row,) = json.loads((tmp_path / "profiler_times.json").read_text())["times"]
    assert (row["method"], row["cache"], row["activities"]) == ("graph", "cold", 1)
    assert 0 < row["busy_s"] < 2 * row["ours_s"]


def test_a_profiler_that_cannot_record_takes_one_line(monkeypatch, capsys):
    def fails(sampler, on_gpu):
        raise AssertionError("no CUPTI here\nat all")

    monkeypatch.setattr(profiler_times, "profiled", fails)
    args = profiler_times.build_parser().parse_args(["--case", "sum/fp32/4096", "--device", "cpu"])
    assert profiler_times.run(args) == 0
    assert "sum/fp32/4096: no time of the profiler: AssertionError: no CUPTI here at all\n" in capsys.readouterr().err


# ---- bytes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("read", "written", "l2", "is_known", "said"),
    [
        (1000, 1000, 2000, True, "read 1.000, written 1.000"),
        (1000, 960, 2000, True, "still in it"),
        (1000, 940, 2000, False, "writes unexplained"),
        (1000, 1030, 2000, False, "writes unexplained"),
        (1500, 1000, 2500, True, "read again"),
        (1500, 1000, 1400, False, "reads unexplained"),
        (900, 1000, 2000, False, "reads unexplained"),
    ],
)
def test_counted_bytes_are_held_against_the_compulsory_ones(read, written, l2, is_known, said):
    found = profiler_times.bytes_verdict(
        Counted(read * MIB, written * MIB, l2 * MIB, ("k",)), Work(0, 1000 * MIB, 1000 * MIB), 50 * MIB
    )
    assert found[0] == is_known
    assert said in found[1]


def gpu():
    return SimpleNamespace(type="cuda", torch_name="cuda:0", cache_bytes=50 * MIB)


def test_without_the_tool_one_line_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CountersError, match="no ncu on the path"):
        list(profiler_times.count_all(gpu(), profiler_times.COUNTED))
    with pytest.raises(CountersError, match="needs an NVIDIA GPU"):
        list(profiler_times.count_all(cpu_device(), profiler_times.COUNTED))


METRICS = (READ, WRITTEN, L2)
RAW = f"""==PROF== Connected to process 1
"ID","Process ID","Kernel Name","{READ}","{WRITTEN}","{L2}"
"","","","byte","Kbyte","byte"
"0","1","copy(float *, int)","4,294,967,296","4194304","8589934592"
"1","1","tail","10","0","20"
"""


def test_the_kernels_of_a_launch_are_summed():
    kernels = parse_counters(RAW, METRICS)
    assert counted(kernels, METRICS) == Counted(2**32 + 10, 4_194_304_000, 2**33 + 20, ("copy(float *, int)", "tail"))


def test_a_launch_without_kernels_is_refused():
    with pytest.raises(CountersError, match="a copy that the driver makes is none"):
        counted([], METRICS)


def test_a_case_that_fails_does_not_keep_the_next_from_being_counted(put_on_path):
    put_on_path(f'case "$*" in *copy*) exit 5;; *query*) ;; *) cat <<"EOF"\n{RAW}\nEOF\n;; esac')
    first, second = profiler_times.count_all(gpu(), profiler_times.COUNTED)
    assert (first["is_known"], first["verdict"]) == (False, "ncu failed with 5: it said nothing")
    assert second["read"] == 2**32 + 10
    assert second["bytes_read"] == 2 * 2 * 8192**2


def test_where_counting_is_forbidden_it_is_not_tried_again(put_on_path, tmp_path):
    put_on_path(f'echo "$1" >>{tmp_path}/tried; echo ERR_NVGPUCTRPERM; exit 1')
    with pytest.raises(ForbiddenError):
        list(profiler_times.count_all(gpu(), profiler_times.COUNTED))
    assert (tmp_path / "tried").read_text().split() == ["--query-metrics", "--csv"]
