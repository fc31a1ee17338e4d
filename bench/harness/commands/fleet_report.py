"""`python -m bench fleet-report DIR...`: which device of a fleet is slow, by how much, why, and
what to do about it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from results.show.picture import add_picture, check_picture, save_picture
from results.show.terminal import ADVANCED, NO_DEVICE, OutputError, fail, print_out, say
from results.store.runfile import StoreError

DESCRIPTION = """\
Compare the devices of a fleet with their peers, from the files of `bench.fleet`.
The table has a line for each device that is not ok."""

EPILOG = """\
exit codes: 0 no device is slow; 1 one is; 2 usage; 3 one is unmeasured, or the report failed

exit codes of nagios: 0 all ok; 1 one is suspect or unstable; 2 slow; 3 unmeasured, usage, or the report failed

examples:
  torchrun --nproc-per-node 8 -m bench.fleet --quick -o fleet/
  python -m bench fleet-report fleet/ --history last-week/ --format json"""  # noqa: E501


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("fleet-report", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument(
        "directories", metavar="DIR", nargs="+", type=Path, help="directory of the ranks' run files"
    )
    text = "directories of earlier runs, to compare each device with its own history"
    parser.add_argument("--history", metavar="DIR", nargs="+", type=Path, default=[], help=text)
    parser.add_argument("--all", action="store_true", help="show devices that are ok too")
    formats = ("table", "json", "md", "junit", "prometheus")
    text = "output format on stdout (default: table)"
    parser.group("output").add_argument("--format", choices=formats, default="table", help=text)
    add_picture(parser)
    text = "meaning of the exit codes (default: own)"
    parser.group(ADVANCED).add_argument(
        "--exit-codes", choices=("own", "nagios"), default="own", help=text
    )
    parser.set_defaults(run=run)
    if {"nagios", "--exit-codes=nagios"} & {*sys.argv}:  # 2 would be critical
        parser.error = lambda message: sys.exit(NO_DEVICE if fail(parser.prog, message) else None)


def run(args: argparse.Namespace, *_: object) -> int:
    is_nagios = args.exit_codes == "nagios"
    try:
        from results.fleet import output
        from results.fleet.devices import read_fleet
        from results.fleet.judge import judge

        if args.output:
            check_picture(args.output)
        devices, earlier, notes = read_fleet(args.directories, args.history)
        findings, groups = judge(devices, earlier)
        if args.output:
            save_picture(output.draw(findings, args.theme), args.output)
        print_out(output.as_text(findings, groups, args.format, args.all))
    except Exception as error:  # Python would exit with 1, as for a slow device
        is_known = isinstance(error, StoreError | OutputError)
        if is_known and not is_nagios:
            raise
        say(
            f"{args.prog}: {'error' if is_known else f'internal error: {type(error).__name__}'}: "
            f"{error}"
        )
        return NO_DEVICE
    for note in notes:
        say(f"note: {note}")
    return output.exit_code(findings, is_nagios)
