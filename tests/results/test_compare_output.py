"""python -m results compare: from the files that are read to Markdown, table and picture."""

import csv
import io
import re
from dataclasses import replace

import pytest
from compare_runs import NO_DRIFT, case

from results.__main__ import main
from results.compare.comparison import compare, compare_live
from results.compare.output import as_text
from results.compare.plot import draw
from results.compare.sides import CompareOptions
from results.store.runfile import load_run

PNG = b"\x89PNG\r\n\x1a\n"


def test_truncated_line_is_a_note_and_invalid_line_exits_with_2(save, measured, tmp_path, capsys):
    before, after = save("a", measured(seed=1)), save("b", measured(seed=2))
    with (tmp_path / "b.jsonl").open("ab") as file:
        file.write(b'{"kind": "record", "op"')
    assert main(["compare", *NO_DRIFT, before, after]) == 0
    out, err = capsys.readouterr()
    assert "1 SAME" in out
    assert f"note: {after}:3: the last line is truncated; left out\n" in err
    with (tmp_path / "b.jsonl").open("ab") as file:
        file.write(b'\n{"kind": "record", "op": "a"}\n')
    assert main(["compare", *NO_DRIFT, before, after]) == 2
    out, err = capsys.readouterr()
    assert "1 SAME" in out
    assert f"{after}:4: Object missing required field `provider`\n" in err


def test_the_markdown_starts_with_a_summary_in_one_line(save, measured, capsys):
    before = save("a", measured(seed=1), measured(seed=1, **case(64)))
    after = save("b", measured(1.1, seed=2), measured(seed=1, **case(32)))
    assert main(["compare", *NO_DRIFT, before, after, "--format", "md"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        r"\*\*aaaaaaaa -> bbbbbbbb: 1 SLOWER of 1 row; geometric mean 1\.\d{4}x the time "
        r"\(95 % CI 1\.\d{4} to 1\.\d{4}\)\*\*",
        lines[0],
    )
    head = "verdict, time ratio, 95% CI, op, case, dtype, provider, baseline, candidate"
    head += ", MFU baseline, MFU candidate, % of ceiling, reason"
    assert lines[2] == f"| {head.replace(', ', ' | ')} |"
    assert lines[3] == "| " + " | ".join(["---"] * (lines[2].count("|") - 1)) + " |"
    assert re.match(r"\| SLOWER \| 1\.\d{3}x \| ±\d", lines[4])
    assert "| matmul | 1024x1024x1024 | bf16 | torch |" in lines[4]
    assert lines[6].startswith(
        "- baseline: aaaaaaaa (NVIDIA H100 80GB HBM3, 20261120T210312Z-a, 2026-11-20T21:03:12"
    )
    assert "<details><summary>2 not compared</summary>" in lines
    assert "- baseline: matmul 64x64 bf16 torch uniform cold: not in the candidate" in lines


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("suffix", "start"), [("png", PNG), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_a_picture_is_drawn(save, measured, tmp_path, capsys, suffix, start):
    records = [measured(seed=size, **case(size)) for size in range(1, 60)]
    slower = [measured(1 + size / 500, seed=-size, **case(size)) for size in range(1, 60)]
    picture = tmp_path / "made" / f"compare.{suffix}"
    assert (
        main(["compare", *NO_DRIFT, save("a", *records), save("b", *slower), "-o", str(picture)])
        == 1
    )
    assert picture.read_bytes().startswith(start)
    if suffix == "svg":
        text = " ".join(
            re.findall(r"<!-- (.*?) -->", picture.read_text(encoding="utf-8"), re.DOTALL)
        )
        assert "40 of 59 rows drawn, the most important" in text
        assert "% of the limiting ceiling" in text


def test_plot_without_a_known_ceiling_shows_bytes_per_second(save, measured, tmp_path, capsys):
    one = measured(seed=1, dtype="fp8e4m3", provider="a$b", bytes_read=None)
    picture = tmp_path / "compare.svg"
    runs = (save("a", one), save("b", one))
    assert main(["compare", *NO_DRIFT, *runs, "-o", str(picture)]) == 0
    assert "GB/s of compulsory bytes" in picture.read_text(encoding="utf-8")
    assert "fill: #171717" not in picture.read_text(encoding="utf-8")
    assert main(["compare", *NO_DRIFT, *runs, "-o", str(picture), "--theme", "dark"]) == 0
    assert "fill: #171717" in picture.read_text(encoding="utf-8")


def test_a_picture_of_versions_shows_their_mfu(save, measured, tmp_path):

    scales = {"mm-v1": 1.0, "mm-v2": 0.8, "mm-v3": 0.9}
    records = [
        measured(scale, provider=name, bytes_read=2**20, bytes_written=2**19)
        for name, scale in scales.items()
    ]
    run = load_run(save("a", *records))
    left, right = draw(compare(run, None, CompareOptions(by="version"), 0.0)).axes
    assert right.get_xlabel().startswith("MFU, %")
    widths = [bar.get_width() for bar in right.patches]
    assert widths == pytest.approx([53.7, 67.1, 67.1, 59.7], rel=0.005)
    labels = [label.get_text().partition("bf16\n")[2] for label in left.get_yticklabels()]
    assert labels == ["mm-v1 -> mm-v2", "mm-v2 -> mm-v3"]
    assert [text.get_text() for text in right.get_legend().get_texts()] == ["baseline", "candidate"]


def test_long_names_of_both_sides_end_within_the_picture(save, measured, tmp_path):

    runs = [load_run(save(name, measured(seed=1))) for name in ("a", "b")]
    compared = replace(compare(*runs, CompareOptions()), baseline="a" * 40, candidate="b" * 40)
    figure = draw(compared)
    figure.canvas.draw()
    legends = [axes.get_legend().get_window_extent() for axes in figure.axes]
    assert max(box.x1 for box in legends) <= figure.bbox.x1
    assert min(box.y0 for box in legends) >= 0


def test_a_ratio_that_is_far_off_is_drawn_on_a_log_axis(save, measured, monkeypatch):
    from results.show import picture

    figures = []
    monkeypatch.setattr(picture, "save_picture", lambda figure, path: figures.append(figure))
    before = save("a", measured(seed=1), measured(seed=2, **case(64)))
    for name, scale in (("b", 1.1), ("c", 9.0)):
        after = save(name, measured(seed=3), measured(scale, seed=4, **case(64)))
        main(["compare", *NO_DRIFT, before, after, "-o", "compare.png"])
    assert [figure.axes[0].get_xscale() for figure in figures] == ["linear", "log"]


def test_csv_of_a_comparison_without_a_row_lists_what_was_not_compared(
    make_environment, make_record
):
    records = [make_record(), make_record(provider="a", status="failed", reason="died")]
    compared = compare_live(make_environment(), records, "torch", 0.01)
    (row,) = csv.DictReader(io.StringIO(as_text(compared, "csv", "slower")))
    assert (row["verdict"], row["reason"]) == ("UNMATCHED", "candidate: failed: died")


def test_a_ratio_that_is_too_noisy_is_not_printed(save, measured, capsys):
    rough = [1e-6 * 300 ** (place * 7 % 24 / 24) for place in range(24)]
    wide = {"samples_s": rough, "median_s": 17e-6, "ci95_s": (2e-6, 90e-6)}
    wide |= case(64) | {"visits": (8, 8, 8)}
    before = save("a", measured(seed=1), measured(**wide))
    main(["compare", *NO_DRIFT, before, save("b", measured(seed=2), measured(**wide))])
    lines = capsys.readouterr().out.splitlines()
    (noisy,) = [line for line in lines if line.startswith("UNSURE")]
    assert noisy.split()[1:4] == ["-", "too", "noisy"]
    (clear,) = [line for line in lines if "1024x1024x1024" in line and "SAME" in line]
    assert re.match(r"SAME +\d\.\d{3}x ", clear)
