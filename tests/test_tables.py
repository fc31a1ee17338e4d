"""Tables of all commands except those of `results`, at the widths of terminals."""

from types import SimpleNamespace

import pytest
from table_pictures import Screens

from bench.commands import calibrate
from kernels.audit import table
from results.record import Environment
from results.show.terminal import print_out
from roofline.__main__ import main as roofline
from roofline.commands import gpus, notes
from roofline.gpu_table import load_gpus
from roofline.machine import Ceiling


@pytest.fixture
def screens(monkeypatch):
    return Screens(monkeypatch)


def test_gpus_tables_match_their_pictures(screens, monkeypatch):
    few = {
        slug: load_gpus()[slug]
        for slug in ("a100-sxm-80gb", "h100-sxm", "t4", "rtx-pro-6000-blackwell-server")
    }
    monkeypatch.setattr(gpus, "load_gpus", lambda: few)
    screens.check("gpus", lambda: roofline(["gpus"]))
    screens.check("gpus-page", lambda: roofline(["gpus", "t4"]))


def test_estimate_table_matches_its_picture(screens):
    words = [
        "estimate",
        "matmul",
        "--shape",
        "4096x4096x64",
        "--gpu",
        "a100-sxm-80gb,h100-sxm",
        "--dtype",
        "fp32,bf16",
    ]
    screens.check("estimate", lambda: roofline(words))


def test_notes_table_matches_its_picture(screens, monkeypatch):
    known = notes.load_notes()
    first = [claim for claim in known["claims"] if claim["subject"] in ("Compute", "Training")]
    monkeypatch.setattr(notes, "load_notes", lambda: known | {"claims": first})
    screens.check("notes", lambda: roofline(["notes"]))


VERSIONS = [
    {
        "family": "elementwise",
        "version": f"v{n}",
        "ops": ops,
        "dtypes": ["fp32", "bf16"],
        "change": change,
    }
    for n, ops, change in (
        (
            1,
            ["copy", "add", "gelu", "bias-gelu", "residual-add"],
            "the textbook formulas, every access under one mask",
        ),
        (2, ["copy"], "full blocks and the tail split"),
    )
]
AUDITED = [
    dict.fromkeys(table.AUDIT_COLUMNS)
    | {
        "kernel": "elementwise/gelu",
        "version": version,
        "arch": "sm_90",
        "dtype": "bf16",
        "part": "tail",
    }
    | {
        "registers": 31,
        "stack_bytes": 8,
        "spill_bytes": spilled,
        "shared_bytes": 49152,
        "occupancy": 0.875,
    }
    | {
        "shape_class": "n % 8 != 0",
        "load_bits": 128,
        "store_bits": 128,
        "mma": "HGMMA.64x128x16",
        "instructions": 346,
    }
    | {
        "instructions_per_element": 43.25,
        "issue_budget_instructions_per_element": 39.9,
        "bound": "memory",
    }
    for version, spilled in (("v1", 0), ("v2", 128))
]


@pytest.mark.parametrize(
    ("name", "rows", "columns"),
    [
        ("kernels-list", VERSIONS, tuple(VERSIONS[0])),
        ("kernels-audit", AUDITED, table.AUDIT_COLUMNS),
    ],
)
def test_kernels_tables_match_their_pictures(screens, name, rows, columns):
    screens.check(name, lambda: print_out(table.render(rows, "table", columns, {})))


def environment():
    device = {"slug": "h100-sxm", "name": "H100", "type": "cuda"}
    return Environment(
        run_id="a", started_at="2026-11-20T21:03:12+00:00", argv=("python",), device=device
    )


def test_calibration_table_matches_its_picture(screens, tmp_path):
    found = [
        Ceiling(
            "bandwidth",
            "triad",
            3.12e12,
            "measured",
            "a test",
            ci95=(3.1e12, 3.13e12),
            config="1 GiB, 3 streams",
        ),
        Ceiling(
            "flops",
            "bf16",
            8e14,
            "measured",
            "a test",
            ci95=(7e14, 7.5e14),
            config="8192x8192x8192 NT, 40 ms",
        ),
        Ceiling("launch", "empty kernel", 2.1e-6, "measured", "a test", sm_clock_hz=1_980_000_000),
    ]
    notes = {
        "decomposition": ["bf16: 81 % of its peak"],
        "not_measured": ["fp64: the time was over"],
        "doubts": [],
    }
    table = calibrate.table_of(SimpleNamespace(environment=environment(), records=[]), found, notes)
    screens.check("calibrate", lambda: print_out(table.render("table")))


@pytest.mark.parametrize(
    "words", [["gpus"], ["notes"], ["gpus", "h100-sxm", "h200-sxm", "mi300x", "b200-sxm"]]
)
def test_no_cell_of_a_table_is_cut_at_80_columns(screens, words):
    screens.whole(80, lambda: roofline(words))
