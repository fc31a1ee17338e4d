"""Every export, read back by what it is meant for: pandas, a JSON reader, a Markdown table."""

import csv
import io
import json
import os
import re
import stat

import pytest

from results.record import Loop, ProfileOp, Step
from results.show.grid import Cell, Table, csv_text, markdown_text
from results.show.rows import (
    COLUMNS,
    TELEMETRY_NUMBERS,
    document,
    flat_rows,
    to_frame,
)
from results.show.table import table_of_run
from results.show.terminal import TABLE_FORMATS
from results.store.runfile import Run, StoreError, write_output
from roofline.model import JUDGED_KEYS

HOSTILE = "a|b\nc\x1b[31m\\|`<b>,\"'\u202e\ud800"


@pytest.fixture
def records(make_record, make_skipped):
    return [
        make_record(),
        make_record(
            provider="triton-v1",
            samples_s=(3e-6,),
            median_s=3e-6,
            ci95_s=(3e-6, 3e-6),
            flags=("a", "b"),
        ),
        make_skipped(shape={"m": 2**40, "n": 1, "batch": 8}, options={"layout": "nt"}, flops=None),
    ]


@pytest.fixture
def run(make_environment, records, tmp_path):
    return Run(tmp_path / "run.jsonl", make_environment(), tuple(records))


def test_units_of_the_op_are_not_those_of_the_peak_that_judges_it(run, make_record):
    """The vector peak of this machine is unknown, so the matrix peak stands in."""
    record = make_record(op="gelu", units="vector")
    for row in (
        document(run.environment, [record])["records"][0],
        flat_rows(run.environment, [record])[0],
    ):
        assert (row["units"], row["peak_units"]) == ("vector", "matrix")
    assert document(run.environment, [make_record(op="mine")])["records"][0]["units"] is None


def test_json_holds_everything_and_the_judged_keys(run):
    read = json.loads(table_of_run(run.environment, run.records).render("json"))
    assert read["environment"] == run.environment.to_dict() | {"argv": list(run.environment.argv)}
    assert len(read["records"]) == 3
    for row, record in zip(read["records"], run.records, strict=True):
        assert json.loads(json.dumps(record.to_dict())).items() <= row.items()
        assert set(JUDGED_KEYS) <= set(row)
    assert read["records"][0]["mfu"] == pytest.approx(0.5)


def test_csv_reads_back_exactly(run):
    rows = list(
        csv.DictReader(io.StringIO(table_of_run(run.environment, run.records).render("csv")))
    )
    expected = flat_rows(run.environment, run.records)
    assert list(rows[0]) == list(expected[0])
    for read, row in zip(rows, expected, strict=True):
        for name, value in row.items():
            if value is None:
                assert read[name] == ""
            elif isinstance(value, bool):
                assert read[name] == str(value).lower()
            elif isinstance(value, int | float):
                assert type(value)(read[name]) == value
            else:
                assert read[name] == value


def test_the_columns_keep_their_order_whatever_the_records_have(run, make_skipped):
    few, many = (
        flat_rows(run.environment, [make_skipped()]),
        flat_rows(run.environment, run.records),
    )
    assert list(few[0])[: len(COLUMNS)] == list(many[0])[: len(COLUMNS)] == list(COLUMNS)
    assert list(many[0])[len(COLUMNS) :] == [
        *("shape_m", "shape_n", "shape_k", "shape_batch", "option_layout"),
        *("telemetry_power_w", "telemetry_throttle", "verified_passed"),
    ]
    assert many[2]["shape_k"] is None
    assert many[0]["telemetry_throttle"] == '{"thermal": false}'
    assert many[1]["flags"] == "a,b"


def test_what_only_one_kind_of_rows_has_is_in_columns_of_its_own(
    make_environment, make_record, tmp_path
):
    loop = Loop(waits_s=(0.5, 0.0), file_bytes=4096, extra={"later": "x"})
    step = Step(tokens_per_step=512, notes=("an estimate",))
    records = (make_record(), make_record(details=loop), make_record(details=step))
    rows = flat_rows(make_environment(), records)
    names = [name for name in rows[0] if name.startswith("details_")]
    assert list(rows[0])[-len(names) :] == names
    shown = ("kind", "waits_s", "file_bytes", "later", "tokens_per_step", "notes")
    assert [[row[f"details_{name}"] for name in shown] for row in rows] == [
        [None] * 6,
        ["loop", "[0.5, 0.0]", 4096, "x", None, None],
        ["step", None, None, None, 512, '["an estimate"]'],
    ]
    frame = to_frame([Run(tmp_path, make_environment(), records)])
    assert frame["details_file_bytes"].tolist()[1] == 4096
    # No row has a time on a device, which is still a number.
    types = frame.dtypes.astype(str)
    assert (types["details_device_s"], types["details_counted_flops"]) == ("float64", "Int64")


def test_markdown_of_a_profile_has_calls_time_and_share(make_environment, make_record):
    details = ProfileOp(module="mlp", phase="forward", matmul_flops=None, time_s=0.003, share=0.25)
    table = table_of_run(make_environment(), [make_record(count=3, details=details)])
    head, _, row = markdown_cells(table.render("md"))
    shown = dict(zip(head, row, strict=True))
    assert (shown["count"], shown["time"], shown["share"]) == ("3", "3 ms", "25%")


@pytest.mark.parametrize("format", TABLE_FORMATS[1:])
def test_a_run_without_records_has_an_export(make_environment, format):
    text = table_of_run(make_environment(), []).render(format)
    if format == "csv":
        assert text == ",".join(COLUMNS) + "\n"
    elif format == "md":
        head, rule = markdown_cells(text)
        assert (head[:2], rule) == (["run_id", "started_at"], ["---"] * len(head))
    else:
        assert json.loads(text)["records"] == []


def markdown_cells(text):
    """Cells of a Markdown table as GitHub splits it: at every pipe that has no backslash before
    it.
    """
    lines = text.removesuffix("\n").split("\n\n")[-1].split("\n")
    assert all(line.startswith("| ") and line.endswith(" |") for line in lines)
    return [
        [cell.strip() for cell in re.split(r"(?<!\\)(?:\\\\)*\|", line)[1:-1]] for line in lines
    ]


def test_markdown_has_no_column_whose_cells_are_empty_or_missing():
    rows = [{"op": Cell("gelu")}, {"op": Cell("overlap"), "hidden": Cell("9%"), "link": Cell("")}]
    text = Table(rows=list, cells=lambda: rows).render("md")
    assert markdown_cells(text) == [["op", "hidden"], ["---"] * 2, ["gelu", ""], ["overlap", "9%"]]


def test_markdown_is_the_table_that_people_read(run):
    head, rule, first, second, skipped = markdown_cells(
        table_of_run(run.environment, run.records).render("md")
    )
    titles = (
        "op, case, dtype, provider, fill, options, status, reason, median, 95% CI, TFLOP/s, "
        "GB/s, FLOP/B, bound"
    )
    # Without `% meas` and `mix`, as nothing was measured of this machine.
    assert head == f"{titles}, MFU, MBU, % roof, flags".split(", ")
    assert rule == ["---"] * len(head)
    assert first == [
        *(
            "matmul",
            "1024x1024x1024",
            "bf16",
            "torch",
            "uniform",
            "",
            "ok",
            "",
            "4.295 us",
            "±2.3%",
        ),
        *("500", "1465", "341.3", "memory", "50%", "73.2%", "73.2%", ""),
    ]
    assert second[-1] == "a, b"
    assert skipped[:5] == first[:5]
    assert skipped[5:9] == ["layout nt", "skipped", "out of memory", ""]


def test_markdown_keeps_any_text_within_its_cell():
    text = markdown_text([{"a": HOSTILE, "b": "x"}], ["a", "b"])
    _, _, row = markdown_cells(text)
    assert len(row) == 2
    assert row[1] == "x"
    assert "<" not in text


@pytest.mark.parametrize("format", TABLE_FORMATS[1:])
def test_no_export_holds_what_a_terminal_obeys(make_environment, make_record, format):
    record = make_record(
        provider=HOSTILE, options={HOSTILE: HOSTILE}, flags=(HOSTILE,), reason=HOSTILE
    )
    text = table_of_run(make_environment(run_id=HOSTILE), [record]).render(format)
    assert all(character.isprintable() or character == "\n" for character in text)
    text.encode("utf-8")


def test_the_frame_has_a_row_for_each_record_and_its_samples(run):
    frame = to_frame([run, run])
    assert len(frame) == 6
    assert frame.samples_s[0] == list(run.records[0].samples_s)
    assert frame.samples.tolist() == [3, 1, 0] * 2
    assert set(frame.run_id) == {"20261120T210312Z-0123456789"}
    assert set(frame.device_slug) == {"h100-sxm"}
    assert frame.started_at[0] == "2026-11-20T21:03:12+00:00"
    assert frame.mfu[0] == pytest.approx(0.5)
    assert frame.shape_m[2] == 2**40
    assert frame.groupby("provider").median_s.min()["triton-v1"] == 3e-6
    empty = to_frame([Run(run.path, run.environment, ())])
    assert (list(empty.columns), len(empty)) == ([*COLUMNS, "samples_s"], 0)


@pytest.mark.parametrize("value", [None, 3, 0.5])
def test_a_known_column_has_one_type_whatever_it_holds(
    make_environment, make_skipped, make_record, tmp_path, value
):
    keys = (*TELEMETRY_NUMBERS, "cgroup_throttled_periods")
    whole = None if value is None else 7
    telemetry = dict.fromkeys(keys, value) | {"cgroup_throttled_periods": whole}
    records = (
        make_skipped(telemetry=telemetry, flops=whole),
        make_record(telemetry=dict.fromkeys(keys), flops=None),
    )
    types = to_frame([Run(tmp_path, make_environment(), records)]).dtypes.astype(str)
    assert {types[f"telemetry_{key}"] for key in TELEMETRY_NUMBERS} == {"float64"}
    assert types["telemetry_cgroup_throttled_periods"] == "Int64"
    assert {types[name] for name in ("flops", "samples", "copies", "shape_m")} == {"Int64"}
    assert {types[name] for name in ("median_s", "mfu", "host_latency_s")} == {"float64"}
    assert {types[name] for name in ("reason", "bound", "flags", "fill", "excess")} == {"string"}
    assert {types[name] for name in ("converged", "settled")} == {"boolean"}


def test_a_csv_cell_is_no_formula_of_a_spreadsheet(make_environment, make_record):
    """OWASP, CSV Injection: cells that begin with = + - @ are evaluated."""
    names = ["=HYPERLINK(1)", "+1", "-1", "@SUM(1)"]
    records = [make_record(provider=name, case="-") for name in names]
    text = table_of_run(make_environment(), records).render("csv")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["provider"] for row in rows] == [f"'{name}" for name in names]
    assert {row["case"] for row in rows} == {"-"}
    assert csv_text([{"headroom": -1.5}], ()) == "headroom\n-1.5\n"


def test_why_telemetry_is_missing_is_left_to_json(make_environment, make_record):
    record = make_record(telemetry={"power_w": None, "errors": {"power_w": "NoPermission"}})
    assert "NoPermission" in table_of_run(make_environment(), [record]).render("json")
    text = table_of_run(make_environment(), [record]).render("csv")
    assert ("NoPermission" in text, "telemetry_errors" in text, "telemetry_power_w" in text) == (
        False,
        False,
        True,
    )


def test_an_export_replaces_the_old_one_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "run.csv"
    path.write_text("old")
    path.chmod(0o640)
    write_output(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_an_export_that_fails_leaves_the_old_one(tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    path = tmp_path / "run.csv"
    path.write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"cannot write .*run\.csv: No space left on device"):
        write_output(path, b"new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_export_into_a_pipe_or_device_does_not_replace_it(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_output(pipe, b"new")
        assert os.read(reader, 10) == b"new"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_folders_that_are_missing_are_made(tmp_path):
    path = tmp_path / "new" / "deep" / "run.csv"
    write_output(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(path.parent.iterdir()) == [path]
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "other" / "target")
    write_output(link, b"new")
    assert (tmp_path / "other" / "target").read_bytes() == b"new"


def test_a_loop_of_links_is_one_line(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    for path in (tmp_path / "a", tmp_path / "a" / "run.csv"):
        with pytest.raises(StoreError, match="Too many levels of symbolic links; choose another"):
            write_output(path, b"new")
