"""Machines, records and whole scenes to draw, and how to read a drawn figure back."""

import itertools
import json
import math
from functools import cache

import numpy as np
from matplotlib.text import Annotation

from results.record import Environment, Record
from roofline.machine import Ceiling, Machine
from roofline.picture.build import build_scene
from roofline.picture.figure import draw_roofline
from roofline.work import bytes_of

Ends = tuple[tuple[float, float], tuple[float, float]]


def machine(slug, peaks, bandwidth, kind="datasheet", *more):
    entries = [Ceiling("flops", dtype, value, kind, "a test") for dtype, value in peaks.items()]
    entries.append(
        Ceiling("bandwidth", "memory" if kind == "datasheet" else "copy", bandwidth, kind, "a test")
    )
    return Machine(slug, f"Device {slug}", (*entries, *more))


H100 = machine(
    "h100-sxm",
    {"bf16": 989.4e12, "fp8e4m3": 1978.9e12, "tf32": 494.7e12, "fp32": 66.9e12},
    3.352e12,
)
H200 = machine(
    "h200-sxm", {"bf16": 989.4e12, "fp8e4m3": 1978.9e12, "tf32": 494.7e12, "fp32": 66.9e12}, 4.8e12
)
A100 = machine("a100-sxm-80gb", {"bf16": 312e12, "tf32": 156e12, "fp32": 19.5e12}, 2.039e12)
CPU_PEAKS = {"bf16": 930e9, "fp32": 224e9}
CPU = machine("cpu", CPU_PEAKS, 45e9, "measured")
BOTH = H200.with_entries(
    [
        Ceiling("flops", "bf16", 795e12, "measured", "a test"),
        Ceiling("flops", "fp8e4m3", 1454e12, "measured", "a test"),
        Ceiling("bandwidth", "read", 4.5e12, "measured", "a test"),
    ]
)


def calibrated(known, mixes):
    return known.with_entries(
        Ceiling("bandwidth", name, value, "measured", "a test") for name, value in mixes.items()
    )


CPU_MIXES = {"read": 60e9, "write": 25e9, "triad": 45e9, "copy": 40e9}
"""Bytes/s, apart and in another order than on a GPU."""


def environment(**changes):
    values = {
        "run_id": "20261120T210312Z-0123456789",
        "started_at": "2026-11-20T21:03:12+00:00",
        "argv": ("python", "-m", "bench.matmul"),
        "device": {"slug": "cpu", "name": "A CPU", "type": "cpu", "threads": 2},
        "versions": {"python": "3.11.9", "torch": "2.13.0", "triton": None},
        "machine": CPU,
    }
    return Environment(**values | changes)


def saved(path, records, stamp=None):
    lines = [(stamp or environment()).to_dict(), *(record.to_dict() for record in records)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def matmul(n, dtype, flops_per_s, provider="torch", **changes):
    values = {
        "op": "matmul",
        "provider": provider,
        "dtype": dtype,
        "shape": {"m": n, "n": n, "k": n},
        "case": f"{n}x{n}x{n}",
        "status": "ok",
        "flops": 2 * n**3,
        "bytes_read": bytes_of(2 * n * n, dtype),
        "bytes_written": bytes_of(n * n, dtype),
        "median_s": 2 * n**3 / flops_per_s,
        "ci95_s": (2 * n**3 / flops_per_s * 0.98, 2 * n**3 / flops_per_s * 1.04),
        "cache": "cold",
    }
    return Record(**values | changes)


def elementwise(op, elements, flops, share):
    """Return a bf16 operation on one array at a share of 4.8 TB/s."""
    time_s = 4 * elements / (share * 4.8e12)
    return Record(
        op=op,
        provider="torch",
        dtype="bf16",
        shape={"n": elements},
        case=str(elements),
        status="ok",
        flops=flops * elements,
        bytes_read=2 * elements,
        bytes_written=2 * elements,
        median_s=time_s,
        ci95_s=(time_s * 0.99, time_s * 1.01),
    )


def crowd():
    """Return 42 points, of which one is above its roof, and four records that cannot be drawn."""
    records = []
    for provider, share in (("torch", 1.0), ("torch-compile", 0.97), ("triton-v1", 0.8)):
        for dtype, top in (("bf16", 770e12), ("fp8e4m3", 1390e12)):
            for n in (512, 1024, 2048, 4096, 8192):
                records.append(matmul(n, dtype, top * share * min(1, n / 4096) ** 0.9, provider))
    for op, flops in (("relu", 1), ("gelu", 20), ("silu", 5)):
        records += [elementwise(op, 2**n, flops, 0.2 + 0.025 * n) for n in (20, 24, 28)]
    records += [elementwise("add", 2**n, 2, 0.9) for n in (27, 28)]
    records.append(matmul(6144, "bf16", 1010e12))
    for status in ("skipped", "invalid", "failed"):
        records.append(matmul(64, "bf16", 1.0, status=status, median_s=None, ci95_s=None))
    records.append(elementwise("copy", 2**20, 0, 0.9))
    return tuple(records)


def streams(share):
    """Return relu and two others just below the roof of a copy."""
    return tuple(
        elementwise(op, 2**28, flops, share)
        for op, flops in (("relu", 1), ("silu", 5), ("gelu", 20))
    )


def on(ceilings, *records, **changes):
    """Return a run of some records on a machine with these ceilings."""
    device = {"slug": ceilings.slug, "name": ceilings.name, "type": "cpu", "threads": 2}
    return environment(**{"device": device, "machine": ceilings} | changes), records


def scaled(ceilings, step):
    return on(ceilings, *(matmul(n, "bf16", n * step) for n in (1024, 4096, 7000)))


OF_A_CPU = ((256, 410e9, 150e9), (512, 700e9, 190e9), (1024, 860e9, 212e9), (2048, 915e9, 218e9))

SCENES = {
    "one GPU": ([], [H100], None),
    "three GPUs": ([], [H100, A100, H200], None),
    "a CPU with points": (
        [
            on(
                CPU,
                *(matmul(n, "bf16", f) for n, f, _ in OF_A_CPU),
                *(matmul(n, "fp32", f) for n, _, f in OF_A_CPU),
            )
        ],
        [],
        ["bf16", "fp32"],
    ),
    "a crowd": ([on(BOTH, *crowd())], [], ["bf16", "fp8e4m3"]),
    "two GPUs with points": ([scaled(H100, 1e11), scaled(A100, 4e10)], [], ["bf16"]),
    "mixes of a CPU": (
        [
            on(
                calibrated(CPU, CPU_MIXES),
                *streams(0.008),
                *(matmul(n, "bf16", f) for n, f, _ in OF_A_CPU[:3]),
            )
        ],
        [],
        ["bf16", "fp32"],
    ),
    "sixty points": (
        [
            on(
                CPU,
                *(
                    matmul(256 + 64 * n, d, top * (0.3 + n / 100))
                    for n in range(30)
                    for d, top in CPU_PEAKS.items()
                ),
            )
        ],
        [],
        None,
    ),
    "no bandwidth": ([], [Machine("g", "G", H100.entries[:2])], None),
    "no peak": ([on(Machine("g", "G", H100.entries[-1:]), matmul(64, "bf16", 1e12))], [], None),
}


def scene(name):
    return build_scene(*SCENES[name])


@cache
def draw(name):
    return draw_roofline(scene(name))


def drawn(ceilings, *records):
    return draw_roofline(build_scene([on(ceilings, *records)]))


def texts(figure):
    axes = figure.axes[0]
    legend = axes.get_legend()
    return [
        text
        for text in (*figure.texts, *axes.texts, *(legend.get_texts() if legend else ()))
        if text.get_text()
    ]


def words(figure):
    return [text.get_text() for text in texts(figure)]


def last_line(figure):
    """Return the caption, which may have been wrapped: the figure's own texts after title and
    subtitle.
    """
    return " ".join(text.get_text() for text in figure.texts[2:])


def renderer(figure):
    return figure.canvas.get_renderer()


def anchor(text):
    if not isinstance(text, Annotation):
        x, y = text.get_transform().transform(text.get_position())
        return float(x), float(y)
    spot = text.axes.transData.transform(text.xy) if text.axes else (0.0, 0.0)
    scale = text.figure.dpi / 72 if text.figure else 1.0
    return spot[0] + text.xyann[0] * scale, spot[1] + text.xyann[1] * scale


def corners(figure, text):
    angle = math.radians(text.get_rotation())
    text.set_rotation(0)
    box = text.get_window_extent(renderer(figure))
    text.set_rotation(math.degrees(angle))
    x, y = anchor(text)
    around = np.array([[box.x0, box.y0], [box.x1, box.y0], [box.x1, box.y1], [box.x0, box.y1]]) - (
        x,
        y,
    )
    turn = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    return around @ turn + (x, y)


def overlap(first, second):
    """Return whether two rectangles overlap: no side of either parts them."""
    for polygon in (first, second):
        for index in range(4):
            side = polygon[(index + 1) % 4] - polygon[index]
            normal = np.array([side[1], -side[0]])
            one, other = first @ normal, second @ normal
            if one.max() <= other.min() or other.max() <= one.min():
                return False
    return True


def assert_apart(shapes):
    for (one, first), (other, second) in itertools.combinations(shapes, 2):
        assert not overlap(first, second), f"{one!r} overlaps {other!r}"


def labels_in(figure):
    return [text for text in figure.axes[0].texts if text.get_text()]


def roofs(figure):
    return [line for line in figure.axes[0].lines if line.get_zorder() == 3]


def ends(line):
    (x0, x1), (y0, y1) = line.get_data()
    return (x0, y0), (x1, y1)


def thin(figure):
    return [line for line in figure.axes[0].lines if line.get_zorder() == 2.5]


def flats(figure):
    return [line for line in roofs(figure) if ends(line)[0][1] == ends(line)[1][1]]


def markers(figure):
    return [
        line
        for line in figure.axes[0].lines
        if line.get_zorder() == 7 and line.get_marker() != "None"
    ]


def spots(figure):
    for line in markers(figure):
        yield from zip(*line.get_data(), strict=True)
