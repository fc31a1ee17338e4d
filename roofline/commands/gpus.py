"""`python -m roofline gpus`: dense peaks, bandwidth, L2 and ridge points of the GPUs in the table."""

from __future__ import annotations

import argparse
import math
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

from results.show.export import Table
from results.show.grid import Column, print_grid, width_of
from results.show.terminal import TABLE_FORMATS, WIDE, OutputError, fail, print_out
from roofline.hardware.gpu import (
    Gpu,
    UnknownGpuError,
    clock_limited_peak_flops_per_s,
    find_gpu,
    load_gpus,
    peak_key,
)
from roofline.model import ridge_intensity
from roofline.work import DTYPES

if TYPE_CHECKING:
    from rich.console import Console

SHOWN_DTYPES = {name: name for name in DTYPES if not name.startswith("fp8")} | {"fp8": "fp8e4m3"}
"""Columns for people: both fp8 formats have one peak. Label: dtype."""

TABLE_COLUMNS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "nvfp4")
ALWAYS = ("GPU", *TABLE_COLUMNS, "GB/s", "L2 MiB")
RIDGE_COLUMNS = tuple(f"ridge {label}" for label in TABLE_COLUMNS)
LEAVING = (
    *("ridge fp64", "ridge nvfp4", "ridge int8", "ridge fp16"),
    *("int8", "fp64", "nvfp4", "tf32", "fp32", "fp16", "L2 MiB", "fp8"),
)
"""Which columns a narrow terminal does without, in this order; where the first four are not enough, one column with the
ridge point of bf16, or of fp16, takes the place of all ridge points."""

DENSE = "Peaks are dense (no structured sparsity) with sums kept in fp32, in TFLOP/s; int8 in TOP/s."

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
    )
    parser.add_argument("slugs", nargs="*", metavar="SLUG", help="GPU to show in detail; several side by side")
    parser.add_argument("--format", choices=TABLE_FORMATS, default="table", help="default: %(default)s")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the GPUs asked for; return the exit code, 2 for an unknown GPU or an unreadable file."""
    try:
        table = load_gpus()
        gpus = [find_gpu(slug, table) for slug in dict.fromkeys(args.slugs)] or list(table.values())
        print_out(_text(args.format, gpus, is_detailed=bool(args.slugs)))
    except (UnknownGpuError, OutputError) as error:
        return fail("python -m roofline gpus", error)
    return 0


def _text(form: str, gpus: Sequence[Gpu], is_detailed: bool) -> str:
    table = Table(
        rows=lambda: [_flat_row(gpu) for gpu in gpus],
        shown=lambda: [_markdown_row(gpu) for gpu in gpus],
        document=lambda: [gpu_row(gpu) for gpu in gpus],
        draw=lambda console: _table(console, gpus, is_detailed),
    )
    return table.render(form)


def _markdown_row(gpu: Gpu) -> dict[str, str]:
    cells = _cells(gpu)
    return {
        "GPU": gpu.slug,
        "name": gpu.name,
        **{f"{label} {_unit(label)}": cells[label] for label in TABLE_COLUMNS},
        **{key: cells[key] for key in ("GB/s", "L2 MiB")},
        **{f"ridge {label} FLOP/byte": _ridge_cell(gpu, label) for label in TABLE_COLUMNS},
    }


def _unit(label: str) -> str:
    return "TOP/s" if label == "int8" else "TFLOP/s"


def _cells(gpu: Gpu) -> dict[str, str]:
    cells = {
        label: _missing(gpu, dtype) if dtype not in gpu.peaks_flops_per_s else _tera(gpu.peaks_flops_per_s[dtype])
        for label, dtype in SHOWN_DTYPES.items()
    }
    point = headline_ridge(gpu)
    bandwidth, l2 = gpu.memory_bandwidth_bytes_per_s, gpu.l2_bytes
    return cells | {
        "GPU": gpu.slug,
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


def _table(console: Console, gpus: Sequence[Gpu], is_detailed: bool) -> None:
    if not is_detailed:
        _print_overview(console, gpus)
    elif len(gpus) == 1:
        _print_page(console, gpus[0])
    else:
        _print_side_by_side(console, gpus)


def _print_text(console: Console, text: str = "", indent: str = "") -> None:
    """Print a paragraph, wrapped between words on a terminal; `indent` opens the lines after the first."""
    lines = [text]
    if console.width < WIDE:
        lines = textwrap.wrap(
            *(lines[0], console.width), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def _print_overview(console: Console, gpus: Sequence[Gpu]) -> None:
    rows = [_cells(gpu) for gpu in gpus]

    def column(title: str) -> Column:
        leaves = LEAVING.index(title) + 1 if title in LEAVING else 0
        side: Literal["left", "right"] = "left" if title == "GPU" else "right"
        shown = title.replace(" ", "\n") if title in RIDGE_COLUMNS else title
        return Column(shown, [row[title] for row in rows], side, leaves)

    always, points = [column(title) for title in ALWAYS], [column(title) for title in RIDGE_COLUMNS]
    fewest = [*always, *(point for point in points if not point.leaves)]
    has_points = console.width >= WIDE or width_of(fewest) <= console.width
    ridge = points if has_points else [column("ridge")]
    print_grid(console, [*always, *ridge], hint="--format json has all")
    _print_text(console)
    where = "at the dtype above it" if has_points else "at the dtype beside it; a wider terminal shows the others"
    _print_text(console, f"{DENSE} {MARKS}")
    _print_text(console, f"ridge: the peak over the memory bandwidth, in FLOP/byte, {where}.")
    _print_text(console, "Everything known of one GPU, with sources and all ridge points: python -m roofline gpus SLUG")
    _print_text(console, "Of all GPUs, for programs: python -m roofline gpus --format json")


def _print_side_by_side(console: Console, gpus: Sequence[Gpu]) -> None:
    pages = [{label: (text, kind) for label, text, kind in _page_rows(gpu)} for gpu in gpus]
    order = [*(label for label, *_ in _page_rows(gpus[0])[: 2 * len(TABLE_COLUMNS)]), *(f[0] for f in FACTS)]
    labels = [label for label in order if any(label in page for page in pages)]
    columns = [
        Column(gpu.slug, [_with_kind(*page.get(label, ("", ""))) for label in labels], "right")
        for gpu, page in zip(gpus, pages, strict=True)
    ]
    first = Column("fact", labels)
    for block in _blocks(first, columns, console.width):
        print_grid(console, block)
        _print_text(console)
    _print_text(console, f"{DENSE} {MARKS}")
    _print_text(console, "A word in brackets says how a value is known, where no source simply states it.")


def _blocks(first: Column, columns: Sequence[Column], width: int) -> list[list[Column]]:
    """Return the columns in blocks that fit `width`, each with the first column and at least one other."""
    blocks = [[first, columns[0]]]
    for column in columns[1:]:
        if width_of([*blocks[-1], column]) <= width:
            blocks[-1].append(column)
        else:
            blocks.append([first, column])
    return blocks


def _with_kind(text: str, kind: str) -> str:
    word = kind.partition(":")[0]
    return text if word in ("", "stated", "datasheet") else f"{text} ({word})"


def _page_rows(gpu: Gpu) -> list[tuple[str, str, str]]:
    rows = []
    for label in TABLE_COLUMNS:
        key = peak_key(gpu.stated_peaks_flops_per_s, SHOWN_DTYPES[label], gpu.vendor)
        text = _cells(gpu)[label]
        rows.append((f"{label} {_unit(label)}", text, "" if key is None else gpu.kind_of(key)))
    for label in TABLE_COLUMNS:
        rows.append((f"ridge {label} FLOP/byte", _ridge_cell(gpu, label), ""))
    return rows + _fact_rows(gpu)


def _fact_rows(gpu: Gpu) -> list[tuple[str, str, str]]:
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
    _print_text(console)
    _print_peaks(console, gpu)
    _print_text(console)
    _print_text(console, f"{DENSE} {MARKS} _fp16acc: sums kept in fp16.")
    _print_text(console)
    labels, values, kinds = zip(*_fact_rows(gpu), strict=True)
    _print_known(console, [Column("fact", labels), Column("value", values, "right")], kinds)
    _print_text(console)
    _print_text(console, "stated: a source below says it. Any other word says how far to trust the value.")
    for title, lines in (("notes", gpu.notes), ("sources", gpu.sources)):
        _print_text(console)
        _print_text(console, title)
        for line in lines:
            _print_text(console, f"- {line}", indent="  ")


def _print_known(console: Console, columns: Sequence[Column], kinds: Sequence[str]) -> None:
    """Print values, each with the word for how it is known, and what more is said of it behind or below it."""
    words, _, details = zip(*(kind.partition(": ") for kind in kinds), strict=True)
    print_grid(console, [*columns, Column("how known", words)], details, "from")


def _print_peaks(console: Console, gpu: Gpu) -> None:
    """Print every stated peak, the dtypes that it is the ceiling of, and what the highest clock would allow."""
    clock = gpu.max_clock_hz
    ceilings: dict[str, list[str]] = {}
    for dtype in DTYPES:
        key = peak_key(gpu.stated_peaks_flops_per_s, dtype, gpu.vendor)
        ceilings.setdefault(key or "", []).append(dtype)
    rows = []
    for key, peak in gpu.stated_peaks_flops_per_s.items():
        dtypes = ceilings.get(key, [])
        ridge = ridges(gpu)[dtypes[0]] if dtypes else None
        limit = clock_limited_peak_flops_per_s(gpu, dtypes[0], clock) if dtypes and clock is not None else None
        texts = ["" if limit is None else _tera(limit), "" if ridge is None else _point(ridge), gpu.kind_of(key)]
        rows.append((key, " ".join(dtypes), _tera(peak), *texts))
    rows += [("", dtype, _missing(gpu, dtype), "", "", "") for dtype in ceilings.get("", [])]
    keys, of, peaks, limits, points, kinds = zip(*rows, strict=True)
    at_clock = [] if clock is None else [Column(f"at {clock / 1e6:.0f} MHz", limits, "right")]
    columns = [Column("peak", keys), Column("ceiling of", of), Column("TFLOP/s", peaks, "right"), *at_clock]
    _print_known(console, [*columns, Column("ridge", points, "right")], kinds)


def ridges(gpu: Gpu) -> dict[str, float | None]:
    """Return the ridge point of every dtype in FLOP/byte; None where peak or bandwidth is not known."""
    bandwidth = gpu.memory_bandwidth_bytes_per_s
    peaks = {dtype: gpu.peaks_flops_per_s.get(dtype) for dtype in DTYPES}
    return {
        dtype: None if peak is None or bandwidth is None else ridge_intensity(peak, bandwidth)
        for dtype, peak in peaks.items()
    }


def headline_ridge(gpu: Gpu) -> tuple[str, float] | None:
    """Return the dtype and ridge point that stand for a GPU: bf16, or fp16 where it has no bf16; None without."""
    points = ridges(gpu)
    for dtype in ("bf16", "fp16"):
        point = points[dtype]
        if point is not None:
            return dtype, point
    return None


def gpu_row(gpu: Gpu) -> dict[str, Any]:
    """Return everything known of a GPU as a JSON object in SI units; None where a value is not known."""
    row = asdict(gpu)
    row["peaks_flops_per_s"] = {dtype: gpu.peaks_flops_per_s.get(dtype) for dtype in DTYPES}
    row["ridge"] = ridges(gpu)
    return row


def _flat_row(gpu: Gpu) -> dict[str, Any]:
    """Return `gpu_row` without nesting: one column per dtype, texts of a list joined by semicolons."""
    row = gpu_row(gpu)
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if key == "peaks_flops_per_s":
            flat |= {f"peak_{dtype}_flops_per_s": peak for dtype, peak in value.items()}
        elif key == "ridge":
            flat |= {f"ridge_{dtype}_flops_per_byte": point for dtype, point in value.items()}
        elif isinstance(value, list | tuple):
            flat[key] = "; ".join(value)
        elif not isinstance(value, dict):
            flat[key] = value
    return flat
