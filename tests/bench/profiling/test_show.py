"""Output of a profile: totals, grouped rows, terminal, notebook and dataframe."""

import io
from collections import Counter
from dataclasses import replace

import msgspec
import pytest
from rich.console import Console

from bench.api.profiling import Profile
from bench.profiling.operation import Breakdown, Operation
from bench.profiling.records import records_of, step_of
from results.__main__ import main as results_command
from results.record import Environment, Fusion
from results.show.profile import BOUNDS, render, table_of
from results.show.units import percent
from results.store.runfile import load_run
from roofline.machine import Ceiling, Machine

CEILINGS = Machine(
    "cpu",
    "A CPU",
    (
        Ceiling("flops", "fp32", 1e9, "measured", ""),
        Ceiling("bandwidth", "copy", 1e9, "measured", ""),
    ),
)
ENVIRONMENT = Environment(
    run_id="20261120T210312Z-0123456789",
    started_at="2026-11-20T21:03:12+00:00",
    argv=("python", "-m", "bench", "profile"),
    device={"slug": "cpu", "name": "A CPU", "type": "cpu", "threads": 2},
    versions={"python": "3.11.9", "torch": "2.13.0"},
    machine=CEILINGS,
)


def operation(op, module, phase, flops, products, read, time_ns, is_modelled=True, kernels=()):
    flags = () if is_modelled else ("unmodelled",)
    work = flops, products, read, read // 2
    return Operation(
        op,
        "8x8,8x8",
        ("float32",),
        module,
        phase,
        *work,
        flags,
        time_ns,
        {"gemm": [time_ns]} if kernels else {},
    )


def test_a_step_without_matmuls_has_no_mfu_to_say():
    sums = [operation("aten.add", "", "forward", 100, 0, 800, 2_000)]
    breakdown = Breakdown(sums, samples_s=[2e-6], unattributed=Counter(), gaps=Counter())
    environment = replace(ENVIRONMENT, profile=step_of(breakdown))
    text = "\n".join(printed(Profile(environment, records_of(breakdown), render)))
    assert "It computes 100 FLOP; its operations move 1.200 kB: MBU 60%." in text
    assert "matmul" not in text


@pytest.fixture
def made():
    operations = [
        operation("aten.mm", "layers.0.up", "forward", 4000, 4000, 400, 5_000, kernels=["gemm"]),
        operation("aten.mm", "layers.1.up", "forward", 4000, 4000, 400, 4_000, kernels=["gemm"]),
        operation("aten.add", "layers.0", "forward", 100, 0, 800, 2_000),
        operation("<b>.odd", "", "backward", 700, 0, 600, 1_000, is_modelled=False),
        operation("aten.t", "layers.0.up", "backward", 0, 0, 0, 500),
    ]
    gaps, others = Counter({"": 3_000, "layers.1": 3_500}), {"mine_kernel": [1_000]}
    breakdown = Breakdown(operations, samples_s=[19e-6], unattributed=others, gaps=gaps)
    fusions = (
        Fusion(module="layers.*", operations=("relu", "exp"), count=1, saved_bytes=200),
        Fusion(module="layers.*", operations=("silu", "exp"), count=1, saved_bytes=120),
    )
    totals = msgspec.structs.replace(step_of(breakdown), fusing=fusions)
    return Profile(replace(ENVIRONMENT, profile=totals), records_of(breakdown), render)


def printed(made, width=160, **options):
    console = Console(file=io.StringIO(), width=width)
    render(made.environment, list(made), console, **options)
    return console.file.getvalue().splitlines()


def test_totals_sum_modelled_operations(made):
    totals = made.totals
    assert totals["time_s"] == pytest.approx(19e-6)
    assert (totals["flops"], totals["matmul_flops"]) == (8100, 8000)
    assert (totals["bytes_read"], totals["bytes_written"]) == (1600, 800)
    assert totals["fusable_s"] == pytest.approx(320e-9)
    assert totals["phases"]["forward"] == {"flops": 8100, "time_s": pytest.approx(11e-6)}
    assert totals["phases"]["backward"] == {"flops": 0, "time_s": pytest.approx(1.5e-6)}
    assert totals["in_operations"] == pytest.approx(12.5 / 20)
    assert totals["counted"] == pytest.approx(11.5 / 20)
    assert totals["busy"] == pytest.approx(13.5 / 20)
    assert totals["mfu"] == pytest.approx(8e-6 / 19e-6)
    assert totals["mbu"] == pytest.approx(2.4e-6 / 19e-6)
    assert totals["memory_bound"] + totals["compute_bound"] < totals["in_operations"]
    # At the roof, the matmul takes 8 of its 9 us and the sum 1.2 of 2 us; rows without a roof do
    # not change.
    assert totals["at_roof_s"] == pytest.approx((8 + 1.2 + 1 + 0.5 + 1 + 5.5) * 1e-6, rel=0.001)


def test_the_summary_says_where_time_goes_and_can_be_saved(made):
    lines = printed(made)
    assert "A step takes 19 us; under the profiler 20 us, 62.5% of it in operations." in lines
    assert "Operations by phase: forward 11 us (8.100 kFLOP), backward 1.500 us." in lines
    head = "Fusing these chains, as torch.compile does, would save 320 ns at the memory ceiling:"
    first = lines.index(head) + 1
    # The lines add up to 320 ns.
    assert lines[first : first + 2] == [
        "- relu + exp in layers.*: 200 ns",
        "- silu + exp in layers.*: 120 ns",
    ]
    assert any("Rules cover 85.2% of the time" in line for line in lines)
    (bounds,) = (line for line in lines if line.startswith("Time by bound: "))
    shares = {name: made.totals[f"{name}_bound"] for name in BOUNDS}
    named = [f"{name} {percent(share)}" for name, share in shares.items() if share]
    assert bounds == f"Time by bound: {', '.join(named)}."


@pytest.mark.parametrize("width", [80, 160])
def test_each_row_has_its_bound_and_fits_the_width(made, width):
    lines = printed(made, width)
    table = lines[next(i for i, line in enumerate(lines) if line.startswith("op ")) :]
    assert "bound" in table[0]
    product = next(line for line in table if line.startswith("aten.mm"))
    assert {"9", "us", "45%", "compute"} <= set(product.split())
    view = next(line for line in table if line.startswith("aten.t "))
    assert "%" not in view.replace("2.50%", "")  # it has a share of the time and no roof
    assert "unmodelled" in "".join(table)
    assert "outside of counted calls: mine_kernel 1 us" in " ".join(" ".join(table).split())
    assert all(len(line) <= width for line in table)


@pytest.mark.parametrize(
    ("by", "rows"),
    [
        ("op", {"aten.mm": "9 us", "host-gap": "5.500 us"}),
        ("shape", {"aten.mm 8x8,8x8": "9 us", "host-gap": "5.500 us"}),
        ("kernel", {"gemm": "9 us", "mine_kernel": "1 us", "aten.add": "2 us"}),
        ("module", {"all": "20 us", "  layers": "14", "    *": "14", "      up": "9.500 us"}),
    ],
)
def test_rows_are_grouped_by_the_given_key(made, by, rows):
    lines = printed(made, by=by)
    for name, time in rows.items():
        assert any(line.startswith(f"{name} ") and f" {time}" in line for line in lines), name
    assert not [
        line
        for line in lines
        if line.startswith("<b>.odd") and line.split("5%")[1].split()[:2] != ["-", "-"]
    ]


def test_only_the_longest_rows_are_shown(made):
    assert printed(made, by="module", top=2)[-1] == "... and 2 more: --top shows them"
    assert not [line for line in printed(made, by="module") if line.startswith("...")]
    lines = printed(made, top=1)
    assert sum("aten." in line for line in lines) == 1
    assert any(line.startswith("... and 7 more with 55% of the time") for line in lines)


def test_dataframe_json_and_saved_run_have_the_same_rows(made, tmp_path):
    document = table_of(made.environment, list(made)).document()
    frame = made.to_dataframe()
    records = load_run(made.save(tmp_path / "run.jsonl")).records
    assert (
        list(frame["op"])
        == [row["op"] for row in document["records"]]
        == [record.op for record in records]
    )
    assert list(frame["details_time_s"]) == [row["time_s"] for row in document["records"]]
    assert sum(frame["details_time_s"]) == pytest.approx(20e-6)
    assert [record.details.time_s for record in records] == list(frame["details_time_s"])
    wanted = {
        "count",
        "shapes",
        "dtypes",
        "module",
        "phase",
        "share",
        "flops",
        "bytes_read",
        "bytes_written",
    }
    assert wanted | {"intensity", "bound", "roofline_pct", "flags"} <= set(document["records"][0])


def test_a_profile_of_an_older_version_without_numbers_of_calls_is_shown(made):
    older = []
    for record in made:
        details = msgspec.structs.replace(record.details, kernel_calls=())
        older.append(replace(record, details=details))
    shown = printed(Profile(made.environment, older, render))
    assert any(line.startswith("aten.mm ") and " compute " in line for line in shown)


def test_results_show_prints_a_saved_profile(made, tmp_path, capsys):
    path = str(made.save(tmp_path / "run.jsonl"))
    for words, options in (([], {}), (["-v"], {"by": "module"})):
        assert results_command(["show", path, *words]) == 0
        shown = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
        assert [
            line for line in map(str.rstrip, printed(made, 400, **options)) if line not in shown
        ] == []
        assert ("module" in [line.split("  ")[0] for line in shown]) == bool(words)


def test_selected_rows_of_a_profile_say_nothing_of_the_whole_step(made, tmp_path, capsys):
    path = str(made.save(tmp_path / "run.jsonl"))
    case = next(record.case for record in made if "," in record.case)
    assert results_command(["show", path, "--case", case]) == 0
    shown = capsys.readouterr().out
    assert case in shown
    assert "A step takes" not in shown
