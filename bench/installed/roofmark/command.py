# PYTHON_ARGCOMPLETE_OK
"""The command `roofmark`: the commands of `bench`, `roofline`, `results` and `kernels` in one.

Everything after the name of a command is passed to that command: `roofmark gpus h100-sxm` is
`python -m roofline gpus h100-sxm`. All other names go to `python -m bench`, as in `roofmark gelu`.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from results.show.terminal import Parser

PACKAGES = {
    "gpus": "roofline",
    "plot": "roofline",
    "page": "roofline",
    "estimate": "roofline",
    "explore": "roofline",
    "notes": "roofline",
    "runs": "results",
    "show": "results",
    "export": "results",
    "history": "results",
    "kernels": "kernels",
    "audit": "kernels",
}
"""Packages of the commands that `bench` does not have; `compare` is in `bench` and `results`."""

NAMES_THERE = {"runs": "list", "kernels": "list"}
"""Names of commands in their package if it is another one: `roofmark list` lists operations."""

COMPLETING = "_ARGCOMPLETE"
"""Variable of a shell that asks for completions: the number of the word that is the program."""


def main() -> int:
    """Run one command with the arguments of the process and return its exit code."""
    import bench
    from results.show.terminal import prepare_streams, use_short_commands

    bench.leave_when_interrupted()

    prepare_streams()
    use_short_commands()
    if COMPLETING in os.environ:
        prepare_completion()
    words = sys.argv[1:]
    if not words or words[0].startswith("-"):
        command_parser().parse_args()
        return 0
    if words[0] in bench.FAMILIES:  # without the import of all op files
        from bench.__main__ import run_file

        return run_file(words[0], (), None)
    package = PACKAGES.get(words[0], "bench")
    if words[0] == "compare" and names_run(words[1:2]):
        package = "results"
    sys.argv[1] = NAMES_THERE.get(words[0], words[0])
    command = import_module(f"{package}.__main__")
    exit_code: int = command.main(others=PACKAGES) if package == "bench" else command.main()
    return exit_code


def names_run(words: list[str]) -> bool:
    """Return whether the first argument of `compare` is a saved run, not an option, a function or
    the definition of a problem.
    """
    if not words or words[0].startswith("-"):
        return False
    return not words[0].partition(":")[0].endswith((".py", ".json"))


def command_parser() -> Parser:
    """Return the parser of `roofmark` alone, with the names of all commands."""
    import bench
    from bench.__main__ import COMMANDS as SUMMARIES
    from results.show.terminal import Parser

    parser = Parser(
        prog="roofmark",
        description="Measure operations on this machine, and compute how fast they could run.",
        epilog="`roofmark COMMAND --help` lists the options of a command.",
    )
    parser.add_argument("--version", action="version", version=f"roofmark {bench.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND")
    for family in bench.FAMILIES:
        commands.add_parser(family, help=f"measure the operations of bench/{family}.py")
    for name, summary in SUMMARIES.items():
        commands.add_parser(name, help=summary)
    for name, package in PACKAGES.items():
        summaries = import_module(f"{package}.__main__").COMMANDS
        commands.add_parser(name, help=summaries[NAMES_THERE.get(name, name)])
    return parser


def prepare_completion() -> None:
    """Make the line to complete the arguments of the process, for the parser of its command.

    `argcomplete` reads the line itself, in the parser's `parse_args`.
    """
    line = os.environ["COMP_LINE"][: int(os.environ["COMP_POINT"])]
    finished = line.split()[1:] if line.endswith(" ") else line.split()[1:-1]
    sys.argv[1:] = finished
    if not finished:
        return
    from bench.__main__ import COMMANDS

    name = finished[0]
    if name not in PACKAGES and name not in COMMANDS:  # an operation's parser has no word for it
        os.environ[COMPLETING] = str(int(os.environ[COMPLETING]) + 1)
    there = NAMES_THERE.get(name, name)
    os.environ["COMP_LINE"] = line.replace(name, there, 1)
    os.environ["COMP_POINT"] = str(len(line) + len(there) - len(name))
