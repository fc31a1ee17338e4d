"""python -m results as a person or a script uses it: output, messages, exit codes, start-up."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from results.__main__ import main
from results.store.runfile import RunWriter, load_run
from results.store.runs import EVERYTHING
from tests.bench.process_checks import usual_signals

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def saved(make_environment, make_record, make_skipped):
    with RunWriter.create(make_environment(), "matmul") as writer:
        writer.append(make_record())
        writer.append(make_skipped())
    return writer.path


def results(*arguments, **options):
    command = [sys.executable, "-m", "results", *map(str, arguments)]
    return subprocess.run(
        command, **({"cwd": ROOT, "capture_output": True, "text": True, "timeout": 60} | options)
    )


def test_list_shows_the_runs(saved, capsys):
    assert main(["list"]) == 0
    out, err = capsys.readouterr()
    assert "20261120T210312Z-0123456789" in out
    assert re.search(r"h100-sxm +matmul +2 +python -m bench\.matmul", out)
    assert err == ""


def test_list_writes_data(saved, capsys):
    main(["list", "--format", "json"])
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["run_id"], row["records"], row["path"], row["error"]) == (
        "20261120T210312Z-0123456789",
        2,
        str(saved),
        None,
    )
    main(["list", "--format", "csv"])
    assert (
        capsys.readouterr().out.splitlines()[0]
        == "run_id,started_at,device_slug,op,records,command,path,error"
    )
    main(["list", "--format", "md"])
    assert capsys.readouterr().out.startswith("| run_id | started_at |")


def test_list_where_there_is_no_run_says_how_to_make_one(runs, capsys):
    assert main(["list"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"no run in {runs} yet: python -m bench.matmul makes one\n"
    assert main(["list", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_list_shows_a_broken_file_as_broken(saved, runs, capsys):
    (runs / "broken.jsonl").write_bytes(b"\0\0")
    assert main(["list"]) == 0
    out, _ = capsys.readouterr()
    assert "broken: " in out
    assert "20261120T210312Z-0123456789" in out


def test_show_prints_a_run(saved, capsys):
    assert main(["show", "20261120T210312Z-0123456789"]) == 0
    out, err = capsys.readouterr()
    assert "NVIDIA H100 80GB HBM3" in out
    assert "4.295 us" in out
    assert "out of memory" in out
    assert err == ""


@pytest.mark.parametrize("format", ["json", "csv", "md"])
def test_show_and_export_write_the_same_data(saved, capsys, tmp_path, format):
    main(["show", "latest", "--format", format])
    shown = capsys.readouterr().out
    main(["export", "latest", "--format", format])
    assert capsys.readouterr().out == shown
    main(["export", "latest", "--format", format, "-o", str(tmp_path / "out")])
    said = f"saved: {tmp_path / 'out'}: 2 records of run 20261120T210312Z-0123456789\n"
    assert capsys.readouterr() == ("", said)
    assert (tmp_path / "out").read_text() == shown
    assert "1024x1024x1024" in shown


def test_the_directory_may_be_named_before_or_after_the_command(saved, runs, monkeypatch, capsys):
    monkeypatch.setenv("ROOFMARK_RUNS", "/nowhere")
    assert main(["--runs", str(runs), "show", "latest"]) == 0
    assert main(["show", "latest", "--runs", str(runs)]) == 0
    assert capsys.readouterr().out.count("4.295 us") == 2


@pytest.mark.parametrize("format", ["table", "json", "csv", "md"])
def test_bad_lines_are_reported_after_the_good_rows(saved, capsys, format):
    good = saved.read_bytes()
    saved.write_bytes(
        good + b'{"kind": "record", "samples_s": [NaN]}\nhello\x1b[31m\n' + good.splitlines(True)[1]
    )
    assert main(["show", "latest", "--format", format]) == 2
    out, err = capsys.readouterr()
    assert out.count("1024x1024x1024") == 3
    first, second = err.splitlines()
    assert first.startswith(f"{saved}:4: not JSON (NaN is not")
    assert second.startswith(f"{saved}:5: not JSON")


@pytest.mark.parametrize(
    "hardware", [5, {"entries": 7}, {"slug": 3}, {"entries": [{"quantity": "flops"}]}]
)
def test_ceilings_of_no_use_make_a_run_unreadable(saved, error_of, hardware):
    first, rest = saved.read_text().split("\n", 1)
    saved.write_text(f"{json.dumps(json.loads(first) | {'hardware': hardware})}\n{rest}")
    err = error_of(main(["show", str(saved)]))
    assert "not a readable run file: line 1: " in err
    assert "hardware" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("show nothing", "no run 'nothing'"),
        ("show /no/such/file", "no run file /no/such/file"),
        ("show /", "no run file /"),
        ("list --runs /no/such/folder", "--runs /no/such/folder: no such directory"),
        (
            "export latest --format csv -o /dev/null/such/x",
            "cannot write /dev/null/such/x: a parent is a file",
        ),
        ("export latest --format csv -o no-folder/", "--output no-folder/ names a directory"),
        ("export latest --format csv -o ", "--output is empty"),
        ("export latest --format csv -o /", "--output / names a directory"),
        ("export latest --format csv -o /tmp", "cannot write /tmp: Is a directory"),
        ("export latest --format csv -o /proc/x", "cannot write /proc/x: "),
        ("show", "the following arguments are required: RUN"),
        ("show latest --format xml", "argument --format: invalid choice: 'xml'"),
        ("export latest", "expected --format, or --output with a suffix"),
        ("show latest --op relu", "no run in "),
        (
            "list --since yesterday",
            "argument --since: expected a time ago such as 30m, 12h, 2d or 1w, or a date",
        ),
        ("list --colour\x1b[31m", "unrecognized arguments: --colour\\x1b[31m"),
    ],
)
def test_a_wrong_value_is_one_line_and_exit_2(saved, capsys, words, message):
    try:
        code = main(words.split(" "))
    except SystemExit as leaving:
        code = leaving.code
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.startswith(f"python -m results {words.split()[0]}: error: {message}")
    assert err.count("\n") == 1


@pytest.mark.exhaustive
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "command", ["show latest | head -n 1", "export latest --format json | head -n 1", "list | true"]
)
def test_a_reader_that_leaves_early_is_no_error(make_environment, make_record, command):
    with RunWriter.create(make_environment(), "matmul") as writer:
        for _ in range(1500):
            writer.append(make_record())
    shell = f"{sys.executable} -m results {command}; echo ${{PIPESTATUS[0]}}"
    # Without its buffer, Python does not notice that the reader has left.
    env = os.environ | {"PYTHONUNBUFFERED": ""}
    done = subprocess.run(
        ["bash", "-c", shell], cwd=ROOT, capture_output=True, text=True, timeout=60, env=env
    )
    assert done.stdout.splitlines()[-1] == "0"
    assert done.stderr == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full to be full")
@pytest.mark.parametrize(
    "arguments", [["show", "latest"], ["list"], ["export", "latest", "--format", "json"]]
)
def test_an_output_that_is_full_is_one_line_and_exit_2(saved, arguments):
    with open("/dev/full", "w") as full:  # noqa: PTH123  # a file object for the child, not a path to read
        done = results(*arguments, capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2
    prog = f"python -m results {arguments[0]}"
    assert done.stderr == f"{prog}: error: cannot write the output: No space left on device\n"


def test_an_interrupt_is_one_line_and_exit_130(runs):
    runs.mkdir()
    pause = (
        "import results.__main__ as m, time; m.list_runs = lambda d: (print('ready', "
        "flush=True), time.sleep(60))"
    )
    code = f"{pause}; import sys; sys.exit(m.main(['list']))"
    with usual_signals():
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (130, "python -m results list: interrupted\n")


@pytest.mark.parametrize(
    "arguments", [["--help"], ["list", "--help"], ["show", "--help"], ["export", "--help"]]
)
def test_help_is_fast_and_imports_nothing_heavy(arguments):
    code = (
        "import sys; from results.__main__ import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'triton', 'pandas', 'numpy', 'pyarrow', 'matplotlib', 'rich'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage: python -m results" in done.stdout


def test_show_and_text_exports_load_neither_torch_nor_pandas(saved, tmp_path):
    code = (
        "import sys; from results.__main__ import main\n"
        "for format in ('table', 'json', 'csv', 'md'): main(['show', 'latest', '--format', "
        "format])\n"
        "main(['list']); main(['export', 'latest', '--format', 'json', '-o', sys.argv[1]])\n"
        "sys.exit(', '.join({'torch', 'triton', 'pandas', 'pyarrow', 'matplotlib'} & "
        "set(sys.modules)) or 0)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "out.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.json").exists()


@pytest.fixture
def three(keep, make_record):
    """Runs of three days and two machines: gelu, then matmul, then one without a record."""
    for day, op, slug in ((1, "gelu", "h100-sxm"), (2, "matmul", "cpu"), (3, None, "cpu")):
        records = [
            make_record(op=op, provider=provider)
            for provider in (("torch", "triton-v1") if op else ())
        ]
        keep(day, *records, device={"slug": slug, "name": "a device", "type": "cuda"})


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize(
    ("arguments", "days"),
    [
        ([], "321"),
        (["--op", "gelu,relu"], "1"),
        (["--provider", "triton-v1"], "21"),
        (["--machine", "cpu"], "32"),
        (["--machine", "cpu", "--op", "matmul"], "2"),
        (["--since", "2026-11-02"], "32"),
        (["--since", "2d"], ""),
        (["--dtype", "fp64"], ""),
    ],
)
def test_the_list_shows_the_runs_that_were_asked_for(capsys, arguments, days):
    assert main(["list", *arguments, "--format", "json"]) == 0
    out, err = capsys.readouterr()
    assert [run["run_id"][7] for run in json.loads(out)] == list(days)
    assert ("matches --op, --dtype, --case and --provider, --machine and --since" in err) is (
        days == ""
    )


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize(
    ("arguments", "day", "ops"),
    [
        ([], 2, {"matmul"}),
        (["--op", "gelu"], 1, {"gelu"}),
        (["--machine", "h100-sxm"], 1, {"gelu"}),
    ],
)
def test_latest_is_the_newest_run_with_a_matching_record(capsys, arguments, day, ops):
    assert main(["show", "latest", *arguments]) == 0
    assert f"run 2026110{day}T100000Z" in capsys.readouterr().out
    assert main(["export", "latest", "--format", "json", "--provider", "torch", *arguments]) == 0
    records = json.loads(capsys.readouterr().out)["records"]
    assert {record["op"] for record in records} == ops
    assert {record["provider"] for record in records} == {"torch"}


def test_show_tells_why_a_row_is_flagged(runs, make_environment, make_record, capsys):
    with RunWriter.create(make_environment(), "matmul") as writer:
        writer.append(
            make_record(
                flags=("preempted",), flag_reasons={"preempted": "others had the cores for 12 ms"}
            )
        )
    assert main(["show", "latest", "--verbose"]) == 0
    timed, reason = capsys.readouterr().err.splitlines()
    assert timed.startswith(
        "matmul 1024x1024x1024 bf16 torch: 3 samples of 10 launches by graph, cold, first call"
    )
    assert reason == "  preempted: others had the cores for 12 ms"


def said(capsys, *arguments):
    return main([*arguments]), capsys.readouterr().err


def test_a_run_that_is_still_being_measured_is_said_to_be(make_environment, make_record, capsys):
    with RunWriter.create(make_environment(), "matmul") as writer:
        empty, note = (
            f"note: {writer.path} has no record\n",
            f"note: {writer.path}: the run is still being measured\n",
        )
        assert said(capsys, "show", "latest") == (0, empty + note)
        refusal = (
            f"python -m results compare: error: {writer.path} has no record; {writer.path}: the "
            f"run is still being measured\n"
        )
        assert said(capsys, "compare", "latest", "--by", "provider") == (2, refusal)
        writer.append(make_record())
        assert said(capsys, "show", "latest") == (0, note)
        assert said(capsys, "export", "latest", "--format", "csv") == (0, note)
    assert said(capsys, "show", "latest") == (0, "")


def test_a_run_that_ended_without_a_record_is_named(make_environment, capsys):
    RunWriter.create(make_environment(), "matmul").close()
    path = EVERYTHING.find("latest")
    assert said(capsys, "export", "latest", "--format", "csv") == (
        0,
        f"note: {path} has no record\n",
    )
    assert said(capsys, "compare", "latest") == (
        2,
        f"python -m results compare: error: {path} has no record\n",
    )
    assert load_run(path).notes == ()
