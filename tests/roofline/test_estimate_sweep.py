"""Sweeps of estimates: their points, the same numbers as single answers, refusals, and pictures."""

import csv
import io
import json

import pytest
from test_estimate import call, data_of, text_of

from roofline.estimate.sweep import Over, swept
from roofline.picture.charts import draw_sweep

DECODE = "infer --model llama-3-8b --gpu h100-sxm --prompt 128"


def test_each_point_is_the_answer_to_its_options(capsys):
    rows = json.loads(
        text_of(
            capsys,
            f"sweep {DECODE} --over batch=1:64:x8 --over kv-dtype=bf16,fp8e4m3 --format json",
        )
    )
    assert len(rows["rows"]) == 6
    for row in rows["rows"]:
        single = data_of(capsys, f"{DECODE} --batch {row['batch']} --kv-dtype {row['kv-dtype']}")
        assert {key: row[key] for key in ("decode_seconds", "cache_bytes", "critical_batch")} == {
            key: single[key] for key in ("decode_seconds", "cache_bytes", "critical_batch")
        }
    table = text_of(capsys, f"sweep {DECODE} --over batch=1,8 --format csv")
    assert [row["batch"] for row in csv.DictReader(io.StringIO(table))] == ["1", "8"]
    assert text_of(capsys, f"sweep {DECODE} --over batch=1,8 --format md").startswith("| batch | ")


def test_ranges_have_no_limit_but_that_of_the_option():
    assert Over.read("flops=1e20:1e23:x10").values == [str(10**power) for power in range(20, 24)]
    assert Over.read("mfu=0.1:0.5:+0.2").values == ["0.1", "0.3", "0.5"]


def test_a_table_shows_what_was_asked_and_why_a_point_has_no_answer(capsys):
    text = text_of(capsys, "sweep memory --model gpt2 --over tensor-parallel=1,2,5")
    assert "3.838 GB" in text
    assert "--tensor-parallel 5 does not divide 12 heads" in text
    # All there is, where nothing comes first.
    assert "65504" in text_of(capsys, "sweep dtype --over dtype=bf16,fp16")


def test_points_that_do_not_fit_are_left_out(capsys):
    """Llama 3 8B on one H100 (85.0 GB): 16.06 GB of weights, 2048 x 131,072 bytes of cache a
    sequence: 256 fit.
    """
    words = "infer --model llama-3-8b --gpu h100-sxm --over batch=128:1024:x2"
    given, over = {"model": "llama-3-8b", "gpu": "h100-sxm"}, Over.read("batch=128:1024:x2")
    fits = [line.split()[-1] for line in text_of(capsys, f"sweep {words}").splitlines()]
    assert fits == ["fits", "yes", "yes", "no", "no"]
    axes = draw_sweep(swept("infer", given, [over]), "", "decode_seconds").axes[0]
    assert [x for x, _ in axes.get_lines()[0].get_xydata()] == [128, 256]


def test_rows_of_several_gpus_do_not_repeat_the_fastest(capsys):
    words = "infer --model llama-3-8b --gpu h100-sxm,a100-sxm-80gb --over batch=1,8"
    assert "fastest" not in text_of(capsys, f"sweep {words}")


def test_plot_has_a_sentence_as_title_and_a_line_at_the_memory_of_the_gpu():
    """Llama 3 8B trained by ZeRO 3: 142.7 GB on one device, 79.5 GB on each of two; an H100 has
    85.0 GB.
    """
    over = Over.read("data-parallel=1:2:x2")
    sweep = swept("memory", {"model": "llama-3-8b", "gpu": "h100-sxm", "zero": "3"}, [over])
    figure = draw_sweep(sweep, "training memory", "total_bytes")
    title = "Total size goes from 142.7 GB at data-parallel 1 to 79.49 GB at data-parallel 2"
    said = " ".join(text.get_text() for text in figure.texts)
    assert title in " ".join(said.split())
    assert "training memory" in said
    (limit,) = (line for line in figure.axes[0].get_lines() if set(line.get_xdata()) == {0, 1})
    assert set(limit.get_ydata()) == {85_027_979_264}


def test_words_are_bars_of_the_parts_of_the_total():
    """Training memory of GPT-2 by recipe; the heights are the totals but for small parts."""
    sweep = swept("memory", {"model": "gpt2"}, [Over.read("recipe=fp32,bf16,fsdp")])
    axes = draw_sweep(sweep, "training memory", "total_bytes").axes[0]
    totals = [row["total_bytes"] for row in sweep.rows]
    assert totals[2] is None  # it requires --zero 3
    tops = [0.0, 0.0]
    for bars in axes.containers:
        for place, bar in enumerate(bars):
            tops[place] = max(tops[place], bar.get_y() + bar.get_height())
    assert tops == pytest.approx(totals[:2], rel=0.03)
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert {"weights", "gradients", "optimizer", "activations"} <= set(names)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["fp32", "bf16"]


def test_sweep_plot_has_a_line_per_other_value(tmp_path):
    words = f"{DECODE} --over batch=1:2048:x4 --over weight-dtype=bf16,int8".split()
    given = {"model": "llama-3-8b", "gpu": "h100-sxm", "prompt": 128}
    overs = [Over.read("batch=1:2048:x4"), Over.read("weight-dtype=bf16,int8")]
    axes = draw_sweep(swept("infer", given, overs), "", "decode_seconds").axes[0]
    lines = {
        line.get_label(): line.get_xydata()
        for line in axes.get_lines()
        if len(line.get_xdata()) > 2
    }
    assert set(lines) == {"weight-dtype bf16", "weight-dtype int8"}
    assert [x for x, _ in lines["weight-dtype int8"]] == [1, 4, 16, 64, 256, 1024]
    assert axes.get_xscale() == "log"
    assert call("sweep", *words, "--plot", str(tmp_path / "a.png")) == 0
    assert call("memory", "--model", "gpt2", "--plot", str(tmp_path / "b.svg")) == 0
    steps = "train --model llama-3-8b --zero 3 --gpu h100-sxm --over gpus=8,16"
    assert call("sweep", *steps.split(), "--plot", str(tmp_path / "c.png")) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"a.png", "b.svg", "c.png"}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("sweep", "expected one of tensor"),
        ("sweep nothing --over a=1", "expected one of tensor"),
        ("sweep params --model gpt2", "expected one or two different options"),
        (
            "sweep params --model gpt2 --over depth=1,2",
            "unrecognized arguments: --depth",
        ),
        ("sweep flops --model gpt2 --over sequence=1:9:x1", "is not OPTION=1,8,64"),
        (
            "sweep flops --model gpt2 --over sequence=1:100:+1 --over batch=1:100:+1",
            "10,000 points",
        ),
        ("sweep params --over model=gpt3,gpt4", "unknown model"),
        ("sweep flops --model gpt2 --over batch=1,2 --plot x.bmp", "cannot tell the format"),
        ("mfu --plot x.png", "unrecognized arguments: --plot x.png"),
    ],
)
def test_bad_sweeps_get_one_line(capsys, line, words):
    try:
        code = call(*line.split())
    except SystemExit as leaving:
        code = leaving.code
    printed = capsys.readouterr()
    assert (code, printed.out, printed.err.count("\n")) == (2, "", 1)
    assert words in printed.err
