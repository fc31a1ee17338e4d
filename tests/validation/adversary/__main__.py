"""Run wrong and dishonest functions through every path that measures a function, and print which
are caught.

    python -m tests.validation.adversary --list
    python -m tests.validation.adversary --only overflow,gelu_by_pointer --path op,compare

Outcomes: `caught` (invalid, failed or refused), `flagged` (measured, with a flag that the honest
twin does not have), `PASSED` (as if it were right), `lost` (the path gave no answer). The command
reports, and exits with 0 whatever passes.
"""

import argparse
import itertools
import os
import sys
import tempfile
from pathlib import Path

import pandas

from tests.validation.adversary.catalog import COMMANDS, PATHS, subjects

NOISE = {"not-converged", "not-cold", "preempted", "throttled", "tick-limited", "near-floor"}
NOISE |= {"bimodal", "drifting", "doubtful-roof"}
"""Flags of the machine or of a short measurement, which say nothing about a function."""

SLEEP_S = 0.0038
"""A call of a function of cheats/clocks.py takes longer than that."""

UNCACHED = 0.8
"""Fraction of its twin's time above which a function has gained nothing from what it keeps."""

SECONDS = {path: 7 if path in COMMANDS else 3 for path in PATHS}
"""Usual time of a function on two idle cores, by path."""


def outcome(answer, twin, file=""):
    """Return what became of a dishonest function.

    Args:
        answer: its row.
        twin: the row of the honest function; a flag of both says nothing.
        file: its file; of some, results and times are right if the path holds.
    """
    status = answer["status"]
    if status in ("lost", "skipped"):
        return f"lost: {status}"
    if "left" in answer:
        return f"PASSED: leaves {answer['left']}"
    if status != "ok":
        return f"caught: {status}"
    if file == "clocks.py" and answer["median_s"] > SLEEP_S:
        return "caught: right time"
    if file == "orphans.py":
        return "caught: nothing left"
    if file == "caches.py" and answer["median_s"] > UNCACHED * twin["median_s"]:
        return "caught: right time"
    flags = set(answer["flags"]) - set(twin.get("flags", ())) - NOISE
    return f"flagged: {', '.join(sorted(flags))}" if flags else "PASSED"


def rows_of(chosen, paths):
    """Yield a row for each function and path."""
    from tests.validation.adversary.paths import by_command, finished, in_forks, warm_up

    if not list(Path(os.environ["ROOFMARK_RUNS"]).rglob("ceilings-*")):
        finished("calibrate", "--quick", "--device", "cpu")
    if not set(paths) <= set(COMMANDS):
        warm_up()
    for path in paths:
        for batch in batches(chosen, path):
            answers = (by_command if path in COMMANDS else in_forks)(path, batch)
            for each in batch:
                answer = answers[each.provider]
                twin = answers[each.twin]
                row = {
                    "kind": each.kind,
                    "cause": each.cause,
                    "name": each.name,
                    "path": path,
                    "outcome": outcome(answer, twin, Path(each.file).name),
                    "verdict": answer.get("verdict", ""),
                    "twin": twin["status"],
                    "reason": answer["reason"],
                }
                print(*row.values(), sep="  ", file=sys.stderr, flush=True)
                yield row


def batches(chosen, path):
    """Return lists of functions that are measured together: by an op, which measures each in its
    own process, if they do not harm the command.
    """

    def key(each):
        is_together = path == "op" and each.paths != COMMANDS
        return each.twin, each.dtype, "" if is_together else each.name

    subjects = [each for each in chosen if path in each.paths]
    return [list(batch) for _, batch in itertools.groupby(subjects, key)]


def report(frame):
    """Print the rows, their counts by kind and path, and what passed."""
    groups = [frame["kind"], frame["path"]]
    results = frame["outcome"].str.partition(":")[0]
    counts = [pandas.crosstab(groups, results), pandas.crosstab(groups, frame["verdict"])]
    counts.append(pandas.crosstab(groups, "twin " + frame["twin"]))
    shown = frame.drop(columns="reason")
    print(shown.to_string(index=False))
    print(pandas.concat(counts, axis=1).to_string())
    print(shown[results == "PASSED"].to_string(index=False))


def main(argv=None):
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--list", action="store_true", help="print the functions and exit")
    parser.add_argument("--only", metavar="LIST", help="names and causes, separated by commas")
    parser.add_argument("--path", metavar="LIST", default=",".join(PATHS), help=", ".join(PATHS))
    parser.add_argument("--format", choices=("table", "json"), default="table")
    args = parser.parse_args(argv)
    paths = args.path.split(",")
    chosen = subjects()
    if args.only:
        wanted = set(args.only.split(","))
        chosen = [each for each in chosen if wanted & {each.name, each.cause}]
    if not chosen or not set(paths) <= set(PATHS):
        parser.error("--only or --path has a name that --list does not print")
    if args.list:
        for each in chosen:
            where = ", ".join(each.paths) or "needs a GPU"
            print(f"{each.kind:8} {each.cause:24} {each.name:28} {where}")
        seconds = sum(SECONDS[path] for each in chosen for path in each.paths if path in paths)
        print(f"{len(chosen)} functions, about {seconds / 60:.0f} minutes on two idle cores")
        return 0
    # Several threads mostly wait for each other on a busy machine.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as runs:
        os.environ.setdefault("ROOFMARK_RUNS", runs)
        frame = pandas.DataFrame(rows_of(chosen, paths))
    if args.format == "json":
        print(frame.to_json(orient="records"))
    else:
        report(frame)
    return 0


if __name__ == "__main__":
    sys.exit(main())
