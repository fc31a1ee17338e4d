"""python -m roofline: the GPUs of the table, roofline plots, and what models and training cost."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from results.show.terminal import INTERRUPTED, OutputError, Parser, fail, say

COMMANDS = {
    "gpus": "dense peaks, bandwidth, L2 and ridge points of the GPUs in the table",
    "plot": "draw a roofline with or without measured points",
    "page": "one HTML page of runs: a roofline to zoom, a table, verdicts, and what each number means",
    "estimate": "what a tensor, a model, a training run or generation costs, step by step",
    "explore": "these estimates as calculators in a browser",
    "notes": "numbers that study notes give, each beside the one computed here",
}

EXAMPLES = """examples:
  python -m roofline gpus                                 dense peaks, bandwidth and ridge points of every GPU
  python -m roofline gpus h100-sxm                        all facts of one, each with its source
  python -m roofline plot --gpu h100-sxm -o h100.png      its roofline, on any machine
  python -m roofline plot latest -o roofline.png          the newest measured run on its own roofline
  python -m roofline page latest -o report.html           the same to look into, in a browser
  python -m roofline estimate --help                      what a tensor, a model or a training run costs
  python -m roofline explore                              the same as calculators in a browser
  python -m roofline notes                                numbers of study notes, checked

exit codes: 0 done, 2 a wrong value or an unreadable or unwritable file, 130 interrupted
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 2 what cannot be done as asked, 130 interrupted."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="surrogateescape")  # a path that is no UTF-8 is printed byte for byte
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
    from roofline.machine import CeilingError
    from roofline.picture.scene import PlotError

    return (CeilingError, ConfigError, OutputError, OverflowError, PlotError, StoreError, UnknownGpuError)


def _parser(chosen: str | None) -> Parser:
    """Return the parser with the options of one command: to import all of them takes longer than to run one."""
    parser = Parser(
        prog="python -m roofline",
        description="Hardware facts, roofline plots and resource accounting. Works with or without a GPU.",
        epilog=EXAMPLES,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        if name == chosen:
            import_module(f"roofline.commands.{name}").add_parser(commands)
        else:
            commands.add_parser(name, help=summary)
    return parser


if __name__ == "__main__":
    sys.exit(main())
