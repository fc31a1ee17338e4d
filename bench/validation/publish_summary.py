"""What a folder of a published record holds: the attempts at each step, their summary, what is to be committed.

DIR/steps/<name>/       one attempt: step.json, stdout.txt, stderr.txt, pictures, runs/; a later one is <name>.2
DIR/summary.md, .json   made anew from the attempts whenever one ends, and never read
DIR/published/<slug>/   run files, pictures and ceilings of the attempts that count, as they are to be committed
"""

import json
import os
import re
import shutil
import tarfile
from collections import Counter
from pathlib import Path

from results.show.export import json_text, markdown_text, write_output
from results.show.table import printable
from results.store.runfile import StoreError, load_run

DONE, FAILED, STOPPED, CUT, KILLED, RUNNING = "done", "failed", "stopped", "cut", "killed", "running"
MEANINGS = {
    DONE: "ended by itself; exit code 1 is a finding: a wrong row, a slower version, a machine that is not fit",
    FAILED: "ended by itself with an error",
    STOPPED: "interrupted at its own limit of time; what it had finished is kept",
    CUT: "interrupted because the time of the call was over, or by Ctrl-C; what it had finished is kept",
    KILLED: "ended with the whole call; what it had finished is kept",
}
TAIL_LINES = 12
"""Of stderr, shown where a step failed."""

TAIL_BYTES = 16_384
WRONG_ROWS = 10
"""Wrong rows that are named for each step."""

PICTURES = ("*.png", "*.svg")
FOUND = ("found/*.json", "found/*.md")
"""What the scripts write into the folder that they are given."""
COLUMNS = ("step", "state", "exit", "wall s", "wanted", "outcome", "command")


def attempts(folder):
    """Return all attempts that a folder holds, oldest first for each step; a torn or foreign one counts as killed."""
    found = []
    for path in sorted((folder / "steps").glob("*"), key=_number):
        if path.is_dir():
            found.append(_attempt(path) | {"folder": path.name, "name": path.name.partition(".")[0]})
    return found


def _attempt(path):
    """Return what is known of one attempt; at least its state."""
    known = {"state": KILLED, "exit_code": None, "wall_s": None, "rows": {}, "wrong": [], "command": None}
    try:
        text = (path / "step.json").read_text(encoding="utf-8")
        kept = json.loads(text) if len(text) < 2**20 else None
    except (OSError, ValueError, RecursionError):
        return known
    if not isinstance(kept, dict) or kept.get("state") not in (*MEANINGS, RUNNING):
        return known
    kept["state"] = KILLED if kept["state"] == RUNNING else kept["state"]
    return known | kept


def _number(path):
    name, _, number = path.name.partition(".")
    return name, int(number) if number.isdecimal() else 1


def next_folder(folder, name):
    """Return the folder of the next attempt at a step, newly made."""
    number = 1
    while (path := folder / "steps" / (name if number == 1 else f"{name}.{number}")).exists():
        number += 1
    path.mkdir(parents=True)
    return path


def keep(path, attempt):
    """Keep what is known of an attempt: the old file or the whole new one is there, at any moment."""
    write_output(path / "step.json", json_text(attempt).encode())


def counting(found):
    """Return of each step the attempt that counts: the last one that is done, else the last one."""
    last = {}
    for attempt in found:
        before = last.get(attempt["name"])
        if before is None or attempt["state"] == DONE or before["state"] != DONE:
            last[attempt["name"]] = attempt
    return last


def outcome(path):
    """Return what the run files of an attempt say: rows by status, and the wrong ones with their reasons."""
    statuses, wrong = Counter(), []
    for file in run_files(path):
        try:
            records = load_run(file).records
        except StoreError as error:
            wrong.append(str(error).replace(f"{path}{os.sep}", ""))
            continue
        statuses.update(record.status for record in records)
        bad = [record for record in records if record.status in ("invalid", "failed")]
        wrong += [f"{r.op} {r.case} {r.dtype} {r.provider}: {r.status}: {r.reason}" for r in bad]
    return {"rows": dict(statuses), "wrong": wrong[:WRONG_ROWS]}


def run_files(path):
    """Return the run files of an attempt, oldest first."""
    return sorted((path / "runs").rglob("*.jsonl"))


def tail(path, lines=TAIL_LINES):
    """Return the last lines of a text file that are not empty, as no terminal obeys them."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [printable(line.rstrip()) for line in text.splitlines() if line.strip()][-lines:]


def said(path):
    """Return the last lines of stdout, or what is wrong with the machine where stdout is the doctor's JSON."""
    try:
        with (path / "stdout.txt").open(encoding="utf-8", errors="replace") as file:
            page = json.loads(file.read(2**20))
        bad = [f"{f['name']}: {f['value']}" for f in page["findings"] if f["status"] == "bad"]
        return [printable("fit" if page["fit"] else f"not fit: {'; '.join(bad)}")]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return tail(path / "stdout.txt")


# ---- the summary ---------------------------------------------------------------------------------------------------


def write_summary(folder, device, steps, left_out):
    """Write `summary.json` and `summary.md`, and return the text of the latter.

    Args:
        folder: of the record.
        device: what was measured: `slug`, `name`.
        steps: the plan.
        left_out: steps that make no sense here, and why.
    """
    found = attempts(folder)
    last = counting(found)
    ordered = in_order(last, steps)
    missing = [step.name for step in steps if step.name not in last]
    whole = {"device": device, "steps": ordered, "attempts": found, "not_started": missing, "left_out": left_out}
    write_output(folder / "summary.json", json_text(whole).encode())
    text = summary_text(device, ordered, missing, left_out, found)
    write_output(folder / "summary.md", text.encode())
    return text


def in_order(last, steps):
    """Return the attempts that count in the order of the plan, those of steps that it lacks by now last."""
    order = [step.name for step in steps]
    return sorted(last.values(), key=lambda a: order.index(a["name"]) if a["name"] in order else len(order))


def summary_text(device, ordered, missing, left_out, found):
    """Return the summary as Markdown."""
    rows = table_of(ordered)
    gpus = {a["uuid"] for a in found if isinstance(a.get("uuid"), str)}
    several = f" Measured on {len(gpus)} devices of this name." if len(gpus) > 1 else ""
    lines = [f"# {device['name']} ({device['slug']})\n\n", f"{measured_s(found):.0f} s of steps.{several}\n\n"]
    lines.append(markdown_text(rows, COLUMNS) if rows else "No step was started yet.\n")
    states = dict.fromkeys(row["state"] for row in rows)
    lines += [f"\n`{state}`: {MEANINGS[state]}.\n" for state in states if state in MEANINGS]
    lines += [f"\nNot started yet: {', '.join(missing)}.\n"] if missing else []
    lines += [f"\n- left out: {name}: {why}" for name, why in left_out.items()] + ["\n"] * bool(left_out)
    for attempt in ordered:
        lines += _details(attempt)
    return "".join(lines)


def measured_s(found):
    """Return the seconds that all attempts took together."""
    return sum(a["wall_s"] for a in found if isinstance(a["wall_s"], int | float))


def table_of(ordered):
    """Return a row of texts for each step."""
    return [
        {
            "step": attempt["name"],
            "state": attempt["state"],
            "exit": "" if attempt["exit_code"] is None else str(attempt["exit_code"]),
            "wall s": "" if attempt["wall_s"] is None else f"{attempt['wall_s']:.1f}",
            "wanted": wanted_text(attempt),
            "outcome": outcome_text(attempt),
            "command": attempt.get("command") or "",
        }
        for attempt in ordered
    ]


def wanted_text(attempt):
    """Return whether a step kept to the time that is promised for it; empty where none is, or it did not end."""
    wanted_s, wall_s, import_s = attempt.get("wanted_s"), attempt["wall_s"], attempt.get("import_s") or 0.0
    if not wanted_s or not wall_s:
        return ""
    took, after = wall_s - import_s, f" after {import_s:.1f} s of imports" if import_s else ""
    if attempt["state"] != DONE:
        return f"below {wanted_s:g} s: not known" if took < wanted_s else f"below {wanted_s:g} s: missed"
    return f"below {wanted_s:g} s: {'met' if took < wanted_s else 'missed'}, {took:.1f} s{after}"


def outcome_text(attempt):
    """Return rows by status, else the last line of stdout."""
    if attempt["rows"]:
        return ", ".join(f"{count} {status}" for status, count in attempt["rows"].items())
    last = (attempt.get("stdout_tail") or [""])[-1]
    return re.sub(r"^=+ | =+$", "", last)[:100]


def _details(attempt):
    """Return wrong rows, and the last lines of stderr where a step did not end well."""
    if attempt["state"] == DONE and not attempt["wrong"]:
        return []
    shown = [*attempt["wrong"], *((attempt.get("stderr_tail") or []) if attempt["state"] != DONE else [])]
    return [f"\n## {attempt['name']}\n\n```\n", *(f"{printable(line)}\n" for line in shown), "```\n"] if shown else []


# ---- what is to be committed, and what travels ---------------------------------------------------------------------


def collect(folder, device, steps):
    """Make `published/<slug>` anew from the attempts that count, whole before it takes the place of the old one.

    Run files that cannot be read stay where they are. Of the ceilings the identity of the machine stays behind.
    """
    target, unfinished = folder / "published", folder / ".published.partial"
    shutil.rmtree(unfinished, ignore_errors=True)
    place = unfinished / device["slug"]
    place.mkdir(parents=True)
    own_roofs = {step.name for step in steps if step.has_own_roofs}
    printed = {step.name: step.kept_as for step in steps if step.kept_as}
    last = counting(attempts(folder))
    for name, attempt in last.items():
        source = folder / "steps" / attempt["folder"]
        for file in run_files(source) if name not in own_roofs else ():
            if is_whole(file):
                shutil.copyfile(file, place / file.name)
        for picture in sorted(path for pattern in PICTURES for path in source.glob(pattern)):
            shutil.copyfile(picture, place / f"{name}{picture.suffix}")
        for file in sorted(path for pattern in FOUND for path in source.glob(pattern)):
            shutil.copyfile(file, place / file.name)
        if name in printed and (source / "stdout.txt").is_file():
            shutil.copyfile(source / "stdout.txt", place / printed[name])
    _collect_ceilings(folder, place)
    text = summary_text(device, in_order(last, steps), [], {}, list(last.values()))
    (place / "README.md").write_text(text.partition("\n## ")[0], encoding="utf-8")
    shutil.rmtree(target, ignore_errors=True)
    unfinished.replace(target)


def is_whole(file):
    """Return whether a run file can be published: it has records, and no line that cannot be read."""
    try:
        run = load_run(file)
    except StoreError:
        return False
    return bool(run.records) and not run.problems


def _collect_ceilings(folder, place):
    """Put the ceilings that hold most beside the runs, without what identifies the machine.

    Not the newest: another machine of the same name, as a later call may get, finds those of the first one stale, and
    measures in a hurry the few that its rows are judged by.
    """
    most = {}
    for path in sorted((folder / "ceilings").rglob("ceilings-*.json"), key=lambda path: path.stat().st_mtime):
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(data, dict) and _entries(data) >= _entries(most):
            most = data
    if most:
        most.pop("identity", None)
        (place / "ceilings.json").write_text(json.dumps(most, indent=1) + "\n", encoding="utf-8")


def _entries(data):
    """Return how many ceilings a file holds."""
    entries = data.get("entries")
    return len(entries) if isinstance(entries, list) else 0


def archive(folder, path):
    """Pack a whole record into one .tar.gz; the old archive stays until the new one is complete.

    Raises:
        OSError: it cannot be written.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.partial")
    outside = {path.resolve(), unfinished.resolve()}
    try:
        with tarfile.open(unfinished, "w:gz") as packed:
            for file in sorted(Path(folder).rglob("*")):
                if file.is_file() and not file.is_symlink() and file.resolve() not in outside and file.name != ".lock":
                    packed.add(file, arcname=f"{folder.resolve().name}/{file.relative_to(folder)}", recursive=False)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
