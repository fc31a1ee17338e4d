"""python -m kernels: list the shipped Triton kernels, and audit the machine code of kernels without
a GPU.
"""

import argparse
import importlib.util
import sys
from collections.abc import Sequence

from kernels.audit import AuditError, OwnKernel, Selection
from results.show.options import add, parameters
from results.show.terminal import (
    INTERRUPTED,
    OK,
    OutputError,
    Parser,
    add_format,
    busy,
    fail,
    install_command,
    print_out,
    say,
)

EXAMPLES = """examples:
  python -m kernels list                                    # all operations and versions
  python -m kernels audit gelu --arch sm_90                 # all versions of one operation on a Hopper GPU
  python -m kernels audit norm/v3 --dtype bf16 --format md
  python -m kernels audit matmul --arch sm_90 --sass        # machine code of the hot loop
  python -m kernels audit --all                             # all variants of all versions
  python -m kernels audit mine.py:scale_kernel --signature 'x_ptr=*bf16:16,out_ptr=*bf16:16,n=i32' \\
      --constexpr BLOCK=1024 --elements 1024 --bytes 4096

exit codes: 0 done, 2 invalid argument, 130 interrupted
"""  # noqa: E501

AUDIT = """Compile kernels ahead of time for GPUs that need not be present, and analyze the machine
code. Nothing runs. Sizes that Triton may specialize are assumed to be multiples of 16; nothing is
assumed about the others.

Without NAME, --dtype and --version, the quick set is compiled: the newest version of each kernel,
in bf16 if it has bf16, for its first shape class, and on sm_90 also for the last one. Otherwise all
selected variants are compiled."""

COMMANDS = {"list": "list the shipped kernels", "audit": "analyze machine code of kernels"}


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    try:
        args.run(args)
        return OK
    except (AuditError, OutputError) as error:
        return fail(args.prog, error)
    except KeyboardInterrupt:
        say(f"{args.prog}: interrupted")
        return INTERRUPTED


def _list(args: argparse.Namespace) -> None:
    from kernels import versions
    from kernels.audit import table

    rows = versions.by_version() if args.format in ("table", "md") else versions.by_operation()
    print_out(table.render(rows, args.format, tuple(rows[0]), {}))


def _audit(args: argparse.Namespace) -> None:
    if importlib.util.find_spec("triton") is None:
        raise AuditError(
            f"Triton is not installed: {install_command('bench')}; it has wheels for Linux only"
        )
    with busy("loading Triton"):
        from kernels.audit import command

    command.audit(args)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m kernels",
        description=__doc__.partition(": ")[2],
        epilog=EXAMPLES,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    show = commands.add_parser(
        "list", help=COMMANDS["list"], description="List the shipped kernels."
    )
    add_format(show)
    show.set_defaults(prog=show.prog, run=_list)
    audit = commands.add_parser("audit", help=COMMANDS["audit"], description=AUDIT, epilog=EXAMPLES)
    audit.set_defaults(prog=audit.prog, run=_audit)
    audit.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="family or operation, optionally with a version (norm/v3), or file.py:kernel "
        "(default: the quick set)",
    )
    add(audit, parameters(Selection))
    add_format(audit)
    add(audit, parameters(OwnKernel))
    return parser


if __name__ == "__main__":
    sys.exit(main())
