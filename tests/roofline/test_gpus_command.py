"""`python -m roofline gpus`: published ridge points, every format, narrow terminals, hostile
names.
"""

import io
import json
import re
import sys

import pytest

from roofline import gpu_table
from roofline.__main__ import main
from roofline.commands import gpus
from roofline.gpu_table import load_gpus, unknown_gpu
from roofline.work import DTYPES


def run(*arguments):
    return main(["gpus", *arguments])


def table_of(capsys, *arguments):
    assert run(*arguments) == 0
    return {
        line.split()[0]: line.split()
        for line in capsys.readouterr().out.splitlines()
        if line.strip()
    }


class Terminal(io.StringIO):
    """An output that says it is a terminal."""

    def isatty(self):
        return True


def at_width(monkeypatch, width, *arguments):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    assert run(*arguments) == 0
    monkeypatch.undo()
    return re.sub(r"\x1b\[[012]m", "", terminal.getvalue()).splitlines()  # bold and dim are our own


def test_piped_table_has_every_gpu_and_column_unwrapped(capsys):
    rows = table_of(capsys)
    assert set(load_gpus()) <= set(rows)
    assert (
        " ".join(rows["GPU"])
        == "GPU fp64 fp32 tf32 fp16 bf16 fp8 int8 nvfp4 GB/s GiB L2 MiB W ridge"
    )
    shown = " ".join(rows["h100-sxm"])
    assert shown == "h100-sxm 66.9 66.9 494.7 989.4 989.4 1978.9 1978.9 - 3352 80 50 700 295 bf16"
    for slug, ridge in (
        ("gb200", "313"),
        ("t4", "203"),
    ):
        assert rows[slug][-2:] == [ridge, "fp16" if slug == "t4" else "bf16"]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("slug", load_gpus())
def test_page_shows_every_value_source_and_note(capsys, slug):
    gpu = load_gpus()[slug]
    assert run(slug) == 0
    out = capsys.readouterr().out
    for text in (
        *gpu.sources,
        *gpu.notes,
        *(part for kind in gpu.kinds.values() for part in kind.split(": ")),
        *gpu.driver_names,
        gpu.name,
        *([gpu.rate_class] if gpu.rate_class else []),
    ):
        assert text in out
    for key, peak in gpu.stated_peaks_flops_per_s.items():
        row = next(line for line in out.splitlines() if line.split()[:1] == [key])
        assert f" {peak / 1e12:.5g} " in row
    assert f"{gpu.memory_bandwidth_bytes_per_s / 1e9:.5g}" in out
    assert "Peaks are dense (no structured sparsity)" in out


def test_several_gpus_are_listed_with_commas_too(capsys):
    rows = table_of(capsys, "t4,l4", "a10")
    assert list(rows)[1:4] == ["t4", "l4", "a10"]
    assert table_of(capsys, "t4,t4").keys() == table_of(capsys, "t4").keys()


def test_json_rows(capsys):
    assert run("--format", "json") == 0
    rows = {row["slug"]: row for row in json.loads(capsys.readouterr().out)}
    assert list(rows) == list(load_gpus())
    for row in rows.values():
        assert set(row["peaks_flops_per_s"]) == set(row["ridge"]) == set(DTYPES)
        assert row["sources"]
        assert row["name"]
        for dtype, peak in row["peaks_flops_per_s"].items():
            ridge = row["ridge"][dtype]
            assert (peak is None) == (ridge is None)
            assert peak is None or ridge == pytest.approx(
                peak / row["memory_bandwidth_bytes_per_s"]
            )
    h100 = rows["h100-sxm"]
    assert h100["peaks_flops_per_s"]["bf16"] == 989_400_000_000_000
    assert h100["peaks_flops_per_s"]["nvfp4"] is None
    assert h100["memory_bandwidth_bytes_per_s"] == 3_352_000_000_000
    assert h100["l2_bytes"] == 50 * 2**20
    assert rows["gh200-144gb"]["max_clock_hz"] is None


@pytest.mark.parametrize("slugs", [["h100-sxm", "h100-sxm-typo"], ["[red]x"]])
def test_unknown_slug_is_one_line_and_exit_2(capsys, slugs):
    assert run(*slugs, "--format", "json") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("python -m roofline gpus: error: ")
    assert err.count("\n") == 1


def test_unknown_gpu_shows_question_marks(capsys, monkeypatch):
    gpu = unknown_gpu("Some GPU", 2.619e9, 5120, "9.0")
    for module in (gpus, gpu_table):
        monkeypatch.setattr(module, "load_gpus", lambda: {gpu.slug: gpu})
    assert table_of(capsys)["unknown-some-gpu"][1:] == [
        *["?"] * 8,
        "3352.3",
        "?",
        "?",
        "?",
        "?",
        "fp16",
    ]
    assert run(gpu.slug, "--format", "json") == 0
    [row] = json.loads(capsys.readouterr().out)
    assert set(row["ridge"].values()) == set(row["peaks_flops_per_s"].values()) == {None}
    assert row["bandwidth_kind"] == "derived"
