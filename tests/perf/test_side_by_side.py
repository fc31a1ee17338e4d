"""The side-by-side command: its cases, a small run of it on a CPU, what it shows and what it writes."""

import itertools
import json

import pytest

from bench.harness.cli.arguments import UsageError
from bench.harness.device.device import cpu_device
from bench.validation import listed_cases, other_clocks, side_by_side
from bench.validation.listed_cases import CPU_CASES, GPU_CASES, WrongResultError, estimate_s, make_ready, parse_case
from bench.validation.other_clocks import LADDERS, THEIRS, Explanation, Reading
from bench.validation.side_by_side import Compared

SMALL = "matmul/fp32/48"


@pytest.fixture
def quick(monkeypatch):
    """Turns as short as they can be."""
    monkeypatch.setattr(other_clocks, "TIMER_S", 0.01)
    monkeypatch.setattr(side_by_side, "QUICK_SECONDS", 0.01)


def command(*words):
    return side_by_side.run(side_by_side.build_parser().parse_args(["--device", "cpu", "--quick", *map(str, words)]))


def test_the_cases_of_a_gpu_spread_from_5_us_to_5_ms_by_datasheet():
    estimates = [estimate_s(parse_case(name), "h100-sxm") for name in GPU_CASES]
    assert len(estimates) == len(set(GPU_CASES)) == len(set(CPU_CASES)) == 12
    assert estimates == sorted(estimates)
    assert 4.5e-6 < estimates[0] < 5.5e-6
    assert 4.5e-3 < estimates[-1] < 5.5e-3
    assert max(after / before for before, after in itertools.pairwise(estimates)) < 4


def test_an_estimate_is_the_datasheet_roofline():
    assert estimate_s(parse_case("matmul/bf16/8192"), "h100-sxm") == pytest.approx(2 * 8192**3 / 989.4e12)
    assert estimate_s(parse_case("add/bf16/1000000"), "h100-sxm") == pytest.approx(6e6 / 3.352e12)
    assert estimate_s(parse_case("add/bf16/1000000"), "cpu-amd-epyc-2t") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("matmul", "not op/dtype/shape"),
        ("matmul/bf16/8/8", "not op/dtype/shape"),
        ("matmuls/bf16/8", "unknown op 'matmuls'"),
        ("matmul/bf17/8", "no dtype 'bf17'"),
        ("matmul/bf16/8xx8", "not a size"),
        ("matmul/bf16/0", "not a size"),
        ("matmul/bf16/8:16:8", "2 shapes"),
    ],
)
def test_a_case_that_cannot_be_is_refused(text, said):
    with pytest.raises(UsageError, match=said):
        parse_case(text)


def test_a_wrong_result_is_not_timed(monkeypatch):
    listed = parse_case(SMALL)
    monkeypatch.setattr(
        listed_cases, "load", lambda *_: listed_cases_provider(lambda a, b, out: out.copy_(a @ b + 0.1))
    )
    with pytest.raises(WrongResultError, match="wrong result"):
        make_ready(listed, cpu_device())
    found = side_by_side.compare_case(listed, cpu_device(), 3, 0.01, 0)
    assert (found.status, found.rounds, found.explanations) == ("invalid", [], [])


def listed_cases_provider(function):
    from bench.harness.providers.registry import Provider

    return Provider("torch", function, takes_out=True)


def test_every_ladder_ends_at_its_clock_and_every_rung_can_be_timed():
    ready = make_ready(parse_case(SMALL), cpu_device())
    timed = {*other_clocks.Clocks(ready, 0.01)._ways, *(f"{way} median" for way in other_clocks.MEANS)}
    assert THEIRS.keys() == LADDERS.keys()
    for theirs, ladder in LADDERS.items():
        assert ladder[-1].way == theirs
        assert {rung.way for rung in ladder} <= timed
    assert side_by_side.NOTES.keys() <= timed


def test_a_run_writes_every_raw_value_and_both_tables(quick, tmp_path, capsys):
    assert command("--case", f"{SMALL},sum/fp32/4096", "--output", tmp_path / "out") == 0
    captured = capsys.readouterr()
    assert "no GPU" in captured.err
    assert "2 pairs: " in captured.out
    document = json.loads((tmp_path / "out" / "side_by_side.json").read_text())
    assert [one["case"] for one in document["cases"]] == [SMALL, "sum/fp32/4096"]
    assert document["versions"]["torch"]
    assert document["device"]["type"] == "cpu"
    for one in document["cases"]:
        assert (one["status"], len(one["rounds"])) == ("ok", 3)
        for readings in one["rounds"]:
            # So small a case may not fill the cache of this machine: then there is no cold time, and that is said.
            ways = {"cold", "warm", "bench.do_bench", "single calls, copies", "block of launches", "torch Timer"}
            assert readings.keys() | one["failed"].keys() == ways
            assert one["failed"].keys() <= {"cold", "single calls, copies"}
            assert all(reading["value_s"] > 0 and reading["values_s"] for reading in readings.values())
    markdown = (tmp_path / "out" / "side_by_side.md").read_text()
    assert f"| {SMALL} |" in markdown
    assert "bench.do_bench" in markdown
    assert "| do_bench" not in markdown


def test_a_clock_that_fails_costs_only_its_own_column(quick, tmp_path, capsys, monkeypatch):
    def fails(self):
        raise OSError("no such clock\nat all")

    monkeypatch.setattr(other_clocks.Clocks, "_torch_timer", fails)
    assert command("--case", SMALL, "--output", tmp_path) == 0
    assert f"{SMALL}: torch Timer: no time: OSError: no such clock at all" in capsys.readouterr().out


def test_what_the_device_cannot_run_is_skipped(tmp_path, capsys):
    assert command("--case", "matmul/tf32/64", "--output", tmp_path) == 0
    assert "skipped: " in capsys.readouterr().out


def test_a_folder_that_cannot_be_written_is_known_before_anything_is_measured(tmp_path, monkeypatch):
    from results.store.runs import StoreError

    (tmp_path / "file").write_text("")
    monkeypatch.setattr(side_by_side, "compare_case", lambda *_: pytest.fail("measured"))
    with pytest.raises(StoreError, match="cannot write"):
        command("--case", SMALL, "--output", tmp_path / "file" / "folder")


def test_the_mean_of_a_round_is_told_from_its_median():
    rounds = [{"do_bench": Reading(3.0, (1.0, 1.0, 7.0), 1)}]
    assert side_by_side.with_medians(rounds[0]) == {"do_bench": 3.0, "do_bench median": 1.0}
    assert side_by_side.scatter_of(rounds)["do_bench"] == (3, pytest.approx(2 / 3))
    assert side_by_side.scatter_of([{"do_bench": Reading(3.0, (3.0,), 1)}]) == {}


def test_a_device_that_tritons_do_bench_cannot_time_is_told():
    reading = Reading(3.0, (3.0,), 1)
    cases = [side_by_side.Compared("a/b/c", None, rounds=[{"cold": reading, "torch Timer": reading}])]
    assert side_by_side.reason_lines(cases)[-1].startswith("Triton's do_bench is not among the ways: it needs")
    cases[0].rounds[0]["do_bench"] = reading
    assert side_by_side.reason_lines(cases) == []


def test_notes_are_shown_only_where_their_facts_are_known():
    compared = Compared(
        "c", None, rounds=[{way: Reading(1.0, (1.0,), 1) for way in ("warm",)}], facts={"flush_s": 1e-4}
    )
    note = side_by_side.NOTES["loop, zero flush"]
    assert not side_by_side.has_facts(note, compared)
    compared.facts = {"flush_s": 1e-4, "host_launch_s": 5e-6}
    assert side_by_side.has_facts(note, compared)
    assert note.format(**side_by_side.shown(compared.facts)) == "the host takes 5.000 us a launch, the flush 100.0 us"


def test_only_a_busy_machine_counts_as_a_disturbance():
    assert side_by_side.disturbance(20.0) is None
    assert "400 times a second" in side_by_side.disturbance(400.0)


def test_the_summary_counts_verdicts():
    same = Explanation("warm", "torch Timer", 1.01, 1.0, 1.02, 5, "same")
    other = Explanation("cold", "do_bench", 1.5, 1.4, 1.6, 5, "unexplained", ("unexplained",))
    cases = [Compared("a/b/c", 1e-5, explanations=[same, other])]
    assert side_by_side.reason_lines(cases) == ["a/b/c: do_bench / ours cold +50.0%: unexplained"]
    assert side_by_side.summary(cases).startswith("2 pairs: 1 same, 0 explained, 0 partly, 1 unexplained")


@pytest.mark.gpu
def test_all_ways_time_a_launch_of_a_gpu(tmp_path):
    words = ["--device", "cuda", "--quick", "--case", "gelu/bf16/4194304", "--output", str(tmp_path)]
    assert side_by_side.run(side_by_side.build_parser().parse_args(words)) == 0
    (one,) = json.loads((tmp_path / "side_by_side.json").read_text())["cases"]
    assert (one["status"], one["failed"]) == ("ok", {})
    assert {found["theirs"] for found in one["explanations"]} == THEIRS.keys()
    assert all(readings.keys() == one["rounds"][0].keys() for readings in one["rounds"])
    assert one["rounds"][0].keys() >= {"cold", "warm", "pairs, read flush", "graph of 20 ms", "queued launches"}
