"""Collectives between the ranks of torchrun: bandwidth, latency, and which rank or link makes them
slow.

Size      S is the whole array of all-gather and reduce-scatter, else the array of one rank.
          all-gather, reduce-scatter and all-to-all divide it: S is rounded up to equal parts of all
          ranks.
Time      The median of the rounds, by the host's timer. A round starts when its last rank arrives,
          and takes the shortest time of all ranks. Ranks of broadcast and send-recv do not wait for
          each other: there it takes the longest time.
Skew      The time from the first to the last arrival, the median of the rounds. It is not in Time.
algbw     S / time.
busbw     S / time x factor: 2(n - 1)/n for all-reduce; (n - 1)/n for all-gather, reduce-scatter and
          all-to-all; 1 for broadcast and send-recv. It can be compared with the one-way bandwidth
          of a link.
Causes    device: a rank is late after a slow matmul. host or input: it is late after a matmul that
          took the usual time. link: it is on time, and its exchanges are slow (`--pairs`, 4 ranks
          or more). No other cause is named.
Send-recv Each rank sends to the next one.

Source  NVIDIA, nccl-tests, doc/PERFORMANCE.md, for sizes and factors.
"""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

from bench.harness.cli.arguments import UsageError, chosen, scenario_parser
from bench.harness.cli.main import check_places, device_of, guarded
from bench.harness.op import ShapeError, parse_size
from bench.harness.op_file import modules_sha256
from bench.harness.settings import Argv, Settings
from bench.ranks.launcher import end_with_launcher, gpu_of, open_store, rank_here
from results.record import Environment, Object, Record
from results.show.grid import Column, Table, print_grid, print_lines
from results.show.options import HOW, Names, given, parameters
from results.show.table import print_header, table_of_run
from results.show.terminal import Parser, say
from results.show.units import duration, quantity
from roofline.links import OPS as KINDS
from roofline.links import bus_factor, round_s

if TYPE_CHECKING:
    from rich.console import Console

    from bench.harness.run import Run
    from bench.ranks.collectives import Group

DTYPES = ("fp32", "fp16", "bf16")
SIZES = {"gloo": "1KiB:16MiB:x4", "nccl": "1KiB:1GiB:x4"}

EXAMPLES = (
    (
        "--op all-reduce --size 1KiB:1GiB:x4 -o fleet/",
        "bandwidth by size; a run file of each rank in fleet/",
    ),
    ("--op all-reduce --size 64MiB --pairs", "the slow rank or link"),
)

LISTED = (
    "bench.collectives",
    "all-reduce, ...",
    "bytes",
    ", ".join(DTYPES),
    "gloo, nccl",
    "collectives between the ranks of torchrun; the slow rank or link",
)
"""The row of `python -m bench list`."""


@dataclass(frozen=True)
class Options:
    """The collectives to measure, and how."""

    op: Annotated[Names, f"operations: {', '.join(KINDS)} (default: all)"] = None
    size: Annotated[
        Names, f"bytes, or a range START:STOP:xFACTOR (default: {SIZES['nccl']}; gloo: to 16MiB)"
    ] = None
    dtype: Annotated[str, "data type (default: fp32)", DTYPES] = "fp32"
    pairs: Annotated[bool, "also exchange the largest size between all pairs of ranks"] = False
    backend: Annotated[
        str | None,
        "nccl between GPUs, gloo between CPUs (default: nccl if a rank sees a GPU for each "
        "rank of its node)",
        tuple(SIZES),
        HOW,
    ] = None
    timeout_s: Annotated[
        float,
        replace(
            parameters(Settings)["timeout_s"],
            help="time after which a rank is reported missing (default: 60)",
        ),
    ] = 60.0


def build_parser() -> Parser:
    shown = ("format", "output", "no_save", "quiet")
    prog = "torchrun --nproc-per-node N -m bench.collectives"
    parser = scenario_parser(prog, __doc__, EXAMPLES, Options, shown)
    # `explain` does not know these columns.
    parser.epilog = (parser.epilog or "").partition("\n\n")[2]
    return parser


def sizes_of(words: Sequence[str]) -> list[int]:
    """Return the sizes of `--size`, smallest first."""
    sizes = set[int]()
    for word in words:
        invalid = (
            f"invalid size '{word}': expected bytes, or START:STOP:xFACTOR such as 1KiB:1GiB:x4"
        )
        match = re.fullmatch(r"([^:]+)(?::([^:]+):x([2-9]|[1-9][0-9]{1,3}))?", word)
        if match is None:
            raise UsageError(invalid)
        try:
            size_bytes = parse_size(match[1])
            last = parse_size(match[2] or match[1])
        except ShapeError as error:
            raise UsageError(str(error)) from None
        if size_bytes > last:
            raise UsageError(invalid)
        while size_bytes <= last:
            sizes.add(size_bytes)
            size_bytes *= int(match[3] or 2)
    return sorted(sizes)


def main(argv: Argv = None) -> int:
    return guarded(build_parser(), lambda args: collect(args, argv), argv)


def collect(args: argparse.Namespace, argv: Argv) -> int:
    """Measure together with the other ranks; rank 0 prints the results."""
    here = rank_here()
    end_with_launcher(here)
    options = given(Options, args)
    ops = chosen("op", options.op, KINDS, KINDS)
    sizes = sizes_of(options.size or ())
    if (here.world_size or 1) < 2:
        raise UsageError(
            "expected at least 2 ranks: torchrun --nproc-per-node 2 -m bench.collectives"
        )
    asked = given(Settings, args)
    settings = replace(
        asked,
        quiet=asked.quiet or here.rank > 0,
        output=asked.output and f"{asked.output}/",
    )
    check_places(settings)
    import torch

    from bench.harness.device.device import NoDeviceError
    from bench.harness.run import Run
    from bench.ranks.collectives import Group, guarding

    count = torch.cuda.device_count()
    backend = options.backend or ("nccl" if count >= here.local_world_size else "gloo")
    if count and backend != options.backend and backend == "gloo" and here.rank == 0:
        say(
            f"note: gloo between CPUs, because rank 0 sees {count} GPUs for the "
            f"{here.local_world_size} ranks of its node; --backend nccl if each rank sees its own"
        )
    if backend == "nccl" and not count:
        raise NoDeviceError(
            "--backend nccl takes a GPU for each rank, but torch found none; use --backend gloo"
        )
    settings = replace(settings, device=gpu_of(here, count) if backend == "nccl" else "cpu")
    device = device_of(settings)
    store = open_store(here, options.timeout_s)
    if store is None:
        raise NoDeviceError("the store at MASTER_ADDR and MASTER_PORT does not answer")
    rows = []
    for op, size_bytes in itertools.product(ops, sizes or sizes_of([SIZES[backend]])):
        row = Record(
            op=op,
            provider=backend,
            dtype=options.dtype,
            shape={"bytes": size_bytes},
            case=str(size_bytes),
            status="skipped",
            method="host",
            cache="warm",
            options={"ranks": here.world_size, "backend": backend},
            op_sha256=modules_sha256(("bench.collectives", "bench.ranks.collectives")),
        )
        rows.append(row)
    saved = {"backend": backend, "dtype": options.dtype, "timeout": options.timeout_s}
    with Run(settings, "bench.collectives", "collectives", device, argv, saved) as run:
        run.start(None, fleet=here)
        with guarding(store, here, options.timeout_s):
            group = Group(here, store, run, backend)
            group.measure(rows, options.pairs)
    if here.rank or run.is_interrupted:
        return run.exit_code()
    found = summary(run, group)

    def table(environment: Environment, records: Sequence[Record]) -> Table:
        return replace(
            table_of_run(environment, records),
            draw=lambda console: render(run, found, console),
            document=lambda: found,
        )

    return run.conclude(table)


def summary(run: Run, group: Group) -> Object:
    """Return the object that `--format json` prints: bytes, seconds and bytes/s."""
    rows = []
    for record in run.records:
        row: Object = {"op": record.op, "bytes": record.shape["bytes"]}
        row |= {"status": record.status, "reason": record.reason}
        if record.status == "ok":
            row["median_s"] = median(round_s(record))
            row["algbw_bytes_per_s"] = row["bytes"] / row["median_s"]
            row["busbw_bytes_per_s"] = row["algbw_bytes_per_s"] * bus_factor(record.op, group.ranks)
        if "skew_s" in record.telemetry:
            row["skew_s"] = record.telemetry["skew_s"]
        rows.append(row)
    pairs = []
    for pair, samples in sorted(group.pairs_s.items()):
        pairs.append({"ranks": pair, "median_s": median(samples)})
    claims = []
    for claim in group.claims:
        claims.append(asdict(claim) | {"nodes": [group.nodes[rank] for rank in claim.ranks]})
    return {
        "ranks": group.ranks,
        "backend": run.environment.settings["backend"],
        "dtype": run.environment.settings["dtype"],
        "rows": rows,
        "pairs": pairs,
        "claims": claims,
    }


def render(run: Run, found: Object, console: Console) -> None:
    print_header(run.environment, run.records, console)
    print_lines(console, f"\n{found['ranks']} ranks, {found['backend']}, {found['dtype']}\n")
    rows = found["rows"]

    def column(title: str, key: str, shown: Callable[[Any], str]) -> Column:
        return Column(title, [shown(row[key]) if key in row else "-" for row in rows], "right")

    columns = [
        Column("op", [row["op"] for row in rows]),
        column("bytes", "bytes", "{:,}".format),
        column("time", "median_s", duration),
        column("algbw", "algbw_bytes_per_s", partial(quantity, unit="B/s")),
        column("busbw", "busbw_bytes_per_s", partial(quantity, unit="B/s")),
        column("skew", "skew_s", duration),
    ]
    print_grid(console, columns, [row["reason"] for row in rows])
    lines = [""]
    for pair in found["pairs"]:
        lines.append(
            f"ranks {pair['ranks'][0]} and {pair['ranks'][1]}: {duration(pair['median_s'])}"
        )
    for claim in found["claims"]:
        who = " and ".join(map(str, claim["ranks"]))
        nodes = ", ".join(dict.fromkeys(claim["nodes"]))
        lines.append(f"{claim['cause']}: rank {who} ({nodes}): {claim['evidence']}")
    if not found["claims"]:
        lines.append("no rank or link is claimed to be slow")
    print_lines(console, *lines)


if __name__ == "__main__":
    raise SystemExit(main())
