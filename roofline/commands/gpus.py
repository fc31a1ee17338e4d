"""`python -m roofline gpus`: peaks, bandwidth, L2 and ridge points of known GPUs."""

from __future__ import annotations

import argparse
import math
from dataclasses import fields
from typing import TYPE_CHECKING

from results.record import Object
from results.show.grid import Cell, Cells, Table, print_cells, print_lines, texts_of
from results.show.terminal import OK, Parser, add_format, print_out, say
from roofline.gpu_file import KEYS_TABLE
from roofline.gpu_table import (
    find_gpu,
    lacks,
    load_gpus,
    peak_key,
    wrong_files,
)
from roofline.machine import Machine
from roofline.model import ridge_intensity
from roofline.work import DTYPES

if TYPE_CHECKING:
    from rich.console import Console

SHOWN_DTYPES = {
    "fp64": "fp64",
    "fp32": "fp32",
    "tf32": "tf32",
    "fp16": "fp16",
    "bf16": "bf16",
    "fp8": "fp8e4m3",
    "int8": "int8",
    "nvfp4": "nvfp4",
}
"""Columns of a table by label; both fp8 formats have the same peak."""

LEAVING = ("int8", "fp64", "nvfp4", "tf32", "fp32", "W", "L2 MiB", "fp16", "fp8", "GiB")

DENSE = (
    "Peaks are dense (no structured sparsity) with sums kept in fp32, in TFLOP/s; int8 in TOP/s."
)

RIDGE = "The ridge point is the peak over the memory bandwidth, in FLOP/byte."

FACTS: list[tuple[str, str, float]] = KEYS_TABLE["facts"]
"""Rows below the peaks: label, field, divisor to the unit of the label (0: text). Indented: empty
if not known.
"""

NOT_FACTS = ("entries", "note", "source", "run", "mfu")

MARKS = "-: not supported by the hardware; ?: unknown."
EXAMPLES = """examples:
  python -m roofline gpus                      # all GPUs
  python -m roofline gpus h100-sxm             # all facts of one GPU, with sources
  python -m roofline gpus h100-sxm,b200        # a table of some
  python -m roofline gpus --format json        # in SI units
"""


def add_options(parser: Parser) -> None:
    parser.description = f"{DENSE}\n{RIDGE}"
    parser.epilog = EXAMPLES
    parser.add_argument(
        "slugs", nargs="*", metavar="SLUG[,SLUG]", help="GPUs; a single one is shown in detail"
    )
    add_format(parser)


def run(args: argparse.Namespace) -> int:
    names = dict.fromkeys(",".join(args.slugs).split(",")) if args.slugs else {}
    gpus = list(map(find_gpu, names)) or list(load_gpus().values())
    if not names:
        for problem in wrong_files():
            say(f"note: left out {problem}")

    cells = list(map(_cells, gpus))

    def draw(console: Console) -> None:
        if len(names) == 1:
            _print_page(console, gpus[0])
            return
        print_cells(console, cells, hint="--format csv has all")
        print_lines(console, "", f"{DENSE} {MARKS}", RIDGE)

    table = Table(
        rows=lambda: texts_of(cells),
        cells=lambda: cells,
        document=lambda: list(map(gpu_row, gpus)),
        draw=draw,
        notes=lambda: f"\n{DENSE} {MARKS}\n",
    )
    print_out(table.render(args.format))
    return OK


def gpu_row(gpu: Machine) -> Object:
    """Return the JSON object of a GPU, in SI units; unknown values are None."""
    bandwidth = gpu.bandwidth()
    peaks = {dtype: gpu.peak(dtype) for dtype in DTYPES}
    return {
        key.name: getattr(gpu, key.name) for key in fields(gpu) if key.name not in NOT_FACTS
    } | {
        "bandwidth_kind": bandwidth.kind if bandwidth else None,
        "peaks_flops_per_s": {dtype: peak.value if peak else None for dtype, peak in peaks.items()},
        "vector_peaks_flops_per_s": {
            peak.name: peak.value for peak in gpu.entries if peak.quantity == "fma"
        },
        "ridge": {dtype: ridge(gpu, dtype) for dtype in DTYPES},
    }


def ridge(gpu: Machine, dtype: str) -> float | None:
    peak = gpu.peak(dtype)
    bandwidth = gpu.bandwidth()
    return ridge_intensity(peak.value, bandwidth.value) if peak and bandwidth else None


def _tera(flops_per_s: float) -> str:
    return f"{flops_per_s / 1e12:.5g}"


def _peak_text(gpu: Machine, dtype: str) -> str:
    peak = gpu.peak(dtype)
    if peak:
        return _tera(peak.value)
    return "-" if lacks(gpu, dtype) else "?"


def _ridge_text(gpu: Machine, dtype: str) -> str:
    point = ridge(gpu, dtype)
    if point is None:
        return _peak_text(gpu, dtype)
    if point < 10:
        return f"{point:.2g}"
    return str(math.floor(point + 0.5))  # rounds half up, as datasheets do: 312.5 becomes 313


def _cells(gpu: Machine) -> Cells:
    headline = "bf16" if gpu.peak("bf16") else "fp16"
    facts = {label: text for label, text, _ in _fact_rows(gpu)}
    texts = {
        **{label: _peak_text(gpu, dtype) for label, dtype in SHOWN_DTYPES.items()},
        "GB/s": facts["memory bandwidth GB/s"],
        "GiB": facts["memory GiB"],
        "L2 MiB": facts["L2 MiB"],
        "W": facts["TDP W"],
        "ridge": f"{_ridge_text(gpu, headline)} {headline}",
    }
    cells = {"GPU": Cell(gpu.slug)}
    for title, text in texts.items():
        leaves = LEAVING.index(title) + 1 if title in LEAVING else 0
        cells[title] = Cell(text, "right", leaves)
    return cells


def _fact_rows(gpu: Machine) -> list[tuple[str, str, str]]:
    rows = []
    for label, key, scale in FACTS:
        value = getattr(gpu, key)
        if value is None:
            text = "" if label.startswith(" ") else "?"
        elif key == "link_bytes_per_s" and value == 0:
            text = "none"
        else:
            text = f"{value / scale:.5g}" if scale else str(value)
        kind = gpu.kinds.get(key, "stated" if scale and value is not None else "")
        rows.append((label, text, kind))
    return rows


def _print_page(console: Console, gpu: Machine) -> None:
    names = ", ".join(f'"{name}"' for name in gpu.driver_names) or "not known"
    kind = f" ({gpu.kinds['driver_names']})" if "driver_names" in gpu.kinds else ""
    print_lines(console, f"{gpu.name} ({gpu.slug})", f"driver names: {names}{kind}", "")
    _print_peaks(console, gpu)
    print_lines(console, "", f"{DENSE} {MARKS}", "")
    facts = []
    for label, text, kind in _fact_rows(gpu):
        if text:
            facts.append({"fact": Cell(label), "value": Cell(text, "right")} | _known(kind))
    print_cells(console, facts, "from")
    print_lines(
        console, "", "stated: given by a source below; other words say how the value was obtained."
    )
    for title, lines in (("notes", gpu.notes), ("sources", gpu.sources)):
        print_lines(console, "", title, *(f"- {line}" for line in lines), indent="  ")


def _known(kind: str) -> Cells:
    word, _, detail = kind.partition(": ")
    return {"how known": Cell(word), "from": Cell(detail)}


def _print_peaks(console: Console, gpu: Machine) -> None:
    dtypes_of: dict[str, list[str]] = {key: [] for key in gpu.stated_peaks_flops_per_s}
    for dtype in DTYPES:
        key = peak_key(gpu.stated_peaks_flops_per_s, dtype, gpu.vendor) or ""
        dtypes_of.setdefault(key, []).append(dtype)
    rows: list[Cells] = []
    for key, peak in gpu.stated_peaks_flops_per_s.items():
        dtypes = dtypes_of[key]
        row = {
            "peak": Cell(key),
            "ceiling of": Cell(" ".join(dtypes)),
            "TFLOP/s": Cell(_tera(peak), "right"),
        }
        row["ridge"] = Cell(_ridge_text(gpu, dtypes[0]) if dtypes else "", "right")
        rows.append(row | _known(gpu.kinds.get(key, "stated")))
    for dtype in dtypes_of.get("", []):
        peak_text = Cell(_peak_text(gpu, dtype), "right")
        rows.append(
            {"peak": Cell(""), "ceiling of": Cell(dtype), "TFLOP/s": peak_text} | _known("")
        )
    print_cells(console, rows, "from")
