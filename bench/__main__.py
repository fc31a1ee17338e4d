"""`python -m bench`: what there is to measure, and all of it in one run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from bench.harness.cli.arguments import Parser
from bench.harness.cli.main import guarded
from bench.harness.commands import calibrate, catalog, doctor, suite
from bench.harness.compare import command
from bench.harness.op import Op
from results.show.terminal import drawn, print_out, say

EPILOG = """\
Each family is a command of its own, with its own --help:
  python -m bench.matmul --dtype bf16
  python -m bench.elementwise --op gelu,relu --size 64MiB"""


def families() -> dict[str, tuple[Op, ...]]:
    """Return the ops of every family that can be used."""
    return dict(catalog.read(command.reserved_names()).families)


def print_list(found: catalog.Catalog) -> int:
    """Print every op and every scenario with its command, formula and dtypes."""
    from rich import box
    from rich.table import Table

    from bench.harness.providers.registry import provider_names

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for title in ("command", "op", "formula", "shape", "dtypes", "providers"):
        table.add_column(title, overflow="fold")
    for family, ops in found.families.items():
        names = ", ".join(provider_names(family))
        for op in ops:
            table.add_row(f"bench.{family}", op.name, op.formula, "x".join(op.axes), ", ".join(op.dtypes), names)
    for name, scenario in found.scenarios.items():
        words = ", ".join(scenario.dtypes), ", ".join(scenario.providers)
        table.add_row(f"bench.{name}", scenario.name, scenario.formula, scenario.axes, *words)
    print_out(drawn(lambda console: console.print(table, markup=False)))
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run `python -m bench` and return its exit code."""
    parser = Parser(
        prog="python -m bench",
        description="Measure operations on this machine's GPU or CPU.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    found = catalog.read(command.reserved_names())
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    listing = commands.add_parser("list", help="the operations that can be measured, with their commands")
    listing.set_defaults(run=lambda args, families, argv: print_list(found))
    suite.add_parser(commands)
    command.add_parser(commands, found.families)
    calibrate.add_parser(commands)
    doctor.add_parser(commands)
    for subcommand in commands.choices.values():
        subcommand.set_defaults(prog=subcommand.prog)

    def run(args: argparse.Namespace) -> int:
        for problem in [] if getattr(args, "quiet", False) else found.problems:
            say(f"note: {problem}")
        return int(args.run(args, found.families, argv))

    return guarded(parser, run, argv)


if __name__ == "__main__":
    raise SystemExit(main())
