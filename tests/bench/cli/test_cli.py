"""What a `bench` command prints and saves: help, table, JSON, Markdown, the run file, the exit
code.
"""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench import __main__ as bench
from bench.harness.calibrate.calibration import MIXES
from bench.harness.cli import main
from bench.harness.cli.arguments import build_parser
from results.__main__ import main as results_main
from results.show.units import duration
from results.store.runfile import load_run
from roofline.model import JUDGED_KEYS
from tests.bench import commands

BENCH = Path(__file__).resolve().parents[3] / "bench"

ENVIRONMENT_KEYS = {
    "kind",
    "schema",
    "run_id",
    "started_at",
    "argv",
    "device",
    "host",
    "versions",
    "git",
    "hardware",
    "settings",
    "preflight",
}
RECORD_KEYS = {
    "kind",
    "op",
    "provider",
    "dtype",
    "shape",
    "case",
    "status",
    "reason",
    "flops",
    "bytes_read",
    "bytes_written",
    "samples_s",
    "launches_per_sample",
    "method",
    "cache",
    "fill",
    "median_s",
    "ci95_s",
    "converged",
    "host_latency_s",
    "first_call_s",
    "flags",
    "telemetry",
    "verified",
}
JUDGED = {
    "flops_per_s",
    "bytes_per_s",
    "intensity",
    "bound",
    "mfu",
    "mbu",
    "roofline_pct",
    "peak_kind",
}
"""Keys that readers of a run rely on: none is removed, and none changes its meaning."""


pytestmark = pytest.mark.usefixtures("quick")


HELP = """
import runpy, sys
module, *sys.argv[1:] = sys.argv[1:]
try:
    runpy.run_module(module, run_name="__main__", alter_sys=True)
except SystemExit as exit:
    heavy = {"torch", "triton", "numpy", "pandas", "matplotlib", "rich"} & set(sys.modules)
    print(exit.code, sorted(heavy), file=sys.stderr)
"""


def help_of(module, *words):
    """Return the output of `--help` after checking that it imports nothing heavy."""
    command = [sys.executable, "-c", HELP, module, *words, "--help"]
    done = subprocess.run(
        command, cwd=commands.ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == "0 []\n"
    return done.stdout


def flat(text):
    """Return a text without its line breaks, which depend on the width of the terminal."""
    return " ".join(text.split())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", commands.FAMILIES)
def test_family_help_is_complete_and_loads_no_torch(family):
    text = help_of(f"bench.{family}")
    module = importlib.import_module(f"bench.{family}")
    assert flat(module.__doc__) in flat(text)
    for heading in ("FLOPs ", "Bytes ", "Source "):
        assert f"\n{heading}" in text
    check_common_help(text)
    for arguments, meaning in module.EXAMPLES:
        assert f"\n  python -m bench.{family} {arguments}" in text
        assert meaning in flat(text)


def check_common_help(text):
    assert "\nexamples:" in text
    assert "`python -m bench explain COLUMN` explains a column of the table" in text
    codes = "0 ok; 1 a wrong result; 2 usage; 3 no such device, or a busy one; 130 interrupted"
    assert f"exit codes: {codes}" in flat(text)


@pytest.mark.parametrize("family", ["train_step", "transfer"])
def test_help_of_commands_that_are_not_ops_loads_no_torch(family):
    assert "exit codes:" in help_of(f"bench.{family}")


def test_suite_help_is_complete_and_loads_no_torch():
    text = help_of("bench", "suite")
    check_common_help(text)
    assert "\n  python -m bench suite --budget 20 --plot suite.png " in text


@pytest.mark.parametrize("family", commands.FAMILIES)
def test_help_examples_pass_all_checks_before_torch_loads(family, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(f"bench.{family}")
    options = getattr(module, "OPTIONS", ())
    parser = build_parser(family, module.__doc__, module.EXAMPLES, module.OPS, options)

    def load_torch(args):
        raise EOFError

    monkeypatch.setattr(main, "device_of", load_torch)
    for arguments, _ in module.EXAMPLES:
        with pytest.raises(EOFError):
            main.measured(family, parser.parse_args(arguments.split()), module.OPS)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("lst",), "unknown command 'lst'; did you mean list?"),
        (("gellu",), "unknown command 'gellu'; did you mean gelu?"),
        (("zzz",), "unknown command 'zzz'; choose from list, suite, compare"),
    ],
)
def test_unknown_command_is_a_one_line_error(words, said, capsys):
    with pytest.raises(SystemExit) as caught:
        bench.main(words)
    out, err = capsys.readouterr()
    assert (caught.value.code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"python -m bench: error: {said}")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("matmul", "--shape", "0"), "python -m bench.matmul: error: invalid shape '0'"),
        (("bench.matmul", "--shape", "0"), "python -m bench.matmul: error: invalid shape '0'"),
        (("gelu", "--shape", "0"), "python -m bench.elementwise: error: invalid shape '0'"),
        (("gelu", "--op", "none"), "python -m bench.elementwise: error: unknown op 'none'"),
        (
            ("train-step", "--layers", "2", "--shape", "0"),
            "python -m bench.train_step: error: invalid shape '0'",
        ),
    ],
)
def test_module_and_op_names_work_as_commands(words, said, capsys):
    assert bench.main(words) == 2
    assert capsys.readouterr().err.startswith(said)


def test_list_shows_formula_and_command_of_each_op():
    returned, out, err = commands.finish(commands.start("bench", "list"))
    assert (returned, err) == (0, "")
    modules = {
        path.stem: importlib.import_module(f"bench.{path.stem}") for path in BENCH.glob("[a-z]*.py")
    }
    ops = [(family, op) for family, module in modules.items() for op in getattr(module, "OPS", ())]
    others = [module.LISTED for module in modules.values() if hasattr(module, "LISTED")]
    lines = [line.split() for line in out.splitlines()]
    for family, op in ops:
        (line,) = [words for words in lines if words[:2] == [f"bench.{family}", op.name]]
        assert op.formula.split() == line[-len(op.formula.split()) :]
    for other in others:
        assert " ".join(other).split() in lines
    assert {family for family, _ in ops} > {"matmul", "decode"}
    assert {other[0] for other in others} == {
        "bench.collectives",
        "bench.fleet",
        "bench.train_step",
        "bench.transfer",
    }
    assert len(lines) == len(ops) + len(others) + 1  # and the titles: in a pipe a line is a row


@pytest.mark.exhaustive
def test_json_agrees_with_the_run_file_and_show(capsys, runs):
    words = ("--shape", "64,32x16x48", "--dtype", "bf16,tf32", "--budget", "60", "--format", "json")
    assert commands.here("matmul", *words) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert list(document) == ["environment", "records"]
    environment, records = document["environment"], document["records"]

    assert set(environment) >= ENVIRONMENT_KEYS
    assert environment["argv"] == ["python", "-m", "bench.matmul", *words, "--device", "cpu"]
    assert environment["device"]["type"] == "cpu"
    assert environment["settings"] == {
        "fill": "uniform",
        "cache": "cold",
        "budget_s": 60.0,
        "seed": 0,
    }
    assert {entry["kind"] for entry in environment["hardware"]["entries"]} == {"measured"}

    assert [(record["dtype"], record["case"], record["status"]) for record in records] == [
        ("bf16", "64x64x64", "ok"),
        ("bf16", "32x16x48", "ok"),
        ("tf32", "64x64x64", "skipped"),
        ("tf32", "32x16x48", "skipped"),
    ]
    for record in records:
        assert set(record) >= RECORD_KEYS | JUDGED
        assert set(JUDGED_KEYS) >= JUDGED
    check_skipped(records[2])

    (saved,) = commands.run_files(runs)
    assert err.splitlines()[-1] == f"saved: {saved}"
    assert re.match(r"\[1/12, \d+ s left\] matmul 64x64x64 bf16 torch\n", err)
    first, *rest = commands.lines_of(saved)
    assert first == environment
    for line, record in zip(rest, records, strict=True):
        measured = {key: value for key, value in record.items() if key not in JUDGED_KEYS}
        assert line == measured
        assert line["units"] == "matrix"  # from the op's definition, so it is saved

    assert results_main(["show", "latest", "--format", "json"]) == 0
    assert capsys.readouterr() == (out, "")


def check_skipped(record):
    """Check the record of a matmul in a dtype that no CPU has."""
    assert record["reason"].endswith(" has no tf32 arithmetic")
    assert record["flops"] == 2 * 64**3
    absent = (
        "median_s",
        "ci95_s",
        "host_latency_s",
        "first_call_s",
        "converged",
        "flops_per_s",
        "mfu",
        "roofline_pct",
    )
    assert [record[key] for key in absent] == [None] * len(absent)
    assert record["samples_s"] == []


@pytest.mark.exhaustive
def test_table_has_machine_ceilings_rows_and_saved_path(runs):
    code, out, err = commands.call(
        "elementwise", "--op", "relu,add", "--size", "4KiB", "--dtype", "fp32"
    )
    assert code == 0
    (saved,) = commands.run_files(runs)
    environment = commands.lines_of(saved)[0]
    machine, ceilings, command, blank, titles, relu, add, *words, last = out.splitlines()
    assert machine.startswith(environment["device"]["name"])
    names = (*MIXES, "a level of no bytes")
    bandwidths = "; ".join(f"{name} bandwidth 20 GB/s measured" for name in names)
    assert ceilings == f"{bandwidths}; fp32 peak 10 TFLOP/s measured"
    assert (
        command == "python -m bench.elementwise --op relu,add --size 4KiB --dtype fp32 --device cpu"
    )
    assert blank == ""
    assert titles.startswith("op ")
    assert (relu.split()[:4], add.split()[:4]) == (
        ["relu", "1024", "fp32", "torch"],
        ["add", "1024", "fp32", "torch"],
    )
    # Advice for rows far below the roof.
    assert all(re.match(r"(memory|compute) side", line) for line in words)
    assert last == f"saved: {saved}"
    *steps, share = err.splitlines()
    rows = ("relu 1024 fp32 torch", "add 1024 fp32 torch") * 3  # each is visited three times
    said = [re.sub(r", about \S+ \S+ left", "", step) for step in steps]
    assert said == [f"[{number}/6] {row}" for number, row in enumerate(rows, 1)]
    assert re.fullmatch(r"measuring took \S+ s, \S+ s of it timed \(\d+ %\)", share)
    assert commands.show("latest") == (0, out.removesuffix(f"{last}\n"), "")


def test_markdown_is_one_table_of_equal_rows(capsys, runs):
    assert commands.here("matmul", "--shape", "16,32", "--format", "md") == 0
    head, _, table = capsys.readouterr().out.partition("\n\n")
    assert "- python -m bench.matmul --shape 16,32 --format md" in head
    lines = table.splitlines()
    header, rule, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert set(rule) == {"---"}
    records = load_run(commands.run_files(runs)[0]).records
    for row, record in zip(rows, records, strict=True):
        cells = dict(zip(header, row, strict=True))
        assert cells["case"] == record.case
        assert cells["median"] == duration(record.median_s)


@pytest.mark.parametrize("form", ["table", "json"])
def test_quiet_prints_only_the_result(capsys, form):
    assert commands.here("matmul", "--shape", "16", "-q", "--no-save", "--format", form) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "16x16x16" in out


def test_verbose_reports_how_each_row_was_verified_and_timed(capsys):
    assert commands.here("matmul", "--shape", "16", "--dtype", "fp32,tf32", "-v", "--no-save") == 0
    notes = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("[")]
    assert re.fullmatch(
        r"matmul 16x16x16 fp32 torch: \d+ samples of \d+ launches by host, "
        r"(cold|partly-cold|warm) \(\d+ copies\), "
        r"first call \S+ \S+, host latency \S+ \S+, verified 256 of 256 elements, largest error "
        r"\S+ of the bound",
        notes[0],
    )
    assert re.fullmatch(
        r"matmul 16x16x16 tf32 torch: skipped: .+ has no tf32 arithmetic", notes[-2]
    )
    record_flags = [line.split(":")[0].strip() for line in notes[1:-2]]
    assert "not-cold" in record_flags  # 16 x 16 fills no cache


def test_no_save_writes_no_run_file(capsys, runs):
    assert commands.here("matmul", "--shape", "16", "--no-save") == 0
    assert commands.run_files(runs) == []
    assert "saved:" not in capsys.readouterr().out


def test_output_file_is_written_and_its_directories_created(capsys, runs, tmp_path):
    path = tmp_path / "new" / "folder" / "mine.jsonl"
    assert commands.here("matmul", "--shape", "16", "--output", path) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"saved: {path}"
    assert [record.case for record in load_run(path).records] == ["16x16x16"]
    assert commands.run_files(runs) == []
