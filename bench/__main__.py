"""`python -m bench`: the commands, and `python -m bench OPERATION` for those of op files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module

from bench.harness.cli.main import guarded
from bench.harness.cli.main import main as op_main
from bench.harness.op import Op
from bench.harness.op_file import Catalog, module_of, options_of, own_file, read_catalog
from bench.harness.settings import Argv, Settings
from results.show.grid import Column, print_grid
from results.show.options import parameters
from results.show.spelling import did_you_mean, known_as
from results.show.terminal import Parser, add_format, print_out, say

COMMANDS = {
    "list": "list the operations and their commands",
    "suite": "measure all operations at their default sizes",
    "compare": "compare providers in interleaved rounds, with verdicts",
    "calibrate": "measure the limits of this machine: bandwidth, matmul and FMA throughput, "
    "launch time",
    "fleet-report": "report which device of a fleet is slow, and why",
    "doctor": "check this machine, and report the smallest difference in time that it can detect",
    "profile": "profile every operation of a torch model or function",
    "lecture": "recompute and measure the numbers in study notes on CS336 lecture 2",
    "explain": "explain a flag, column, verdict, bound or term, and what to do about it",
}

MODULES = {"profile": "profiler", "fleet-report": "fleet_report"}
"""Commands whose module in `bench.commands` has another name."""

WITHOUT_OPS = ("explain", "fleet-report", "profile")
"""Commands that use no op file without `--op`."""

HELP = {"-h", "--help"}

EPILOG = """\
Each family of operations is a command of its own, with its own --help. `python -m bench.matmul` and
`python -m bench matmul` are the same. Examples:
  python -m bench.matmul --dtype bf16
  python -m bench.elementwise --op gelu,relu --size 64MiB"""


def families() -> dict[str, tuple[Op, ...]]:
    return dict(catalog_of([]).families)


def catalog_of(words: Sequence[str]) -> Catalog:
    """Return all ops and commands, including those of user files named on the command line."""
    from bench.commands.compare import Options

    known = parameters(Options) | parameters(Settings)
    taken = {parameter.spellings[-1].removeprefix("--") for parameter in known.values()}
    names_only_ops = words[:1] in (["compare"], ["profile"])
    taken |= {"help", "command", "prog", "run"}
    return read_catalog(taken, op_words(words), only_ops=names_only_ops)


def print_list(found: Catalog, output_format: str) -> int:
    from bench.harness.providers.registry import provider_names
    from results.show.grid import Table

    rows = []
    for family, ops in found.families.items():
        names = ", ".join(provider_names(family))
        rows += [
            (f"bench.{family}", op.name, "x".join(op.axes), ", ".join(op.dtypes), names, op.formula)
            for op in ops
        ]
    rows += [module.LISTED for module in found.commands.values()]
    *cells, formulas = zip(*rows, strict=True)
    turns = {"command": 0, "op": 0, "shape": 0, "dtypes": 2, "providers": 1}
    columns = [
        Column(title, texts, leaves=turns[title]) for title, texts in zip(turns, cells, strict=True)
    ]
    table = Table(
        rows=lambda: [dict(zip((*turns, "formula"), row, strict=True)) for row in rows],
        draw=lambda console: print_grid(console, columns, formulas, "formula"),
    )
    print_out(table.render(output_format))
    return 0


def meant(word: str, found: Catalog) -> list[str] | None:
    """Return the file and the options for a first argument, or None.

    `bench matmul` means `bench.matmul`, and `bench gelu` means `bench.elementwise --op gelu`.
    """
    files = [*found.families, *found.commands]
    name = known_as(word.removeprefix("bench."), files)
    if name in files:
        return [name]
    own = own_file(word)
    if own is not None and own[0].is_file():
        return [str(own[0]), *(["--op", own[1]] if own[1] else [])]
    ops = {op.name: family for family, family_ops in found.families.items() for op in family_ops}
    op = known_as(word, ops)
    return [ops[op], "--op", op] if op in ops else None


def run_file(file: str, options: Sequence[str], argv: Argv) -> int:
    """Run the command of an op file and return its exit code; `options` replace the first
    argument.
    """
    module = module_of(file)
    if argv is None:
        sys.argv[1:2] = options
    else:
        argv = [*options, *argv[1:]]
    if hasattr(module, "LISTED"):
        return int(module.main(argv))
    return op_main(
        str(module.__file__),
        module.__doc__ or "",
        getattr(module, "EXAMPLES", ()),
        module.OPS,
        options_of(file),
        argv,
    )


def op_words(words: Sequence[str]) -> list[str]:
    """Return the arguments that may name op files: the first one and the values of `--op`.

    A provider's file must not be imported in this process.
    """
    names, is_value = list(words[:1]), False
    for word in words:
        option, sign, value = word.partition("=")
        if word.startswith("-"):
            is_value = option == "--op"
            word = value if sign else ""
        if is_value:
            names += [name for part in word.split(",") if (name := part.strip())]
    return names


def main(argv: Argv = None, others: Iterable[str] = ()) -> int:
    """Run one command and return its exit code.

    Args:
        argv: arguments, by default those of the process.
        others: more names to suggest for an unknown command.
    """
    parser = Parser(
        prog="python -m bench",
        description="Measure operations on this machine's GPU or CPU.",
        epilog=EPILOG,
    )
    words = list(sys.argv[1:] if argv is None else argv)
    chosen = words[0] if words else ""
    asks_for_help = chosen in COMMANDS and chosen != "compare" and not HELP.isdisjoint(words)
    is_without_op = chosen in WITHOUT_OPS and not op_words(words)[1:]
    names_no_op = not chosen or chosen.startswith("-") or is_without_op
    needs_no_op = names_no_op or asks_for_help
    found = Catalog({}, {}, ()) if needs_no_op else catalog_of(words)
    add_commands(parser, words, found)
    names_command = needs_no_op or chosen in COMMANDS
    if not names_command and (target := meant(chosen, found)) is not None:
        return run_file(target[0], target[1:], argv)
    if not names_command:
        known = [*COMMANDS, *found.families, *found.commands, *others]
        known += [op.name for ops in found.families.values() for op in ops]
        hint = did_you_mean(chosen, known) or f"choose from {', '.join([*COMMANDS, *others])}"
        parser.error(f"unknown command '{chosen}'; {hint}")

    def run(args: argparse.Namespace) -> int:
        if not getattr(args, "quiet", False):
            for problem in found.problems:
                say(f"note: {problem}")
        return int(args.run(args, found.families, argv))

    return guarded(parser, run, argv)


def add_commands(parser: Parser, words: Sequence[str], found: Catalog) -> None:
    """Add the commands, with the options of the chosen one: to import all of them takes longer than
    to run one.
    """
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, summary in COMMANDS.items():
        if name != (words[0] if words else "") or name == "list":
            listing = commands.add_parser(name, help=summary)
            if name == "list":
                add_format(listing)
                listing.set_defaults(
                    run=lambda args, *_: print_list(found, args.format), prog=listing.prog
                )
            continue
        module = import_module(f"bench.commands.{MODULES.get(name, name)}")
        epilog = getattr(module, "EPILOG", None)
        command = commands.add_parser(name, description=module.DESCRIPTION, epilog=epilog)
        command.set_defaults(run=module.run, prog=command.prog)
        if name == "compare":
            named = [
                family
                for family, ops in found.families.items()
                if {op.name for op in ops} & {*op_words(words)}
            ]
            module.add_options(command, found.families if HELP.isdisjoint(words) else named)
        else:
            module.add_options(command)


if __name__ == "__main__":
    raise SystemExit(main())
