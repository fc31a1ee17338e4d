"""Collectives between the ranks of torchrun: bandwidth, latency, and which rank or link makes them slow.

Size      S is the whole array of all-gather and reduce-scatter, else the array of one rank. all-gather, reduce-scatter
          and all-to-all divide it: S is rounded up to equal parts of all ranks.
Time      Of the slowest rank in each round, because a mean hides it; the median of the rounds, by the host's timer.
algbw     S / time.
busbw     S / time x factor: 2(n - 1)/n for all-reduce; (n - 1)/n for all-gather, reduce-scatter and all-to-all; 1 for
          broadcast and send-recv. It can be compared with the one-way bandwidth of a link.
Fit       time = latency + S x factor / busbw, with 95 % intervals.
Last      The rank that arrived last in most rounds, and how much less it waited than the others.
Causes    Late after a slow matmul: device. Late after a usual one: host or input. On time, with slow exchanges
          (`--pairs`, 4 ranks or more): link. Nothing else is claimed.
Send-recv Each rank sends to the next one.

Source  NVIDIA, nccl-tests, doc/PERFORMANCE.md, for sizes and factors.
"""

from __future__ import annotations

import argparse
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.harness.cli.arguments import OUTPUT, UsageError, add, chosen, command_parser
from bench.harness.cli.main import check_places, device_of, guarded
from bench.harness.fleet.launcher import open_store, rank_here
from bench.harness.op import ShapeError, parse_size
from bench.harness.op_file import modules_sha256
from results.record import Record
from results.show.grid import Column, print_grid, print_lines
from results.show.table import print_header
from results.show.terminal import Parser
from results.show.units import duration, format_rate, format_time, si
from roofline.links import OPS as KINDS
from roofline.links import Fit, bus_factor, slowest_s

if TYPE_CHECKING:
    from rich.console import Console

    from bench.harness.collectives import Group
    from bench.harness.run import Run

DTYPES = ("fp32", "fp16", "bf16")
SIZES = {"gloo": "1KiB:16MiB:x4", "nccl": "1KiB:1GiB:x4"}

EXAMPLES = (
    ("--op all-reduce --size 1KiB:1GiB:x4 -o fleet/", "bandwidth by size; a run file of each rank in fleet/"),
    ("--op all-reduce --size 64MiB --pairs", "the slow rank or link"),
)

LISTED = (
    *("bench.collectives", "all-reduce, ...", "bytes", ", ".join(DTYPES), "gloo, nccl"),
    "collectives between the ranks of torchrun; the slow rank or link",
)
"""The row of `python -m bench list`."""

MODULES = ("bench.harness.collectives", "roofline.links")


def build_parser() -> Parser:
    parser = command_parser("torchrun --nproc-per-node N -m bench.collectives", "[options]", __doc__ or "", EXAMPLES)
    add(parser, "--op", help=f"operations: {', '.join(KINDS)} (default: all)")
    add(parser, "--size", help=f"bytes, or a range START:STOP:xFACTOR (default: {SIZES['nccl']}; gloo: to 16MiB)")
    what = parser.group("what to measure")
    what.add_argument("--dtype", choices=DTYPES, default="fp32", help="data type (default: fp32)")
    what.add_argument("--pairs", action="store_true", help="also exchange the largest size between all pairs of ranks")
    text = "nccl between GPUs, gloo between CPUs (default: nccl if each rank has a GPU)"
    parser.group("how to measure").add_argument("--backend", choices=tuple(SIZES), help=text)
    add(parser, "--timeout", default=60.0, help="time after which a rank is reported missing (default: 60)")
    add(parser, *OUTPUT[:-1])  # without --verbose
    parser.set_defaults(device=None, threads=None, gpu=None, budget=None)
    return parser


def sizes_of(words: Sequence[str]) -> list[int]:
    """Return the sizes of `--size`, smallest first."""
    sizes = set[int]()
    for word in words:
        match = re.fullmatch(r"([^:]+)(?::([^:]+):x([2-9]|[1-9][0-9]{1,3}))?", word)
        try:
            size_bytes, last = (parse_size(text) for text in (match[1], match[2] or match[1])) if match else (1, 0)
        except ShapeError as error:
            raise UsageError(str(error)) from None
        if not match or size_bytes > last:
            raise UsageError(f"invalid size '{word}': expected bytes, or START:STOP:xFACTOR such as 1KiB:1GiB:x4")
        while size_bytes <= last:
            sizes.add(size_bytes)
            size_bytes *= int(match[3] or 2)
    return sorted(sizes)


def main(argv: Sequence[str] | None = None) -> int:
    return guarded(build_parser(), lambda args: collect(args, argv), argv)


def collect(args: argparse.Namespace, argv: Sequence[str] | None) -> int:
    """Measure together with the other ranks; rank 0 prints the results."""
    here, ops, sizes = rank_here(), chosen("op", args.op, KINDS, KINDS), sizes_of(args.size or ())
    if (here.world_size or 1) < 2:
        raise UsageError("expected at least 2 ranks: torchrun --nproc-per-node 2 -m bench.collectives")
    args.quiet, args.output = args.quiet or here.rank > 0, args.output and f"{args.output}/"
    check_places(args)
    plot, args.plot = args.plot, None
    import torch

    from bench.harness.collectives import Group, guarding
    from bench.harness.device.device import NoDeviceError
    from bench.harness.run import Run

    if args.backend is None:
        args.backend = "nccl" if torch.cuda.device_count() >= here.local_world_size else "gloo"
    args.device = f"cuda:{here.local_rank}" if args.backend == "nccl" else "cpu"
    device, store = device_of(args), open_store(here, args.timeout)
    if store is None:
        raise NoDeviceError("the store at MASTER_ADDR and MASTER_PORT does not answer")
    blank = Record(op="", provider=args.backend, dtype=args.dtype, shape={}, case="", status="skipped", method="host",
                   cache="warm", op_sha256=modules_sha256(("bench.collectives", *MODULES)))  # fmt: skip
    rows = []
    for op, size_bytes in itertools.product(ops, sizes or sizes_of([SIZES[args.backend]])):
        options = {"ranks": here.world_size, "backend": args.backend, "requested_bytes": size_bytes}
        rows.append(replace(blank, op=op, shape={"bytes": size_bytes}, case=str(size_bytes), options=options))
    settings = {name: getattr(args, name) for name in ("backend", "dtype", "timeout")}
    with Run(args, "bench.collectives", "collectives", device, settings, argv) as run:
        run.start(None, fleet=here.to_dict())
        with guarding(store, here, args.timeout):
            group = Group(here, store, run)
            group.measure(rows, args.pairs)
    if here.rank or run.is_interrupted:
        run.raise_if_unsaved()
        return run.exit_code()
    found = summary(run, group)
    code = run.conclude(lambda environment, records, console: render(run, found, console), lambda *_: found)
    if plot is not None:
        draw(plot, found, group.fits)
    return code


def summary(run: Run, group: Group) -> dict[str, Any]:
    """Return the object that `--format json` prints: bytes, seconds and bytes/s; null if unknown."""
    rows = [row_of(record) for record in run.records if "pair" not in record.options]
    fits = [asdict(fit) | {"bytes_per_s_ci95": [end if math.isfinite(end) else None for end in fit.bytes_per_s_ci95]}
            for fit in group.fits.values()]  # fmt: skip
    pairs = [{"ranks": pair, "median_s": median(samples)} for pair, samples in group.pairs_s.items()]
    claims = [asdict(claim) | {"nodes": [group.nodes[rank] for rank in claim.ranks]} for claim in group.claims]
    found = {"ranks": group.ranks, "backend": run.args.backend, "dtype": run.args.dtype, "rows": rows, "fits": fits}
    return found | {"pairs": pairs, "claims": claims, "link_bytes_per_s": group.link_bytes_per_s}


def row_of(record: Record) -> dict[str, Any]:
    row = {"op": record.op, "bytes": record.shape["bytes"], "requested_bytes": record.options["requested_bytes"]}
    row |= {"status": record.status, "reason": record.reason}
    if record.status == "ok":
        seconds = median(slowest_s(record))
        algbw = row["bytes"] / seconds
        row |= {"median_s": seconds, "algbw_bytes_per_s": algbw}
        row["busbw_bytes_per_s"] = algbw * bus_factor(record.op, record.options["ranks"])
    if last := record.telemetry.get("last_ranks"):
        row["last_rank"] = rank = max(last, key=last.count)
        late_s = [late for who, late in zip(last, record.telemetry["late_s"], strict=True) if who == rank]
        row |= {"last_share": len(late_s) / len(last), "late_s": median(late_s)}
    return row


def render(run: Run, found: Mapping[str, Any], console: Console) -> None:
    assert run.environment is not None
    print_header(run.environment, run.records, console)
    print_lines(console, f"\n{found['ranks']} ranks, {found['backend']}, {found['dtype']}\n")
    rows = found["rows"]

    def column(title: str, key: str, shown: Any, side: Any = "right") -> Column:
        return Column(title, [shown(row[key]) if key in row else "-" for row in rows], side)

    last = [f"{row['last_rank']} in {row['last_share']:.0%}, by {duration(row['late_s'])}" if "late_s" in row else "-"
            for row in rows]  # fmt: skip
    columns = [
        column("op", "op", str, "left"),
        column("bytes", "bytes", "{:,}".format),
        column("time", "median_s", format_time),
        column("algbw", "algbw_bytes_per_s", lambda value: format_rate(value, "B/s")),
        column("busbw", "busbw_bytes_per_s", lambda value: format_rate(value, "B/s")),
        Column("last rank", last),
    ]
    rounded = [f"rounded up from {row['requested_bytes']:,}" * (row["requested_bytes"] < row["bytes"]) for row in rows]
    print_grid(console, columns, [row["reason"] or note for row, note in zip(rows, rounded, strict=True)])
    lines = [""]
    for fit in found["fits"]:
        low_s, high_s = map(duration, fit["latency_ci95"])
        low, high = (si(end, "B/s") if end else "unknown" for end in fit["bytes_per_s_ci95"])
        lines.append(f"{fit['op']}: latency {duration(fit['latency_s'])} ({low_s} to {high_s}), "
                     f"busbw {si(fit['bytes_per_s'], 'B/s')} ({low} to {high})")  # fmt: skip
    if found["link_bytes_per_s"]:
        lines.append(f"datasheet of the link, one way: {si(found['link_bytes_per_s'], 'B/s')}")
    lines += [
        f"ranks {' and '.join(map(str, pair['ranks']))}: {format_time(pair['median_s'])}" for pair in found["pairs"]
    ]
    for claim in found["claims"]:
        who, nodes = " and ".join(map(str, claim["ranks"])), ", ".join(dict.fromkeys(claim["nodes"]))
        lines.append(f"{claim['cause']}: rank {who} ({nodes}): {claim['evidence']}")
    print_lines(console, *lines, *([] if found["claims"] else ["no rank or link is claimed to be slow"]))


def draw(path: Path, found: Mapping[str, Any], fits: Mapping[str, Fit]) -> None:
    """Draw bus bandwidth by size with the fits, under the datasheet bandwidth of the link."""
    from results.show.picture import save_picture
    from roofline.picture.charts import draw_lines

    lines: dict[str, list[tuple[float, float]]] = {}
    for row in found["rows"]:
        if "busbw_bytes_per_s" in row:
            lines.setdefault(row["op"], []).append((row["bytes"], row["busbw_bytes_per_s"]))
    for op, fit in fits.items():
        lines[f"{op}, fit"] = [(x, x * bus_factor(op, fit.ranks) / fit.seconds(x)) for x, _ in lines[op]]
    roof = {"link, one way": found["link_bytes_per_s"]} if found["link_bytes_per_s"] else {}
    title = f"Bus bandwidth of {found['ranks']} ranks, {found['backend']}"
    save_picture(draw_lines(title, "bytes", "bus bandwidth, bytes/s", lines, {}, limits=roof), path)


if __name__ == "__main__":
    raise SystemExit(main())
