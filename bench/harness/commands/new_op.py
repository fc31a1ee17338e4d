"""`python -m bench new-op NAME`: writes a file with an op that runs as it is, to be made one's own."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.harness.cli.arguments import UsageError
from bench.harness.op import Op
from results.show.terminal import print_out

TEMPLATE = Path(__file__).with_name("op_template.py")
NAME = "my-op"
"""What the op is called in the template."""


def add_parser(commands: Any) -> None:
    """Add the command to `python -m bench`."""
    parser = commands.add_parser(
        "new-op",
        description="Write a file with an op that runs as it is; it may lie anywhere.\nEvery command that takes --op "
        "takes its path, and it is a command itself.",
    )
    parser.add_argument("name", metavar="NAME", help="of the op: small letters, digits and hyphens")
    parser.add_argument("-o", "--output", metavar="PATH", type=Path, help="the file (default: NAME.py, here)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, families: Mapping[str, tuple[Op, ...]], argv: Sequence[str] | None) -> int:
    """Write the file and return the exit code.

    Raises:
        UsageError: the name is none or taken, or the file is there or cannot be written.
    """
    name: str = args.name
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise UsageError(f"'{name}' is no name of an op; use small letters, digits and hyphens, as in soft-cap")
    if any(name == op.name for ops in families.values() for op in ops):
        raise UsageError(f"there is an op '{name}' already; give yours another name")
    path: Path = args.output or Path(f"{name.replace('-', '_')}.py")
    if path.suffix != ".py":
        raise UsageError(f"{path} must end in .py")
    text = TEMPLATE.read_text(encoding="utf-8").replace(NAME, name).replace("{file}", str(path))
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{path} exists; nothing is overwritten: choose another --output") from None
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
    print_out(f"written: {path}\ntry it:  python {path} --dtype fp32\n")
    return 0
