"""Nsight Compute's tables and what they say of a step's operations, by tables and a tool written by hand.

No GPU has printed one of them: their form is the documented one, `--page raw` with and without `--nvtx`.
"""

import io
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from torch import nn

from bench.__main__ import main
from bench.harness.commands import profiler
from bench.harness.device.device import cpu_device
from bench.harness.profile import show
from bench.harness.profile.account import Accounted
from bench.harness.profile.counters import ncu
from bench.harness.profile.counters.ncu import (
    READ,
    WRITTEN,
    CountedKernel,
    CountersError,
    ForbiddenError,
    counted_by,
    listed_metrics,
    metric_name,
    ncu_command,
    parse_counters,
)
from bench.harness.profile.counters.ranges import (
    DURATION,
    HITS,
    MISSES,
    TENSOR,
    Counters,
    counters_of,
    range_name,
    replay_in_ranges,
)
from bench.harness.profile.join import StepTimes
from bench.harness.profile.profiling import account
from bench.harness.profile.report import Timing, records_of, with_counters
from bench.harness.profile.step import ProfiledStep
from bench.harness.profile.target import target_of
from results.show.words import COLUMNS

L2 = "lts__t_bytes.sum"
METRICS = (READ, WRITTEN, L2)

RAW = f"""==PROF== Connected to process 1
"ID","Process ID","Kernel Name","{READ}","{WRITTEN}","{L2}"
"","","","byte","Kbyte","byte"
"0","1","copy(float *, int)","4,294,967,296","4194304","8589934592"
"1","1","tail","10","0","20"
==PROF== Disconnected
"""

DETAILS = f"""the program says hello
"ID","Process ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"
"0","1","copy","Command line profiler metrics","{READ}","Mbyte","1.50"
"0","1","copy","Command line profiler metrics","{WRITTEN}","byte","1,000"
"0","1","copy","Command line profiler metrics","{L2}","byte","7"
"""


# ---- tables --------------------------------------------------------------------------------------------------------


def test_a_table_with_a_column_for_each_metric():
    first, second = parse_counters(RAW, METRICS)
    assert first == CountedKernel("copy(float *, int)", {READ: 2**32, WRITTEN: 4_194_304_000, L2: 2**33})
    assert second == CountedKernel("tail", {READ: 10, WRITTEN: 0, L2: 20})


def test_a_table_with_a_line_for_each_metric():
    assert parse_counters(DETAILS, METRICS) == [CountedKernel("copy", {READ: 1_500_000, WRITTEN: 1000, L2: 7})]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "printed no table"),
        ("==PROF== no kernels were profiled\n", "printed no table"),
        (RAW.replace(f',"{L2}"', ',"other"'), f"has no {L2}"),
        (RAW.replace("4,294,967,296", "n/a"), "no count of bytes"),
        (RAW.replace("4,294,967,296", "-5"), "no count of bytes"),
        (RAW.replace("4,294,967,296", "1e999"), "no count of bytes"),
        (RAW.replace('"byte","Kbyte"', '"byte","sector"'), "'sector', no count of bytes"),
        (DETAILS.replace("1.50", ""), "no count of bytes"),
        ("\n".join(DETAILS.splitlines()[:-1]), f"has no {L2} of copy"),
    ],
)
def test_what_is_no_table_of_counts_is_refused(text, said):
    with pytest.raises(CountersError, match=said):
        parse_counters(text, METRICS)


@pytest.mark.parametrize("kept", range(0, len(RAW), 7))
def test_a_torn_table_is_refused_or_holds_whole_kernels(kept):
    try:
        kernels = parse_counters(RAW[:kept], METRICS)
    except CountersError:
        return
    assert kernels == parse_counters(RAW, METRICS)[: len(kernels)]


@pytest.mark.parametrize(
    ("metric", "unit", "value"), [(DURATION, "usecond", 3000), (DURATION, "ns", 3), (TENSOR, "%", 3), (HITS, "", 3)]
)
def test_each_metric_has_units_of_its_own(metric, unit, value):
    text = f'"ID","Kernel Name","{metric}"\n"","","{unit}"\n"0","k","3"\n'
    assert parse_counters(text, [metric]) == [CountedKernel("k", {metric: value})]
    with pytest.raises(CountersError, match="no count of"):
        parse_counters(text.replace(f'"{unit}"\n"0"', '"furlong"\n"0"'), [metric])


def test_newer_gpus_have_other_names():
    older, newer = {"dram__bytes_read", "lts__t_bytes"}, {"dram__bytes_op_read", "dram__bytes_op_write"}
    assert [metric_name(READ, listed) for listed in (older, set())] == [READ, READ]
    assert [metric_name(one, newer) for one in METRICS] == ["dram__bytes_op_read.sum", "dram__bytes_op_write.sum", L2]


def test_clocks_stay_as_they_are_and_caches_are_emptied():
    command = ncu_command("ncu", METRICS, ["python", "-m", "x"])
    assert command[command.index("--clock-control") + 1] == "none"
    assert command[command.index("--cache-control") + 1] == "all"
    assert command[-3:] == ["python", "-m", "x"]
    assert "--nvtx" not in command
    assert "--nvtx" in ncu_command("ncu", METRICS, ["python"], has_ranges=True)


# ---- the tool ------------------------------------------------------------------------------------------------------


def printing(text, code=0):
    return [sys.executable, "-c", f"import sys; print({text!r}); sys.exit({code})"]


def test_the_tool_is_run_and_its_table_read(tmp_path):
    assert counted_by(printing(RAW), METRICS, tmp_path) == parse_counters(RAW, METRICS)


@pytest.mark.parametrize(
    ("command", "kind", "said"),
    [
        (printing("==ERROR== ERR_NVGPUCTRPERM - The user does not", 1), ForbiddenError, "forbidden for this user"),
        (printing("==ERROR== Unknown metric\n==PROF== bye", 9), CountersError, "failed with 9: ==ERROR== Unknown"),
        (
            printing("==ERROR== code (2)\nbench: error: mine.py:make: no", 2),
            CountersError,
            "failed with 2: bench: error: mine.py",
        ),
        (printing("Killed", 9), CountersError, "failed with 9: Killed"),
        (printing("", 3), CountersError, "it said nothing"),
        (["/nowhere/ncu"], CountersError, "cannot be started"),
    ],
)
def test_a_tool_that_does_not_count_says_why(tmp_path, command, kind, said):
    with pytest.raises(kind, match=said):
        counted_by(command, METRICS, tmp_path)


def test_a_tool_that_does_not_end_is_stopped_with_what_it_launched(tmp_path, monkeypatch):
    monkeypatch.setattr(ncu, "TIMEOUT_S", 1)
    script = f"sleep 60 & echo $! >{tmp_path}/launched; wait"
    with pytest.raises(CountersError, match="more than 1 s"):
        counted_by(["/bin/sh", "-c", script], METRICS, tmp_path)
    launched = int((tmp_path / "launched").read_text())
    for _ in range(500):  # it may stay as a zombie until its new parent looks at it
        with suppress(OSError):
            if ") Z " not in Path(f"/proc/{launched}/stat").read_text():
                time.sleep(0.01)
                continue
        return
    pytest.fail("what the tool launched still runs")


# ---- the operations of a step --------------------------------------------------------------------------------------

GPU = SimpleNamespace(type="cuda", torch_name="cuda:0")
TITLES = ("DRAM", "L2 hit", "tensor")
ASKED = (READ, WRITTEN, HITS, MISSES, TENSOR, DURATION)


def step_of():
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU())
    return ProfiledStep(target_of("model", model, [torch.ones(2, 4)]), "forward")


@pytest.fixture(scope="module")
def calls():
    return account(step_of()).calls


def places_of(calls, *ops):
    return [next(place for place, call in enumerate(calls) if call.op == op) for op in ops]


def table(rows, metrics=ASKED):
    """Return what the tool prints of kernels, each with the name of its range and its values."""
    title = "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
    lines = [["ID", "Process ID", title, "Kernel Name", *metrics], [""] * (4 + len(metrics))]
    for number, (name, *values) in enumerate(rows):
        stack = f'1  ""<default domain>:{name}:none:none:none:none:none:none""'
        lines.append([str(number), "7", stack, f"kernel{number}", *map(str, values)])
    text = "\n".join(",".join(f'"{cell}"' for cell in line) for line in lines)
    return text.replace(f'"{DURATION}"\n' + ",".join(['""'] * 10), f'"{DURATION}"\n' + '"",' * 9 + '"ns"')


def telling(text, listing=""):
    return f'case "$*" in *--query-metrics*) echo "{listing}";; *) cat <<"EOF"\n{text}\nEOF\n;; esac'


def test_kernels_of_a_range_are_summed_and_shares_weighted(put_on_path, calls):
    product, gelu = places_of(calls, "aten.addmm", "aten.gelu")
    first, second = (range_name(place, calls[place]) for place in (product, gelu))
    rows = [(first, 1000, 50, 30, 10, "80.0", 300), (first, 24, 0, 0, 40, "0", 100), (second, 64, 32, 0, 0, "0", 0)]
    put_on_path(telling(table(rows)))
    found = counters_of(calls, [product, gelu], [], GPU)
    assert found == {product: Counters(1024, 50, 30 / 80, pytest.approx(0.6)), gelu: Counters(64, 32, None, None)}


def test_the_child_is_started_where_its_parent_was_with_the_places_to_count(put_on_path, calls, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a path to a file of the user's may be relative
    put_on_path(f'echo "$PWD" "$@" >>{tmp_path}/asked; exit 1')
    with pytest.raises(CountersError):
        counters_of(calls, [2, 1], ["profile", "mine.py:make"], GPU)
    folder, *words = (tmp_path / "asked").read_text().splitlines()[-1].split()
    assert folder == str(tmp_path)
    assert words[-6:] == ["-m", "bench", "profile", "mine.py:make", "--ranges", "2,1"]
    assert words[words.index("--metrics") + 1] == ",".join(ASKED)


def test_counters_stand_beside_the_work_of_their_rows(calls):
    (place,) = places_of(calls, "aten.addmm")
    twice = [calls[place], *calls]
    timing = Timing([1e-6], [StepTimes(1000, dict.fromkeys(range(len(twice)), 100))])
    found = with_counters(records_of(Accounted(twice), timing, "torch"), twice, {0: Counters(100, 20, 0.5, None)})
    by_op = {record.op: record.extra for record in found}
    product = by_op["aten.addmm"]
    assert (product["count"], product["dram_bytes_read"], product["dram_bytes_written"]) == (2, 200, 40)
    assert (product["l2_hit_rate"], product["tensor_share"]) == (0.5, None)
    assert "dram_bytes_read" not in by_op["aten.gelu"]


def test_what_a_gpu_does_not_list_is_not_asked_for(put_on_path, calls):
    (place,) = places_of(calls, "aten.gelu")
    text = table([(range_name(place, calls[place]), 64, 32)], ("dram__bytes_op_read.sum", "dram__bytes_op_write.sum"))
    put_on_path(telling(text, "dram__bytes_op_read x\ndram__bytes_op_write\ngpu__time_duration"))
    with pytest.raises(CountersError, match="no gpu__time_duration"):
        counters_of(calls, [place], [], GPU)
    put_on_path(telling(text, "dram__bytes_op_read x\ndram__bytes_op_write"))
    assert counters_of(calls, [place], [], GPU) == {place: Counters(64, 32, None, None)}


@pytest.mark.parametrize(
    ("name", "said"),
    [("", "does not tell the NVTX range"), ("ridgepoint 1 00000000", "the step is another one each time")],
)
def test_counters_of_something_else_are_refused(put_on_path, calls, name, said):
    put_on_path(telling(table([(name, 1, 1, 1, 1, 1, 1)])))
    with pytest.raises(CountersError, match=said):
        counters_of(calls, [1], [], GPU)


def test_where_nothing_can_be_counted_a_line_says_why_and_the_report_stands(put_on_path, calls, monkeypatch, tmp_path):
    timing = Timing([1e-6], [StepTimes(1000, dict.fromkeys(range(len(calls)), 100))])
    accounted, notes = Accounted(calls), []
    records = records_of(accounted, timing, "torch")
    progress = SimpleNamespace(say=lambda _: None, note=notes.append)

    def counted(device):
        assert profiler.with_counters(records, accounted, timing, device, progress, ["profile"]) == records
        return notes.pop()

    assert counted(cpu_device()) == "no counters: that needs an NVIDIA GPU"
    put_on_path("echo ERR_NVGPUCTRPERM; exit 1")
    assert "no counters: counters are forbidden for this user (ERR_NVGPUCTRPERM)" in counted(GPU)
    put_on_path("exit 5")
    assert counted(GPU) == "no counters: ncu failed with 5: it said nothing"
    put_on_path(telling(table([("x", 1, 1, 1, 1, 1, 1)])[:-1]))
    assert counted(GPU).startswith("no counters: ncu's table cannot be read")
    monkeypatch.setattr(ncu, "TIMEOUT_S", 0.2)
    put_on_path(f'case "$*" in *query*) ;; *) exec {sys.executable} -c "import time; time.sleep(60)";; esac')
    assert counted(GPU) == "no counters: ncu took more than 0.2 s"
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert counted(GPU) == "no counters: there is no ncu on the path"


def test_a_listing_that_fails_lists_nothing():
    assert listed_metrics("/nowhere/ncu") == set()


# ---- the child -----------------------------------------------------------------------------------------------------


@pytest.fixture
def on_a_gpu_of_words(monkeypatch):
    """Let what the child asks of CUDA be written down."""
    said = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: said.append("wait"))
    monkeypatch.setattr(torch.cuda.profiler, "start", lambda: said.append("start"))
    monkeypatch.setattr(torch.cuda.profiler, "stop", lambda: said.append("stop"))
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", said.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: said.append("pop"))
    return said


def test_the_child_launches_each_call_in_a_range_of_its_own(on_a_gpu_of_words):
    step = step_of()
    calls = account(step).calls
    on_a_gpu_of_words.clear()
    places = places_of(calls, "aten.gelu", "aten.addmm")
    replay_in_ranges(step, calls, places)
    each = [["wait", "start", range_name(place, calls[place]), "wait", "pop", "stop"] for place in places]
    assert on_a_gpu_of_words == [*each[0], *each[1]]


USER = "import torch\ndef make(): return torch.nn.Linear(4, 4), torch.ones(2, 4)\n"


def test_the_child_profiles_the_very_step_of_its_parent(monkeypatch):
    seen = []
    monkeypatch.setattr(profiler, "run", lambda args, *_: seen.append(args) or 0)
    words = ["profile", "mine.py:make", "--dtype", "bf16", "--device", "cuda:1"]
    assert main([*words, "--counters", "--train", "--top", "3", "-q"]) == 0
    launch = profiler.launch_of(seen[0])
    assert launch == [*words[:2], "--shape", "4x128", *words[2:], "--train", "--no-save"]
    assert main(["profile", "--model", "tiny-llama", "--layers", "1", "--backward"]) == 0
    wanted = ["profile", "--model", "tiny-llama", "--layers", "1", "--shape", "4x128", "--backward", "--no-save"]
    assert profiler.launch_of(seen[1]) == wanted


def test_the_child_ends_with_a_line_where_it_cannot_replay(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(USER)
    for places in ("99", "x", ""):
        assert main(["profile", f"{file}:make", "--device", "cpu", "--no-save", "--ranges", places]) == 2
        said = capsys.readouterr()
        assert (said.out, said.err.count("\n"), said.err.count("error: ")) == ("", 1, 1), said.err


def test_counters_need_single_operations(capsys):
    assert main(["profile", "mine.py:make", "--compile", "--counters"]) == 2
    assert "--counters replays single operations" in capsys.readouterr().err


@pytest.mark.parametrize("width", [80, 160])
def test_counters_are_columns_that_are_explained(calls, width):
    timing = Timing([1e-6], [StepTimes(1000, dict.fromkeys(range(len(calls)), 100))])
    counted = {places_of(calls, "aten.addmm")[0]: Counters(2048, 512, 0.25, 0.5)}
    records = with_counters(records_of(Accounted(calls), timing, "torch"), calls, counted)
    score = {"intensity": 1.0, "bound": "memory", "roofline_pct": 1.0, "excess": None}
    console = Console(file=io.StringIO(), width=width)
    show._print_rows([(record, score) for record in records], console, 20)
    text = console.file.getvalue()
    assert set(TITLES) <= set(COLUMNS)
    shown = (*TITLES, "2.560 k", "25.0%", "50.0%") if width == 160 else ("DRAM", "2.560 k", "too narrow for: ")
    assert [word for word in shown if word not in text] == []
    assert all(len(line) <= width for line in text.splitlines())
