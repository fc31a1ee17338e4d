"""`python -m roofline gpus`: dense peaks, bandwidth, L2 and ridge points of the GPUs in the table."""

from __future__ import annotations

import argparse
import io
import json
import math
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from results.show.terminal import OutputError, fail, print_out, printable
from roofline.commands.gpu_rows import csv_text, gpu_row, headline_ridge, ridges
from roofline.hardware.files import GpuFileError
from roofline.hardware.gpu import (
    Gpu,
    UnknownGpuError,
    clock_limited_peak_flops_per_s,
    find_gpu,
    load_gpus,
    peak_key,
)
from roofline.work import DTYPES

if TYPE_CHECKING:
    from rich.console import Console

FORMATS = ("table", "json", "csv", "md")
UNWRAPPED = 100_000
"""Columns of an output that is no terminal: nothing is wrapped there, so that `grep` and `cut` see whole lines."""

SHOWN_DTYPES = {name: name for name in DTYPES if not name.startswith("fp8")} | {"fp8": "fp8e4m3"}
"""Columns for people: both fp8 formats have one peak. Label: dtype."""

TABLE_COLUMNS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "nvfp4")
DROPPED_FIRST = ("int8", "fp64", "nvfp4", "tf32", "fp32", "fp16", "L2 MiB", "fp8")
"""Which columns a narrow terminal does without, in this order."""

RIDGE_COLUMNS = tuple(f"ridge {label}" for label in TABLE_COLUMNS)
RIDGES_DROPPED_FIRST = ("ridge fp64", "ridge nvfp4", "ridge int8", "ridge fp16")
"""Which ridge points the table does without, in this order; a narrower one shows that of bf16 alone, or of fp16."""

DENSE = "Peaks are dense (no structured sparsity) with sums kept in fp32, in TFLOP/s; int8 in TOP/s."
TEXT_COLUMNS = ("GPU", "peak", "ceiling of", "fact", "how known")

FACTS: tuple[tuple[str, str, float], ...] = (
    ("memory bandwidth GB/s", "memory_bandwidth_bytes_per_s", 1e9),
    ("  by device clock GB/s", "bandwidth_from_device_clock_bytes_per_s", 1e9),
    ("memory GiB", "memory_bytes", 2**30),
    ("  as reported GiB", "memory_reported_bytes", 2**30),
    ("memory type", "memory_type", 0),
    ("L2 MiB", "l2_bytes", 2**20),
    ("  cache behind L2 MiB", "llc_bytes", 2**20),
    ("SMs (AMD: CUs)", "sm_count", 1),
    ("tensor clock MHz", "tensor_clock_hz", 1e6),
    ("boost clock MHz", "boost_clock_hz", 1e6),
    ("maximum clock MHz", "max_clock_hz", 1e6),
    ("TDP W", "tdp_w", 1),
    ("GPU link GB/s", "link_bytes_per_s", 1e9),
    ("PCIe generation", "pcie_gen", 1),
    ("PCIe lanes", "pcie_lanes", 1),
    ("compute capability", "compute_capability", 0),
    ("architecture", "architecture", 0),
    ("chip", "chip", 0),
    ("rate class", "rate_class", 0),
    ("confidence", "confidence", 0),
)
"""Rows beside the peaks: label, field, divisor to the unit of the label (0: text). Indented: left out if not known."""

MARKS = "-: no hardware path; ?: not known."
EXAMPLES = """examples:
  python -m roofline gpus                      every GPU, one line each
  python -m roofline gpus h100-sxm             everything known of one, with sources
  python -m roofline gpus h100-sxm h200-sxm    side by side
  python -m roofline gpus --format json        for programs, in SI units
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command `gpus` to `python -m roofline`."""
    parser = subparsers.add_parser(
        "gpus",
        description=f"{DENSE}\nThe ridge point is the peak over the memory bandwidth, in FLOP/byte.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("slugs", nargs="*", metavar="SLUG", help="GPU to show in detail; several side by side")
    parser.add_argument("--format", choices=FORMATS, default="table", help="default: %(default)s")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the GPUs asked for; return the exit code, 2 for an unknown GPU or an unreadable file."""
    try:
        table = load_gpus()
        gpus = [find_gpu(slug, table) for slug in dict.fromkeys(args.slugs)] or list(table.values())
        print_out(_text(args.format, gpus, is_detailed=bool(args.slugs)))
    except (UnknownGpuError, GpuFileError, OutputError) as error:
        return fail("python -m roofline gpus", error)
    return 0


def _text(form: str, gpus: Sequence[Gpu], is_detailed: bool) -> str:
    if form == "json":
        return json.dumps([gpu_row(gpu) for gpu in gpus], indent=2) + "\n"
    if form == "csv":
        return csv_text(gpus)
    if form == "md":
        return _markdown(gpus)
    return _table(gpus, is_detailed)


def _markdown(gpus: Iterable[Gpu]) -> str:
    peaks = [f"{label} {_unit(label)}" for label in TABLE_COLUMNS]
    points = [f"ridge {label} FLOP/byte" for label in TABLE_COLUMNS]
    header = ["GPU", "name", *peaks, "GB/s", "L2 MiB", *points]
    lines = ["| " + " | ".join(header) + " |", "| --- | --- |" + " ---: |" * (len(header) - 2)]
    for gpu in gpus:
        cells = _cells(gpu)
        row = [gpu.slug, gpu.name, *(cells[key] for key in (*TABLE_COLUMNS, "GB/s", "L2 MiB"))]
        row += [_ridge_cell(gpu, label) for label in TABLE_COLUMNS]
        lines.append("| " + " | ".join(printable(cell).replace("|", "\\|") for cell in row) + " |")
    return "".join(f"{line}\n" for line in lines)


def _unit(label: str) -> str:
    return "TOP/s" if label == "int8" else "TFLOP/s"


def _cells(gpu: Gpu) -> dict[str, str]:
    """Return the text of every column of the table, by column."""
    cells = {
        label: _missing(gpu, dtype) if dtype not in gpu.peaks_flops_per_s else _tera(gpu.peaks_flops_per_s[dtype])
        for label, dtype in SHOWN_DTYPES.items()
    }
    point = headline_ridge(gpu)
    bandwidth, l2 = gpu.memory_bandwidth_bytes_per_s, gpu.l2_bytes
    return cells | {
        "GPU": printable(gpu.slug),
        "GB/s": "?" if bandwidth is None else f"{bandwidth / 1e9:.5g}",
        "L2 MiB": "?" if l2 is None else f"{l2 / 2**20:g}",
        "ridge": "?" if point is None else f"{_point(point[1])} {point[0]}",
        **{f"ridge {label}": _ridge_cell(gpu, label) for label in TABLE_COLUMNS},
    }


def _missing(gpu: Gpu, dtype: str) -> str:
    return "-" if gpu.lacks(dtype) else "?"


def _tera(flops_per_s: float) -> str:
    return f"{flops_per_s / 1e12:.5g}"


def _point(flops_per_byte: float) -> str:
    if flops_per_byte < 10:
        return f"{flops_per_byte:.2g}"
    return str(math.floor(flops_per_byte + 0.5))  # 312.5 is printed as 313, as datasheets round


def _ridge_cell(gpu: Gpu, label: str) -> str:
    point = ridges(gpu)[SHOWN_DTYPES[label]]
    return _missing(gpu, SHOWN_DTYPES[label]) if point is None else _point(point)


def _table(gpus: Sequence[Gpu], is_detailed: bool) -> str:
    from rich.console import Console

    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"  # where there is no Unicode, rich draws with ASCII
    text = io.TextIOWrapper(io.BytesIO(), encoding, errors="replace", newline="")
    # rich itself would answer a closed pipe with exit code 1, and a full disk with a traceback
    width = None if is_terminal else UNWRAPPED
    console = Console(file=text, force_terminal=is_terminal, width=width, highlight=False, markup=False, emoji=False)
    if not is_detailed:
        _print_overview(console, gpus)
    elif len(gpus) == 1:
        _print_page(console, gpus[0])
    else:
        _print_side_by_side(console, gpus)
    text.seek(0)
    return "".join(f"{line.rstrip()}\n" for line in text)


def _print_grid(console: Console, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table; the columns of `TEXT_COLUMNS` may wrap, the others hold numbers and stay whole."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for title in header:
        is_text = title in TEXT_COLUMNS
        table.add_column(Text(title), justify="left" if is_text else "right", no_wrap=not is_text, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    console.print(table)


def _print_text(console: Console, text: str, indent: str = "") -> None:
    """Print a paragraph, wrapped between words; `indent` opens the lines after the first."""
    width = min(console.width, UNWRAPPED)
    wrapped = textwrap.fill(
        printable(text),
        width,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    console.out(wrapped, highlight=False)


def _print_overview(console: Console, gpus: Sequence[Gpu]) -> None:
    rows = [_cells(gpu) for gpu in gpus]
    columns = _columns_that_fit(rows, console.width)
    is_narrow = console.width < UNWRAPPED
    titles = ["\n".join(_title_words(column)) if is_narrow else column for column in columns]
    _print_grid(console, titles, [[row[column] for column in columns] for row in rows])
    console.out()
    left_out = [column for column in DROPPED_FIRST if column not in columns]
    kept = [column for column in RIDGE_COLUMNS if column in columns]
    left_out += ["ridge points of other dtypes"] if len(kept) < len(RIDGE_COLUMNS) else []
    where = "at the dtype above it" if kept else "at the dtype beside it"
    _print_text(console, f"{DENSE} {MARKS}")
    _print_text(console, f"ridge: the peak over the memory bandwidth, in FLOP/byte, {where}.")
    if left_out:
        _print_text(console, f"Left out for want of width: {', '.join(left_out)}.")
    _print_text(console, "Everything known of one GPU, with sources and all ridge points: python -m roofline gpus SLUG")
    _print_text(console, "Of all GPUs, for programs: python -m roofline gpus --format json")


def _columns_that_fit(rows: Sequence[dict[str, str]], width: int) -> list[str]:
    """Return the columns of the overview: all, those without the rarer ridge points, or with a single ridge point."""
    always = ["GPU", *TABLE_COLUMNS, "GB/s", "L2 MiB"]
    widths = {
        column: max(len(word) for word in (*_title_words(column), *(row[column] for row in rows)))
        for column in (*always, "ridge", *RIDGE_COLUMNS)
    }

    def fits(columns: Sequence[str]) -> bool:
        return sum(widths[column] + 2 for column in columns) - 2 <= width

    for count in range(len(RIDGES_DROPPED_FIRST) + 1):
        ridge_columns = [column for column in RIDGE_COLUMNS if column not in RIDGES_DROPPED_FIRST[:count]]
        if fits([*always, *ridge_columns]):
            return [*always, *ridge_columns]
    columns = [*always, "ridge"]
    for dropped in DROPPED_FIRST:
        if fits(columns):
            break
        columns.remove(dropped)
    return columns


def _title_words(column: str) -> list[str]:
    return column.split() if column in RIDGE_COLUMNS else [column]


def _print_side_by_side(console: Console, gpus: Sequence[Gpu]) -> None:
    pages = [{label: (text, kind) for label, text, kind in _page_rows(gpu)} for gpu in gpus]
    order = [*(label for label, *_ in _page_rows(gpus[0])[: 2 * len(TABLE_COLUMNS)]), *(f[0] for f in FACTS)]
    labels = [label for label in order if any(label in page for page in pages)]
    columns = [
        [gpu.slug, *(_with_kind(*page.get(label, ("", ""))) for label in labels)]
        for gpu, page in zip(gpus, pages, strict=True)
    ]
    first = ["fact", *labels]
    for block in _blocks(first, columns, console.width):
        header, *rows = zip(first, *block, strict=True)
        _print_grid(console, list(header), [list(row) for row in rows])
        console.out()
    _print_text(console, f"{DENSE} {MARKS}")
    _print_text(console, "A word in brackets says how a value is known, where no source simply states it.")


def _blocks(first: list[str], columns: list[list[str]], width: int) -> list[list[list[str]]]:
    """Return the columns in blocks that fit `width` beside the first column; at least one column a block."""
    left = max(map(len, first)) + 2
    blocks: list[list[list[str]]] = []
    used = width
    for column in columns:
        needed = max(map(len, column)) + 2
        if not blocks or used + needed > width:
            blocks.append([])
            used = left
        blocks[-1].append(column)
        used += needed
    return blocks


def _with_kind(text: str, kind: str) -> str:
    word = kind.partition(":")[0]
    return text if word in ("", "stated", "datasheet") else f"{text} ({word})"


def _page_rows(gpu: Gpu) -> list[tuple[str, str, str]]:
    """Return label, text and kind of every value: peaks, ridge points, then the rest."""
    rows = []
    for label in TABLE_COLUMNS:
        key = peak_key(gpu.stated_peaks_flops_per_s, SHOWN_DTYPES[label], gpu.vendor)
        text = _cells(gpu)[label]
        rows.append((f"{label} {_unit(label)}", text, "" if key is None else gpu.kind_of(key)))
    for label in TABLE_COLUMNS:
        rows.append((f"ridge {label} FLOP/byte", _ridge_cell(gpu, label), ""))
    return rows + _fact_rows(gpu)


def _fact_rows(gpu: Gpu) -> list[tuple[str, str, str]]:
    """Return label, text and kind of every value that is no peak."""
    rows = []
    for label, key, scale in FACTS:
        value = getattr(gpu, key)
        if value is None and label.startswith(" "):
            continue
        text = "?" if value is None else f"{value / scale:.5g}" if scale else str(value)
        kind = gpu.kinds.get(key, "stated" if scale and value is not None else "")
        rows.append((label, "none" if key == "link_bytes_per_s" and value == 0 else text, kind))
    return rows


def _print_page(console: Console, gpu: Gpu) -> None:
    _print_text(console, f"{gpu.name} ({gpu.slug})")
    names = ", ".join(f'"{name}"' for name in gpu.driver_names) or "not known"
    kind = gpu.kind_of("driver_names")
    _print_text(console, f"driver names: {names}" + ("" if kind == "stated" else f" ({kind})"))
    console.out()
    _print_peaks(console, gpu)
    console.out()
    _print_text(console, f"{DENSE} {MARKS} _fp16acc: sums kept in fp16.")
    console.out()
    _print_grid(console, ["fact", "value", "how known"], _fact_rows(gpu))
    console.out()
    _print_text(console, "stated: a source below says it. Any other word says how far to trust the value.")
    for title, lines in (("notes", gpu.notes), ("sources", gpu.sources)):
        console.out(f"\n{title}")
        for line in lines:
            _print_text(console, f"- {line}", indent="  ")


def _print_peaks(console: Console, gpu: Gpu) -> None:
    """Print every stated peak, the dtypes that it is the ceiling of, and what the highest clock would allow."""
    clock = gpu.max_clock_hz
    header = ["peak", "ceiling of", "TFLOP/s", "ridge", "how known"]
    if clock is not None:
        header.insert(3, f"at {clock / 1e6:.0f} MHz")
    ceilings: dict[str, list[str]] = {}
    for dtype in DTYPES:
        key = peak_key(gpu.stated_peaks_flops_per_s, dtype, gpu.vendor)
        ceilings.setdefault(key or "", []).append(dtype)
    rows = []
    for key, peak in gpu.stated_peaks_flops_per_s.items():
        dtypes = ceilings.get(key, [])
        ridge = ridges(gpu)[dtypes[0]] if dtypes else None
        row = [key, " ".join(dtypes), _tera(peak), "" if ridge is None else _point(ridge), gpu.kind_of(key)]
        if clock is not None:
            limit = clock_limited_peak_flops_per_s(gpu, dtypes[0], clock) if dtypes else None
            row.insert(3, _tera(limit) if limit is not None else "")
        rows.append(row)
    for dtype in ceilings.get("", []):
        missing = [_missing(gpu, dtype), *[""] * (len(header) - 3)]
        rows.append(["", dtype, *missing])
    _print_grid(console, header, rows)
