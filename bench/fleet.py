"""Measures one device per rank: every GPU of a node or a cluster, alone and then all together.

Start one process per GPU with torchrun, srun or mpirun, or one per pod of a Kubernetes Job. Each
rank measures copy, matmul, FMA, host link and launch time of its own device, first in turn with the
other ranks of its node, then together with all ranks, when power and heat are shared.

Files    Each rank saves its own run file in the output directory, one record at a time. A rank that
         crashes, hangs or has a full disk costs its own rows.
Store    Ranks start together, and rank 0 prints the steps of all, through torchrun's store or that
         at MASTER_ADDR and MASTER_PORT. Without one, each rank measures and reports by itself.
Device   GPU number LOCAL_RANK; without GPUs, the cores are divided among the ranks of a node.
Names    ROOFMARK_NODE names the node.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from bench.harness.cli.main import guarded
from bench.harness.settings import Argv, Settings
from results.show.options import HOW, OUTPUT, Names, Parameter, add, given, number, parameters, path
from results.show.terminal import Parser
from roofline.work import dtype_named

EPILOG = """\
exit codes: 0 ok, also if a row failed; 2 usage, or rows could not be saved; 3 a rank did not answer; 130 interrupted, finished rows are saved

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


@dataclass(frozen=True)
class Options:
    """The rows of a rank, and their time limit."""

    quick: Annotated[bool, "measure each row for about a quarter of the time", bool, HOW] = False
    dtype: Annotated[
        Names, "data types of the matmul (default: bf16; fp32 on a CPU)", dtype_named
    ] = None
    quiet: Annotated[bool, parameters(Settings)["quiet"]] = False
    deadline: Annotated[
        float,
        f"time limit for the run; rank 0 then names the ranks without an answer (default: "
        f"{LIMIT_S:g})",
        number(10, 1e6, "a number of seconds from 10 to 1e6"),
        HOW,
        "SECONDS",
    ] = LIMIT_S
    output: Annotated[
        Path | str | None,
        Parameter(
            "directory of the run files, one for each rank (default: results/runs/fleet)",
            path,
            OUTPUT,
            "DIR",
            flags=("-o", "--output"),
        ),
    ] = None


def build_parser() -> Parser:
    prog = "python -m bench.fleet"
    parser = Parser(
        prog=prog,
        usage=f"{prog} [--quick] [--dtype LIST] [-o DIR]",
        description=__doc__,
        epilog=EPILOG,
    )
    add(parser, parameters(Options))
    return parser


def main(argv: Argv = None) -> int:
    def run(args: argparse.Namespace) -> int:
        from bench.ranks.member import Member
        from results.store.runfile import runs_directory

        options = given(Options, args)
        directory = str(options.output or runs_directory() / "fleet")
        return Member(replace(options, output=directory), argv).run()

    return guarded(build_parser(), run, argv)


if __name__ == "__main__":
    raise SystemExit(main())
