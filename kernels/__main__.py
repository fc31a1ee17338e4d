"""python -m kernels: the shipped Triton kernels, and what the compiler makes of them or of yours, with no GPU."""

import argparse
import importlib.util
import sys
from collections.abc import Sequence

from kernels.audit import AuditError
from results.show.terminal import INTERRUPTED, OK, OutputError, Parser, add_format, fail, print_out, say

EXAMPLES = """examples:
  python -m kernels list                                    every operation and version
  python -m kernels audit gelu --arch sm_90                 all versions of one operation on a Hopper GPU
  python -m kernels audit norm/v2 --dtype bf16 --format md
  python -m kernels audit matmul --arch sm_90 --sass        the loop that takes the time, as machine code
  python -m kernels audit --all                             every variant there is
  python -m kernels audit mine.py:scale_kernel --signature 'x_ptr=*bf16:16,out_ptr=*bf16:16,n=i32' \\
      --constexpr BLOCK=1024 --elements 1024 --bytes 4096

exit codes: 0 done, 2 a wrong value, 130 interrupted
"""

AUDIT = """Compile kernels ahead of time, for GPUs that need not be here, and read the machine code. Nothing is run.
Sizes of a shipped kernel are unknown where it does not let Triton specialize them, multiples of 16 where it does.

Without NAME, --dtype and --version the quick set is compiled: the newest version of each kernel, in bf16 where it has
that, for the first and the last class of its shapes. With one of them, all variants that it selects."""

SIGNATURE = """types of the arguments, in their order or by name: '*bf16:16,*bf16:16,i32' or 'x_ptr=*bf16:16,n=i32';
':16' is what Triton knows of a pointer or size that is a multiple of 16; without it nothing is known, as of odd ones"""

CONSTEXPR = """constants of the kernel, 'BLOCK=1024,ROUND=True,DTYPE=bf16': numbers, True, False, None, dtypes by
Ridgepoint's or Triton's name, functions and constants of the file, other words as text; in quotes anything is text"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
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
    from kernels.audit import listing, table

    rows = listing.by_version() if args.format in ("table", "md") else listing.by_operation()
    print_out(table.render(rows, args.format, tuple(rows[0]), {}))


def _audit(args: argparse.Namespace) -> None:
    if importlib.util.find_spec("triton") is None:
        raise AuditError("Triton is not installed; it has wheels for Linux only")
    from kernels.audit import command

    command.audit(args)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m kernels",
        description=__doc__.partition(": ")[2],
        epilog=EXAMPLES,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    show = commands.add_parser("list", help="families, operations, versions", description="Print the shipped kernels.")
    add_format(show)
    show.set_defaults(prog=show.prog, run=_list)
    audit = commands.add_parser("audit", help="compile and read the machine code", description=AUDIT, epilog=EXAMPLES)
    audit.set_defaults(prog=audit.prog, run=_audit)
    _add_choices(audit)
    _add_own_kernel(audit)
    return parser


def _add_choices(audit: Parser) -> None:
    audit.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="a family or an operation, also of one version (norm/v2), or file.py:kernel (default: the quick set)",
    )
    for option, help_text in {
        "--arch": "architectures, sm_90; default: sm_80, sm_90 and sm_100",
        "--dtype": "dtypes, bf16; default: all",
        "--version": "versions, v2; default: all",
    }.items():
        audit.add_argument(option, action="extend", type=_comma_list, default=[], metavar="LIST", help=help_text)
    add_format(audit)
    audit.add_argument("--all", action="store_true", help="all variants of all versions: some minutes")
    audit.add_argument(
        "--sass",
        action="store_true",
        help="print the machine code of the loop that takes the time, or of the longest path without a loop",
    )


def _add_own_kernel(audit: argparse.ArgumentParser) -> None:
    own = audit.add_argument_group("for a kernel of your own")
    own.add_argument("--signature", metavar="TYPES", help=SIGNATURE)
    own.add_argument("--constexpr", metavar="NAME=VALUE,...", help=CONSTEXPR)
    own.add_argument("--num-warps", type=_warps, metavar="N", help="default: 4")
    own.add_argument("--num-stages", type=_positive, metavar="N", help="default: 3")
    own.add_argument(
        "--elements", type=_positive, metavar="N", help="elements that one program handles in one pass of its main loop"
    )
    own.add_argument("--bytes", type=_positive, metavar="N", help="bytes that cross memory for them")


def _comma_list(text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise argparse.ArgumentTypeError(f"'{text}' names nothing")
    return parts


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is no whole number above 0")
    return int(text)


def _warps(text: str) -> int:
    warps = _positive(text)
    if warps not in (1, 2, 4, 8, 16, 32):  # CUDA C++ Programming Guide: at most 1024 threads; Triton: a power of two
        raise argparse.ArgumentTypeError(f"'{text}' is no number of warps; allowed are 1, 2, 4, 8, 16 and 32")
    return warps


if __name__ == "__main__":
    sys.exit(main())
