"""Run wrong and dishonest functions through every path that measures a function, and print which
are caught.

    python -m tests.validation.adversary --list
    python -m tests.validation.adversary --only overflow,gelu_by_pointer --path op,compare

Outcomes: `caught` (invalid, failed or refused), `flagged` (measured, with a flag that the honest
twin does not have), `PASSED` (as if it were right), `lost` (the path gave no answer). The command
reports, and exits with 0 whatever passes.
"""

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from functools import cache

from results.show.grid import markdown_text
from tests.validation.adversary.catalog import COMMANDS, PATHS, subjects

NOISE = {"not-converged", "not-cold", "preempted", "throttled", "tick-limited", "near-floor"}
NOISE |= {"bimodal", "drifting", "doubtful-roof"}
"""Flags of the machine or of a short measurement, which say nothing about a function."""

SLEEP_S = 0.018
"""A call of a function of cheats/clocks.py takes longer than that."""

SECONDS = {path: 9 if path in COMMANDS else 3 for path in PATHS}
"""Usual time of a function on two idle cores, by path."""


def outcome(answer, twin, is_slow=False):
    """Return what became of a dishonest function.

    Args:
        answer: its row.
        twin: the row of the honest function; a flag of both says nothing.
        is_slow: whether a call takes longer than `SLEEP_S`.
    """
    status = answer["status"]
    if status in ("lost", "skipped"):
        return f"lost: {status}"
    if "left" in answer:
        return f"PASSED: leaves {answer['left']}"
    if status != "ok":
        return f"caught: {status}"
    if is_slow and answer["median_s"] > SLEEP_S:
        return "caught: right time"
    flags = set(answer["flags"]) - set(twin.get("flags", ())) - NOISE
    return f"flagged: {', '.join(sorted(flags))}" if flags else "PASSED"


def rows_of(chosen, paths):
    """Yield a row for each path of each function."""
    from tests.validation.adversary.paths import command, finished, forked

    finished("bench", "calibrate", "--quick", "--device", "cpu")
    twin_of = cache(lambda path, subject: forked(path, subject, subject.twin))
    for subject in chosen:
        for path in (path for path in subject.paths if path in paths):
            if path in COMMANDS:
                answer, twin = command(path, subject)
            else:
                answer = forked(path, subject, subject.provider)
                twin = twin_of(path, subject)
            row = {
                "kind": subject.kind,
                "cause": subject.cause,
                "name": subject.name,
                "path": path,
                "outcome": outcome(answer, twin, is_slow="clocks" in subject.provider),
                "verdict": answer.get("verdict", ""),
                "twin": twin["status"],
                "reason": answer["reason"],
            }
            print(*row.values(), sep="  ", file=sys.stderr, flush=True)
            yield row


def summary(rows):
    """Return the counts by kind and path."""
    lines = []
    for kind, path in dict.fromkeys((row["kind"], row["path"]) for row in rows):
        cell = [row for row in rows if (row["kind"], row["path"]) == (kind, path)]
        counts = Counter(row["outcome"].partition(":")[0] for row in cell)
        counts |= Counter(row["verdict"] for row in cell)
        line = {"kind": kind, "path": path, "functions": len(cell)}
        for name in ("caught", "flagged", "PASSED", "lost", "FASTER"):
            line[name] = counts[name]
        line["twins refused"] = sum(row["twin"] != "ok" for row in cell)
        lines.append(line)
    return lines


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
        parser.error("--only or --path names nothing that --list prints")
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
        rows = list(rows_of(chosen, paths))
    if args.format == "json":
        print(json.dumps({"rows": rows, "summary": summary(rows)}))
        return 0
    print(markdown_text([row | {"reason": ""} for row in rows], ()))
    print(markdown_text(summary(rows), ()))
    print("Passed:")
    for row in rows:
        if row["outcome"].startswith("PASSED"):
            print(f"{row['kind']} {row['cause']}: {row['name']}, {row['path']} {row['verdict']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
