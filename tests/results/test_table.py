"""The table: what a number looks like, that nothing is hidden, and that no text takes over the
terminal.
"""

import io

import pytest
from rich.console import Console

from results.show.table import header_lines, render_table, table_cells
from results.show.terminal import drawn
from results.show.units import (
    count,
    duration,
    format_half_width,
    gibibytes,
    number,
    percent,
    quantity,
    uncertainty,
)
from roofline.machine import Ceiling, Machine


def rendered(environment, records, width=200, terminal=False):
    file = io.StringIO()
    render_table(environment, records, Console(file=file, width=width, force_terminal=terminal))
    return file.getvalue()


def row_with(text, *words):
    (line,) = (line for line in text.splitlines() if all(word in line for word in words))
    return line.split()


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (duration(None), "-"),
        (duration(0.0), "0 ns"),
        (duration(1.234567e-9), "1.235 ns"),
        (duration(123.4567e-6), "123.5 us"),
        (duration(90000.0), "1.042 days"),
        (quantity(None, "FLOP/s"), "-"),
        (quantity(989.4e12, "FLOP/s"), "989.4 TFLOP/s"),
        (gibibytes(80 * 2**30), "80 GiB"),
        (number(-0.0), "0"),
        (number(999999.7), "1.000e6"),
        (number(6.3e24), "6.300e24"),
        (number(-1.2346e-5), "-12.35e-6"),
        (number(1.2345e-5), "12.35e-6"),
        (duration(1.2345e-5), "12.35 us"),
        (number(9.99996e6), "10.00e6"),
        (number(5e-324), "4.941e-324"),
        (number(123456789.0, 2), "123e6"),
        (number(float("inf")), "inf"),
        (count(98_765_000), "98,765,000"),
        (count(1, "device"), "1 device"),
        (percent(None), "-"),
        (percent(0.70881), "70.9%"),
        (percent(1.3e-7), "<0.001%"),
        (percent(130.5, 100), "130%"),  # never clamped
        (uncertainty(0.0123), "±1.2%"),
        (uncertainty(1.5), "too noisy"),
    ],
)
def test_a_number_has_four_digits_and_the_unit_that_suits_it(shown, text):
    assert shown == text


def test_a_row_holds_what_was_measured_and_what_it_means(make_environment, make_record):
    text = rendered(make_environment(), [make_record(flags=("tick-limited",))])
    assert row_with(text, "matmul", "torch", "%") == [
        *(
            "matmul",
            "1024x1024x1024",
            "bf16",
            "torch",
            "4.295",
            "us",
            "±2.3%",
            "500",
            "1465",
            "341.3",
            "memory",
        ),
        *("50%", "73.2%", "73.2%", "250", "ms", "3", "tick-limited"),
    ]
    head = row_with(text, "median")
    assert "TFLOP/s" in head
    assert "GB/s" in head


def test_the_head_tells_machine_versions_code_and_ceilings(make_environment, make_record):
    machine, ceilings, command = header_lines(make_environment(), [make_record()])
    assert machine == (
        "NVIDIA H100 80GB HBM3 (h100-sxm), python 3.11.9, torch 2.13.0, 2026-11-20T21:03:12+00:00, "
        "git 0123456789 with changes, run 20261120T210312Z-0123456789"
    )
    assert ceilings == "bf16 peak 1 PFLOP/s datasheet; memory bandwidth 2 TB/s datasheet"
    assert command == "python -m bench.matmul --dtype bf16"


def test_the_head_says_what_must_be_known_of_the_machine(make_environment):
    machine = Machine(note="this GPU is not in the table")
    assert "note: this GPU is not in the table" in header_lines(make_environment(machine=machine))


def test_a_slow_machine_is_shown_in_gflops(make_environment, make_record):
    text = rendered(make_environment(), [make_record(median_s=2**31 / 912e9)])
    assert "GFLOP/s" in text
    assert "TFLOP/s" not in text
    assert "912" in row_with(text, "matmul", "torch", "%")


def test_what_was_not_measured_is_listed_with_its_reason(
    make_environment, make_record, make_skipped
):
    records = [
        make_record(),
        make_skipped(),
        make_skipped(status="invalid", reason="differs from the reference by 5 ulp"),
        make_skipped(status="failed", reason=None),
    ]
    text = rendered(make_environment(), records)
    assert (
        " ".join(row_with(text, "skipped"))
        == "skipped: matmul 1024x1024x1024 bf16 torch: out of memory"
    )
    assert "differs from the reference by 5 ulp" in text
    assert row_with(text, "failed")[-1] == "-"
    assert "no measurement" not in text


def test_options_tell_the_rows_apart_that_were_not_measured(make_environment, make_skipped):
    rows = [make_skipped(options={"checkpoint": name, "micro": 1}) for name in ("none", "full")]
    text = rendered(make_environment(), rows, 200)
    assert text.count("checkpoint=full") == text.count("checkpoint=none") == 1


def test_an_option_without_a_value_is_not_named(make_environment, make_record):
    phases = [make_record(options={"module": name, "phase": "optimizer"}) for name in ("", "head")]
    cells = [row["options"].text for row in table_cells(make_environment(), phases)]
    assert cells == ["phase optimizer", "module head, phase optimizer"]


def test_many_rows_with_one_reason_take_one_line(make_environment, make_skipped):
    late = [
        make_skipped(op=op, reason="the budget of 1 s is spent")
        for op in ("gelu", "relu")
        for _ in range(2)
    ]
    text = rendered(make_environment(), [*late, make_skipped(), *late[:1]])
    assert "skipped: 5 rows (gelu, relu): the budget of 1 s is spent\n" in text
    assert text.count("the budget of 1 s is spent") == 1
    assert (
        " ".join(row_with(text, "matmul", "out of memory"))
        == "skipped: matmul 1024x1024x1024 bf16 torch: out of memory"
    )


def test_where_nothing_was_measured_the_table_says_so(make_environment, make_skipped):
    text = rendered(make_environment(), [make_skipped()])
    assert "no row was measured" in text
    assert "out of memory" in text
    assert "no row was measured" in rendered(make_environment(), [])


def test_above_the_roof_is_shown_with_its_cause(make_environment, make_record):
    text = rendered(make_environment(), [make_record(median_s=2**31 / 1200e12)])
    assert "120%" in row_with(text, "matmul", "torch", "us")
    assert "matmul 1024x1024x1024 bf16 torch: above the datasheet bf16 peak" in text


def machine_of(*mixes, is_published=True, peak=0.0):
    """Return an H200: mixes in TB/s, the fastest matmul in TFLOP/s."""
    entries = [("bandwidth", name, value * 1e12, "measured") for name, value in mixes]
    entries += [("flops", "bf16", peak * 1e12, "measured")] if peak else []
    entries += [
        ("bandwidth", "memory", 4.8e12, "datasheet"),
        ("flops", "bf16", 989e12, "datasheet"),
    ] * is_published
    return Machine(entries=tuple(Ceiling(*entry, "a test") for entry in entries))


def moved(make_record, op, read, written, bytes_per_s):
    """Return a record that moves so many bytes, with a FLOP for each, at a rate."""
    counts = {"flops": read + written, "bytes_read": read, "bytes_written": written}
    return make_record(op=op, case="1", median_s=(read + written) / bytes_per_s, **counts)


MIXES = (("read", 4.5), ("write", 4.28), ("triad", 4.05), ("copy", 3.93))


def test_calibrated_gpu_shows_percent_of_measured_and_mbu(make_environment, make_record):
    records = [
        moved(make_record, "relu", 10**9, 10**9, 0.98 * 3.93e12),
        moved(make_record, "dot", 10**9, 4, 0.97 * 4.5e12),
    ]
    text = rendered(make_environment(machine=machine_of(*MIXES, peak=795)), records)
    assert row_with(text, "median")[-8:] == ["%", "roof", "%", "meas", "mix", "first", "call", "n"]
    # MBU, % roof, % meas, mix.
    assert row_with(text, "relu")[-7:-3] == ["80.2%", "80.2%", "98%", "copy"]
    assert row_with(text, "dot")[-7:-3] == ["90.9%", "90.9%", "97%", "read"]


def test_matmul_is_compared_with_the_matmul_peak_not_a_mix(make_environment, make_record):
    cube = {"flops": 2 * 8192**3, "bytes_read": 4 * 8192**2, "bytes_written": 2 * 8192**2}
    record = make_record(**cube, median_s=2 * 8192**3 / 780e12)
    text = rendered(make_environment(machine=machine_of(*MIXES, peak=795)), [record])
    assert row_with(text, "matmul", "1.410")[-5:-3] == ["78.9%", "98.1%"]


def test_measured_machine_shows_mix_if_rows_differ(make_environment, make_record):
    copy, read = (
        moved(make_record, op, 10**9, w, 3.5e12) for op, w in (("relu", 10**9), ("dot", 4))
    )
    environment = make_environment(machine=machine_of(*MIXES, is_published=False, peak=795))
    both = rendered(environment, [copy, read])
    assert "% meas" not in both
    assert row_with(both, "median")[-4:] == ["mix", "first", "call", "n"]
    assert (row_with(both, "relu")[-4], row_with(both, "dot")[-4]) == ("copy", "read")
    assert row_with(both, "relu")[-6:-4] == ["89.1%", "89.1%"]  # of the copy, not of the envelope
    alone = rendered(environment, [copy])
    assert "mix" not in row_with(alone, "median")
    assert row_with(alone, "relu")[-5:-3] == ["89.1%", "89.1%"]


@pytest.mark.parametrize("width", [20, 40, 60, 70, 80, 100, 120, 150])
def test_narrow_terminal_cuts_no_number(make_environment, make_record, width):
    text = rendered(make_environment(), [make_record()], width)
    assert ("too narrow for: " in " ".join(text.split())) == (width < 100)
    table = text[text.index("─") :].split()
    numbers = ["73.2%"] if width >= 80 else []
    for whole in ("torch", "1024x1024x1024", "bf16", "4.295", "500", *numbers):
        assert whole in table
    assert "…" not in text


def test_options_are_shown_that_differ_between_the_rows_of_an_op(make_environment, make_record):
    options = [{"layout": "nn", "batch": 1}, {"layout": "nt", "batch": 1}]
    records = [make_record(options=each) for each in options]
    records.append(make_record(op="softmax", options={"batch": 2}))
    text = rendered(make_environment(), records)
    assert ("layout nt" in text, "batch" in text) == (True, False)


@pytest.mark.usefixtures("capsys")
def test_a_pipe_gets_whole_lines(make_environment, make_skipped):
    rows = [make_skipped(reason="needs 412 GB, the device has 141 GB free; " * 5)]
    text = drawn(lambda console: render_table(make_environment(), rows, console))
    assert rows[0].reason.strip() in text


@pytest.mark.parametrize(
    ("interval", "text"), [((0.9, 1.1), "±10%"), ((0.1, 2.0), "±95%"), ((0.0, 2.4), "too noisy")]
)
def test_an_interval_wider_than_its_value_is_too_noisy(interval, text):
    assert format_half_width(interval, 1.0) == text


def test_header_lines_wrap_at_words_and_the_command_does_not(make_environment, make_record):
    lines = rendered(
        make_environment(argv=("python", "-m", "bench.matmul", *["--dtype", "bf16"] * 9)),
        [make_record()],
        60,
    )
    (command,) = [line for line in lines.splitlines() if line.startswith("python -m")]
    assert len(command) > 60
    assert all(len(line) <= 60 for line in lines.splitlines() if line != command)
    assert header_lines(make_environment())[0] in " ".join(lines.splitlines())
