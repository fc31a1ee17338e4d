"""Measures one device per rank: every GPU of a node or a cluster, alone and then all together.

Start one process per GPU with torchrun, srun or mpirun, or one per pod of a Kubernetes Job. Each
rank measures copy, matmul, FMA, host link and launch time of its own device, first in turn with the
other ranks of its node, then together with all ranks, when power and heat are shared.

Files    Each rank saves its own run file in the output directory, one record at a time. A rank that
         crashes, hangs or has a full disk costs its own rows.
Store    Ranks start together, and rank 0 collects their answers, through torchrun's store or that
         at MASTER_ADDR and MASTER_PORT. Without one, each rank measures and reports by itself.
Device   GPU number LOCAL_RANK; without GPUs, the cores are divided among the ranks of a node.
Names    ROOFMARK_NODE names the node.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from bench.harness.cli.arguments import add, number
from bench.harness.cli.main import guarded
from results.show.terminal import Parser

EPILOG = """\
exit codes: 0 ok, also if a row failed; 2 usage, or rows could not be saved; 130 interrupted, finished rows are saved

examples:
  # all GPUs of a node
  torchrun --nproc-per-node 8 -m bench.fleet --quick
  # the first GPU
  python -m bench.fleet --quick -o fleet"""  # noqa: E501

LISTED = (
    "bench.fleet",
    "fleet",
    "fixed",
    "fp32, bf16",
    "torch",
    "one device per rank: copy, matmul, FMA, link and launch, alone and together",
)
"""The row of `python -m bench list`."""

LIMIT_S = 600.0


def build_parser() -> Parser:
    prog = "python -m bench.fleet"
    parser = Parser(
        prog=prog,
        usage=f"{prog} [--quick] [--dtype LIST] [-o DIR]",
        description=__doc__,
        epilog=EPILOG,
    )
    measuring = parser.group("how to measure")
    measuring.add_argument(
        "--quick", action="store_true", help="measure each row for about a quarter of the time"
    )
    add(parser, "--dtype", help="data types of the matmul (default: bf16; fp32 on a CPU)")
    seconds = number(10, 1e6, "a number of seconds from 10 to 1e6")
    text = (
        f"time limit for the run; rank 0 then names the ranks without an answer (default: "
        f"{LIMIT_S:g})"
    )
    measuring.add_argument(
        "--deadline", metavar="SECONDS", type=seconds, default=LIMIT_S, help=text
    )
    text = "directory of the run files, one for each rank (default: results/runs/fleet)"
    add(parser, "--output", action="store", metavar="DIR", help=text)
    add(parser, "--quiet")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    def run(args: argparse.Namespace) -> int:
        from bench.harness.fleet.member import Member
        from results.store.runfile import runs_directory

        args.output = args.output or str(runs_directory() / "fleet")
        return Member(args, argv).run()

    return guarded(build_parser(), run, argv)


if __name__ == "__main__":
    raise SystemExit(main())
