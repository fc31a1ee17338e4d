"""`python -m roofline plot`: what it draws by default, what it says, and how it refuses."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from plot_scenes import CPU, environment, matmul, saved

from roofline.__main__ import main
from roofline.commands import plot
from roofline.machine import Ceiling, Machine
from roofline.picture.build import build_scene
from roofline.picture.figure import draw_roofline

ROOT = Path(__file__).parents[2]
GOOD = [matmul(n, "bf16", 8e11) for n in (512, 1024)]

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path):
    return lambda name, *content: saved(tmp_path / "runs" / "cpu" / name, *content)


@pytest.fixture
def drawn(monkeypatch):
    seen = {}

    def built(runs, gpus, dtypes):
        seen["dtypes"] = dtypes
        return build_scene(runs, gpus, dtypes)

    def spy(scene, title, **more):
        seen.update(scene=scene, title=title)
        return draw_roofline(scene, title, **more)

    monkeypatch.setattr(plot, "build_scene", built)
    monkeypatch.setattr(plot, "draw_roofline", spy)
    return seen


def refused(arguments, capsys):
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as exit_:
        code = int(exit_.code or 0)
    said = capsys.readouterr()
    assert code == 2
    assert said.out == ""
    assert said.err.count("\n") == 1, said.err
    assert "Traceback" not in said.err
    return said.err


def test_a_terminal_shows_the_plot_in_characters(write, capsys, monkeypatch):
    run = write("a.jsonl", GOOD)
    assert "expected -o PATH" in refused(["plot", run], capsys)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["plot", str(run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[-2].startswith("a  512³ 8")
    assert lines[-1].startswith("b  1024³ 8")
    assert re.fullmatch(r"[0-9.]+ to [0-9,.]+ FLOP/byte", lines[-3].strip())
    canvas = lines[2:-3]
    roof, height = next((line, row) for row, line in enumerate(canvas) if "GFLOP/s" in line)
    assert roof.rstrip().endswith("- bf16 930 GFLOP/s")
    marks = {
        mark: (row, line.index(mark))
        for mark in "ab"
        for row, line in enumerate(canvas)
        if f" {mark} " in line
    }
    assert marks["a"][1] < marks["b"][1]
    assert all(height <= row <= height + 2 for row, _ in marks.values())
    assert any(line.startswith("  ") and "/" in line for line in canvas[height + 3 :])
    monkeypatch.setenv("COLUMNS", "20")
    assert main(["plot", "--gpu", "h100-sxm"]) == 0


@pytest.mark.parametrize(
    ("slugs", "dtypes"),
    [
        ("p100-sxm-16gb", ["fp32", "fp16"]),
        ("a100-sxm-80gb", ["fp32", "tf32", "bf16"]),
        ("h100-sxm,a100-sxm-80gb", ["bf16", "fp8e4m3"]),
    ],
)
def test_default_dtypes_are_those_that_the_gpus_have(
    slugs,
    dtypes,
    tmp_path,
    capsys,
    drawn,
):
    assert main(["plot", "--gpu", slugs, "-o", str(tmp_path / "x.png")]) == 0
    assert drawn["dtypes"] == dtypes
    assert capsys.readouterr().err == ""


@pytest.mark.exhaustive
def test_every_gpu_of_the_table_can_be_drawn(request):
    from roofline.gpu_table import load_gpus

    gpus = list(load_gpus().values())
    assert len(gpus) >= 50
    for first in range(0, len(gpus), 6 * request.config.getoption("--every")):
        draw_roofline(build_scene([], gpus[first : first + 6]))


def test_a_run_has_the_dtypes_that_it_measured(write, tmp_path, capsys, drawn):
    run = write("a.jsonl", GOOD)
    assert main(["plot", str(run), "-o", str(tmp_path / "x.png"), "--title", "Mine"]) == 0
    assert capsys.readouterr().err == ""
    assert (drawn["dtypes"], drawn["title"]) == (["bf16"], "Mine")
    assert drawn["scene"].machines == (CPU,)
    assert [point.record.case for point in drawn["scene"].points] == [
        "512x512x512",
        "1024x1024x1024",
    ]


def test_a_gpu_adds_its_datasheet_to_its_own_run(write, tmp_path, drawn):
    measured = Ceiling("flops", "bf16", 795e12, "measured", "a test")
    known = Machine("h100-sxm", "NVIDIA H100 80GB HBM3", (measured,))
    run = write("a.jsonl", GOOD, environment(machine=known))
    assert main(["plot", str(run), "--gpu", "h100-sxm", "-o", str(tmp_path / "x.png")]) == 0
    (known,) = drawn["scene"].machines
    assert {entry.kind for entry in known.entries if entry.name == "bf16"} == {
        "measured",
        "datasheet",
    }
    assert len(drawn["scene"].points) == 2


def test_two_runs_of_one_machine_share_the_roofs_of_the_newer(write, tmp_path, capsys, drawn):
    faster = CPU.with_entries([Ceiling("flops", "bf16", 999e9, "measured", "a test")])
    newer = write("b.jsonl", GOOD, environment(started_at="2026-11-22T00:00:00Z", machine=faster))
    older = write("a.jsonl", [matmul(256, "bf16", 3e11)])
    for order in ([newer, older], [older, newer, newer]):
        assert main(["plot", *map(str, order), "-o", str(tmp_path / "x.png")]) == 0
        (known,) = drawn["scene"].machines
        assert len(drawn["scene"].points) == 3
        peak = known.peak("bf16")
        assert peak is not None
        assert peak.value == 999e9
        assert "those of the newest are drawn" in capsys.readouterr().err


def test_more_machines_than_can_be_told_apart_are_refused(tmp_path, capsys):
    slugs = "a2,a10,a30,a40,l4,l40,l40s,t4,mi210"
    said = refused(["plot", "--gpu", slugs, "-o", tmp_path / "x.png"], capsys)
    assert "9 machines exceed the 8" in said


def test_a_dtype_that_a_gpu_lacks_is_noted(tmp_path, capsys):
    target = str(tmp_path / "x.png")
    assert (
        main(
            [
                "plot",
                "--gpu",
                "h100-sxm,a100-sxm-80gb",
                "--dtype",
                "bf16",
                "--dtype",
                "fp8e4m3",
                "-o",
                target,
            ]
        )
        == 0
    )
    said = capsys.readouterr()
    assert said.out == f"{target}\n"
    assert said.err.startswith("note: a100-sxm-80gb has no known peak for fp8e4m3 (known: fp64")
    assert said.err.count("\n") == 1


def test_a_run_without_a_drawable_point_gives_its_roofs_and_a_note(write, tmp_path, capsys):
    run = write("a.jsonl", [replace(GOOD[0], flops=None)])
    assert main(["plot", str(run), "-o", str(tmp_path / "x.png")]) == 0
    assert "no point can be drawn (1 without FLOPs or bytes)" in capsys.readouterr().err
    assert (tmp_path / "x.png").exists()


def test_a_bad_line_is_named_and_the_rest_is_drawn(write, tmp_path, capsys):
    run = write("a.jsonl", GOOD)
    bad = json.dumps(GOOD[0].to_dict() | {"median_s": -1})
    run.write_text(run.read_text(encoding="utf-8") + bad + "\n", encoding="utf-8")
    target = tmp_path / "x.png"
    assert main(["plot", str(run), "-o", str(target)]) == 2  # as `python -m results show`
    said = capsys.readouterr()
    assert said.err.startswith(f"{run}:4:")
    assert "median_s" in said.err
    assert said.err.count("\n") == 1
    assert said.out == f"{target}\n"
    assert target.stat().st_size > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-o", "x.png"], ["expected a RUN", "latest", "--gpu SLUG"]),
        (["--gpu", "h100-sxm", "--op", "gelu", "-o", "x.png"], ["--op", "name a RUN"]),
        (["--gpu", " ,,", "-o", "x.png"], ["--gpu", "expected names"]),
        (["--gpu", "h100-sxm", "--dtype", "bf17", "-o", "x.png"], ["'bf17'", "did you mean bf16"]),
        (
            ["--gpu", "a100-sxm-80gb", "--dtype", "fp8e4m3", "-o", "x.png"],
            ["no ceiling to draw", "fp8e4m3", "known: "],
        ),
        (["--gpu", "h100-sxm", "-o", "/dev/null/x.png"], ["/dev/null/x.png", "a parent is a file"]),
        (["no-such-run", "-o", "x.png"], ["no-such-run"]),
        (["latest", "--runs", "none", "-o", "x.png"], ["--runs", "none"]),
    ],
)
def test_a_mistake_gets_one_line(
    arguments,
    words,
    tmp_path,
    monkeypatch,
    capsys,
):
    monkeypatch.chdir(tmp_path)
    said = refused(["plot", *arguments], capsys)
    for word in words:
        assert word in said
    assert not list(tmp_path.iterdir())


def test_an_interrupt_ends_with_130(monkeypatch, tmp_path):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(plot, "draw_roofline", interrupt)
    assert main(["plot", "--gpu", "h100-sxm", "-o", str(tmp_path / "x.png")]) == 130
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("arguments", [["--help"], ["plot", "--help"], ["gpus", "--help"]])
def test_help_shows_examples_and_loads_nothing_heavy(arguments):
    code = (
        "import sys\n"
        "from roofline.__main__ import main\n"
        "try:\n    main(sys.argv[1:])\n"
        "except SystemExit as done:\n    assert done.code == 0\n"
        "heavy = {'torch', 'numpy', 'pandas', 'matplotlib', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    line = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "examples:" in done.stdout
    assert "python -m roofline" in done.stdout
