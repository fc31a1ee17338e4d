"""`python -m roofline`: the GPU table, roofline plots and cost estimates."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from results.show.terminal import INTERRUPTED, OutputError, Parser, fail, say

COMMANDS = {
    "gpus": "list GPUs: dense peaks, bandwidth, L2 and ridge points",
    "plot": "draw a roofline, with or without measured points",
    "page": "write an interactive HTML report of saved runs or GPUs",
    "estimate": "estimate the cost of tensors, models, training and generation",
    "explore": "open the estimates as calculators in a browser",
    "notes": "compare numbers of study notes with those computed here",
}

EXAMPLES = """examples:
  python -m roofline gpus h100-sxm
  python -m roofline plot --gpu h100-sxm -o h100.png      # datasheet roofline, no GPU needed
  python -m roofline plot latest -o roofline.png          # newest saved run
  python -m roofline page latest -o report.html
  python -m roofline estimate --help

exit codes: 0 success, 2 invalid argument or unusable file, 130 interrupted
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Print paths that are not UTF-8 byte for byte.
        sys.stdout.reconfigure(errors="surrogateescape")
    try:
        words = sys.argv[1:] if argv is None else argv
        args = _parser(words[0] if words else None).parse_args(words)
        command: Callable[[argparse.Namespace], int] = args.run
        try:
            return command(args)
        except _mistakes() as error:
            return fail(args.prog, error)
    except KeyboardInterrupt:
        say("python -m roofline: interrupted")
        return INTERRUPTED


def _mistakes() -> tuple[type[Exception], ...]:
    from results.store.runfile import StoreError
    from roofline.accounting.config import ConfigError
    from roofline.gpu_table import UnknownGpuError
    from roofline.picture.scene import PlotError

    return (
        ConfigError,
        OutputError,
        OverflowError,
        PlotError,
        StoreError,
        UnknownGpuError,
    )


def _parser(chosen: str | None) -> Parser:
    """Return the parser with the options of one command; importing all of them takes longer than
    running one.
    """
    parser = Parser(
        prog="python -m roofline",
        description="Hardware limits, roofline plots and cost estimates. Works with or without a "
        "GPU.",
        epilog=EXAMPLES,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        added = commands.add_parser(name, help=summary)
        if name == chosen:
            command = import_module(f"roofline.commands.{name}")
            command.add_options(added)
            added.set_defaults(run=command.run, prog=added.prog)
    return parser


if __name__ == "__main__":
    sys.exit(main())
