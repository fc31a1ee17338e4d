"""`python -m bench fleet-report DIR...`: which device of a fleet is slow, by how much, why, and
what to do about it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from results.show.options import number
from results.show.terminal import NO_DEVICE, OutputError, Parser, add_format, print_out, say
from results.store.runfile import StoreError

DESCRIPTION = """\
Compare the devices of a fleet with their peers, from the files of `bench.fleet`.
The table has a line for each device that is not ok."""

EPILOG = """\
exit codes: 0 no device is slow; 1 one is slow, or its results are wrong; 2 usage; 3 one is missing or unmeasured, or the report failed

examples:
  torchrun --nproc-per-node 8 -m bench.fleet --quick -o fleet/
  python -m bench fleet-report fleet/ --expect 8 --history last-week/ --format json"""  # noqa: E501


def add_options(parser: Parser) -> None:
    parser.add_argument(
        "directories", metavar="DIR", nargs="+", type=Path, help="directory of the ranks' run files"
    )
    text = "directories of earlier runs, to compare each device with its own history"
    parser.add_argument("--history", metavar="DIR", nargs="+", type=Path, default=[], help=text)
    count = number(1, 100_000, "an integer from 1 to 100,000", int)
    text = "number of devices; fewer are an error, and the report has what is missing"
    parser.add_argument("--expect", metavar="N", type=count, default=0, help=text)
    text = "names of the hosts that must have a device"
    parser.add_argument("--hosts", metavar="HOST", nargs="+", default=[], help=text)
    parser.add_argument("--all", action="store_true", help="show devices that are ok too")
    add_format(parser)


def run(args: argparse.Namespace, *_: object) -> int:
    try:
        from results.fleet.devices import read_fleet
        from results.fleet.judge import SLOW, UNMEASURED, WRONG, judge, missing
        from results.fleet.output import as_text

        devices, earlier, notes = read_fleet(args.directories, args.history)
        findings = [*missing(devices, args.expect, args.hosts), *judge(devices, earlier)]
        print_out(as_text(findings, args.format, args.all))
    except (StoreError, OutputError):
        raise
    except Exception as error:  # Python would exit with 1, as for a slow device
        say(f"{args.prog}: internal error: {type(error).__name__}: {error}")
        return NO_DEVICE
    for note in notes:
        say(f"note: {note}")
    verdicts = {finding.verdict for finding in findings}
    if verdicts & {SLOW, WRONG}:
        return 1
    return NO_DEVICE if UNMEASURED in verdicts or not verdicts else 0
