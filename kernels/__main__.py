"""python -m kernels: list the shipped Triton kernels, and audit the machine code of kernels without
a GPU.
"""

import argparse
import importlib.util
import sys
from collections.abc import Sequence

from kernels.audit import AuditError
from results.show.options import add_format
from results.show.terminal import (
    INTERRUPTED,
    OK,
    OutputError,
    Parser,
    busy,
    fail,
    install_command,
    print_out,
    say,
)

EXAMPLES = """examples:
  python -m kernels list                                    # all operations and versions
  python -m kernels audit gelu --arch sm_90                 # all versions of one operation on a Hopper GPU
  python -m kernels audit norm/v2 --dtype bf16 --format md
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

SIGNATURE = """argument types, in order or by name: '*bf16:16,*bf16:16,i32' or
'x_ptr=*bf16:16,n=i32';
':16' marks a multiple of 16, for a pointer in bytes"""

CONSTEXPR = """constants, such as 'BLOCK=1024,ROUND=True,DTYPE=bf16': numbers, True, False, None,
data types, and names in the file; anything else and anything in quotes is text"""


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
    _add_choices(audit)
    _add_own_kernel(audit)
    return parser


def _add_choices(audit: Parser) -> None:
    audit.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="family or operation, optionally with a version (norm/v2), or file.py:kernel "
        "(default: the quick set)",
    )
    for option, help_text in {
        "--arch": "architectures, such as sm_90 (default: sm_80,sm_90,sm_100)",
        "--dtype": "data types, such as bf16 (default: all)",
        "--version": "versions, such as v2 (default: all)",
    }.items():
        audit.add_argument(
            option, action="extend", type=_comma_list, default=[], metavar="LIST", help=help_text
        )
    add_format(audit)
    audit.add_argument(
        "--all",
        action="store_true",
        help="compile all variants of all versions, which takes minutes",
    )
    audit.add_argument(
        "--sass",
        action="store_true",
        help="print the machine code of the hot loop, or without a loop of the hot path",
    )


def _add_own_kernel(audit: argparse.ArgumentParser) -> None:
    own = audit.add_argument_group("your own kernel")
    own.add_argument("--signature", metavar="TYPES", help=SIGNATURE)
    own.add_argument("--constexpr", metavar="NAME=VALUE,...", help=CONSTEXPR)
    own.add_argument("--num-warps", type=_warps, metavar="N", help="warps per program (default: 4)")
    own.add_argument(
        "--num-stages", type=_positive, metavar="N", help="pipeline stages (default: 3)"
    )
    own.add_argument(
        "--elements",
        type=_positive,
        metavar="N",
        help="elements that a program computes in one pass of its main loop",
    )
    own.add_argument(
        "--bytes", type=_positive, metavar="N", help="bytes of memory traffic for these elements"
    )


def _comma_list(text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise argparse.ArgumentTypeError(f"expected a comma-separated list, got '{text}'")
    return parts


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected an integer from 1, got '{text}'")
    return int(text)


def _warps(text: str) -> int:
    warps = _positive(text)
    # CUDA C++ Programming Guide: at most 1024 threads; Triton: a power of two.
    if warps not in (1, 2, 4, 8, 16, 32):
        raise argparse.ArgumentTypeError(f"expected 1, 2, 4, 8, 16 or 32 warps, got '{text}'")
    return warps


if __name__ == "__main__":
    sys.exit(main())
