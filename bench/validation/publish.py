"""What makes a published record of a machine, in one go: every measurement of this project, the most telling first.

    python -m bench.validation.publish --output DIR
    python -m bench.validation.publish --output DIR --minutes 9 --archive record.tar.gz
    python -m bench.validation.publish --output DIR --step suite,compare-matmul --again
    python -m bench.validation.publish --list

Each step is a command of this project in a process group of its own, with a limit of its own, saved under DIR as it
comes. Steps that are done are skipped when the same DIR is given again; those that were never tried come first, those
that failed or took too long last. Unpack an archive beside itself, and its folder goes on as DIR elsewhere.
`DIR/published/<slug>` is to be committed as `results/published/<slug>`; `DIR/summary.md` says how each step ended.

exit codes: 0 all steps that were started are done; 1 one failed or took too long; 2 usage; 130 interrupted
"""

import argparse
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from bench.harness.cli.arguments import Parser, add_list, number
from bench.validation import publish_process, publish_steps, publish_summary
from bench.validation.publish_steps import ROOT
from bench.validation.publish_summary import CUT, DONE, FAILED, RUNNING, STOPPED
from results.show.export import write_output
from results.show.table import printable
from results.show.terminal import prepare_streams, say
from results.store.runfile import StoreError

USAGE, INTERRUPTED = 2, 130

CLOSING_S = 5.0
"""Of each call: the last summary, and what is to be committed."""

PROBE_S = 300
"""Time in which the device must have answered."""

SHORTEST_S = 1.0
"""With less time no step is started at all."""

CRASH = re.compile(r"^Traceback \(most recent call last\)|: No module named ")
"""In a line of stderr: exit code 1 is no finding then."""

PROBE = """
import json, time
began = time.perf_counter()
import torch, triton, bench.matmul
from bench.harness.device import device
took_s = time.perf_counter() - began
found = device.detect(None)
known = {"slug": found.slug, "name": found.name, "uuid": found.uuid, "is_gpu": found.is_gpu}
print(json.dumps(known | {"import_s": took_s}))
"""
"""In a process of its own, because a CUDA context takes memory and counts as another user of the GPU."""


class PublishError(Exception):
    """What was asked for cannot be; the message is one line."""


def parser():
    """Return the parser of the command line."""
    formatter = argparse.RawDescriptionHelpFormatter
    made = Parser(prog="python -m bench.validation.publish", description=__doc__, formatter_class=formatter)
    minutes = number(0.01, 1e6, "a number of minutes from 0.01")
    made.add_argument("--output", metavar="DIR", type=Path, help="folder of the record, made where it is missing")
    made.add_argument("--minutes", type=minutes, default=9, help="time of this call (default: 9)")
    add_list(made, "--step", "only these steps, in the order of the plan")
    made.add_argument("--again", action="store_true", help="repeat what is done; what was found before is kept")
    made.add_argument("--archive", metavar="FILE", type=Path, help="pack DIR into this .tar.gz after each step")
    made.add_argument("--list", action="store_true", help="print the steps with their limits, and exit")
    return made


def main(argv=None):
    """Run the steps and return the exit code."""
    began = time.monotonic()
    prepare_streams()
    args = parser().parse_args(argv)
    before = signal.signal(signal.SIGTERM, _interrupted)  # so that `timeout` ends it as Ctrl-C does
    try:
        if args.list:
            return list_steps()
        if args.output is None:
            raise PublishError("--output is missing; name the folder of the record")
        return publish(args, began + 60 * args.minutes)
    except (PublishError, StoreError, OSError) as error:
        say(f"python -m bench.validation.publish: error: {error}")
        return USAGE
    except KeyboardInterrupt:
        say("interrupted: what was finished is kept")
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupted(number, frame):
    raise KeyboardInterrupt


def list_steps():
    """Print the plan for a GPU, and what of it a machine without one leaves out."""
    steps, left_out = publish_steps.plan(is_gpu=True)
    _, without_gpu = publish_steps.plan(is_gpu=False)
    for step in steps:
        also = f"  ({without_gpu[step.name]})" if step.name in without_gpu else ""
        print(f"{step.name:<28} at most {step.limit_s:>3g} s  {step.command}{also}")
    for name, why in left_out.items():
        print(f"{name:<28} left out: {why}")
    return 0


def publish(args, deadline):
    """Run what is to be run until `deadline`, a reading of `time.monotonic`, and return the exit code.

    Raises:
        PublishError: a step has no such name, or the folder is another device's.
    """
    folder = args.output.resolve()
    archived = args.archive.resolve() if args.archive else None
    for place in (folder, *([archived.parent] if archived else [])):
        place.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        device = device_of(folder)
        steps, left_out = publish_steps.plan(device["is_gpu"])
        waiting = chosen(steps, left_out, args, publish_summary.attempts(folder))
        record = Record(folder, device, steps, left_out, archived)
        try:
            ended_well = record.run_all(waiting, deadline)
        finally:
            with publish_process.undisturbed():
                record.sum_up()
        print((folder / "summary.md").read_text(encoding="utf-8"))
    return 0 if ended_well else 1


@contextmanager
def locked(folder):
    """Keep a second call out of the folder: two would disturb each other's measurements.

    Raises:
        PublishError: there is one.
    """
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PublishError(f"{folder}: another call is at work there") from None
        yield


def device_of(folder):
    """Return the device in hand, with the least that its imports have taken.

    Raises:
        PublishError: it cannot be told, or the folder holds the record of another.
    """
    kept = _kept_device(folder / "device.json")
    device = probe()
    if kept.get("slug") not in (None, device["slug"]):
        holds = f"{folder} is the record of {printable(kept['slug'])}"
        raise PublishError(f"{holds}, and this is {device['slug']}; name another --output")
    before_s = kept.get("import_s")
    if not isinstance(before_s, float):
        before_s = probe()["import_s"]  # the first look read the libraries from the disk
    device["import_s"] = min(device["import_s"], before_s)
    write_output(folder / "device.json", json.dumps(device).encode())
    return device


def _kept_device(path):
    """Return what an earlier call has kept; nothing where that is missing or torn."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return kept if isinstance(kept, dict) else {}


def probe():
    """Return what a process of its own tells of the device.

    Raises:
        PublishError: it cannot.
    """
    command = [sys.executable, "-c", PROBE]
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment({}), capture_output=True, text=True, timeout=PROBE_S)
    except subprocess.TimeoutExpired:
        raise PublishError(f"the device cannot be told: no answer in {PROBE_S:g} s") from None
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise PublishError(f"the device cannot be told: {last}") from None


def environment(also):
    """Return the variables of a step: this repository is in front, and what is printed is there at once."""
    paths = os.pathsep.join(part for part in (str(ROOT), os.environ.get("PYTHONPATH")) if part)
    return {**os.environ, "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1", **also}


def chosen(steps, left_out, args, found):
    """Return the steps to run now: those that no attempt has finished; those that were tried before come last.

    Raises:
        PublishError: a step was named that there is not.
    """
    known = {step.name: step for step in steps}
    for name in args.step or ():
        if name not in known:
            why = f"left out: {left_out[name]}" if name in left_out else f"there are: {', '.join(known)}"
            raise PublishError(f"--step {name}: {why}")
    if args.step == []:
        raise PublishError("--step is empty; name at least one")
    states = {name: attempt["state"] for name, attempt in publish_summary.counting(found).items()}
    wanted = [step for step in steps if args.step is None or step.name in args.step]
    open_steps = [step for step in wanted if args.again or states.get(step.name) != DONE]
    turns = {None: 0, DONE: 0, CUT: 1}  # whatever had its turn must not keep the others from theirs, call after call
    return sorted(open_steps, key=lambda step: turns.get(states.get(step.name), 2))


class Record:
    """One folder, as this call fills it."""

    def __init__(self, folder, device, steps, left_out, archived):
        self.folder, self.device, self.steps, self.left_out = folder, device, steps, left_out
        self.archived = archived

    def run_all(self, waiting, deadline):
        """Run steps while there is time, and return whether all that were started are done.

        Raises:
            KeyboardInterrupt: after the step that it ended is kept.
        """
        ended_well, is_first = True, True
        for step in waiting:
            left_s = deadline - time.monotonic() - publish_process.GRACE_S - CLOSING_S
            if left_s < (SHORTEST_S if is_first else step.needs_s):
                has_s = max(0.0, left_s)
                say(f"{step.name}: left for the next call: it needs {step.needs_s:g} s, {has_s:.0f} s are left")
                continue
            attempt, by = self.run(step, min(step.limit_s, left_s))
            self.sum_up()
            ended_well, is_first = ended_well and attempt["state"] in (DONE, CUT), False
            if by == "interrupt":
                raise KeyboardInterrupt
        return ended_well

    def run(self, step, limit_s):
        """Run one step, keep how it ended, and return that, and what ended it."""
        path = publish_summary.next_folder(self.folder, step.name)
        self._hand_roofs(step, self.folder / "ceilings", path / "runs")
        now = datetime.now(UTC).isoformat(timespec="seconds")
        start = {"name": step.name, "command": step.command, "started_at": now, "limit_s": limit_s}
        start |= {"wanted_s": step.wanted_s, "import_s": self.device["import_s"] if step.is_after_import else None}
        start |= {"uuid": self.device["uuid"], "state": RUNNING, "exit_code": None, "wall_s": None}
        publish_summary.keep(path, start)
        say(f"{step.name}: at most {limit_s:.0f} s: {step.command}")
        runs = {"RIDGEPOINT_RUNS": str(path / "runs")}
        command = publish_steps.python(step)
        ended = publish_process.run(command, path, environment(runs), limit_s, publish_process.GRACE_S)
        with publish_process.undisturbed():
            found = {
                "exit_code": ended.exit_code,
                "wall_s": ended.wall_s,
                "state": state_of(step, ended, limit_s, path),
            }
            found |= {
                "stdout_tail": publish_summary.said(path),
                "stderr_tail": publish_summary.tail(path / "stderr.txt"),
            }
            attempt = start | publish_summary.outcome(path) | found
            publish_summary.keep(path, attempt)
            self._hand_roofs(step, path / "runs", self.folder / "ceilings")
        say(f"{step.name}: {attempt['state']}, exit code {ended.exit_code}, {ended.wall_s:.1f} s")
        return attempt, ended.by

    def _hand_roofs(self, step, source, target):
        """Copy the kept ceilings from or to a step, so that it judges by them and adds what it had to measure."""
        for path in [] if step.has_own_roofs else sorted(source.rglob("ceilings-*.json")):
            place = target / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, place)

    def sum_up(self):
        """Write the summary, what is to be committed, and the archive; what cannot be written stops no measurement."""
        try:
            publish_summary.write_summary(self.folder, self.device, self.steps, self.left_out)
            publish_summary.collect(self.folder, self.device, self.steps)
            if self.archived is not None:
                publish_summary.archive(self.folder, self.archived)
        except (OSError, StoreError) as error:
            say(f"not summed up: {error}")


def state_of(step, ended, limit_s, path):
    """Return the state of an attempt that has ended."""
    if ended.by == "interrupt" or (ended.by == "limit" and limit_s < step.limit_s):
        return CUT
    if ended.by == "limit":
        return STOPPED
    crashed = any(CRASH.search(line) for line in whole_tail(path))
    accepted = (0, 1) if step.reports_by_1 and not crashed else (0,)
    return DONE if ended.exit_code in accepted else FAILED


def whole_tail(path):
    """Return more of stderr than is shown: a traceback is long."""
    return publish_summary.tail(path / "stderr.txt", lines=1000)


if __name__ == "__main__":
    raise SystemExit(main())
