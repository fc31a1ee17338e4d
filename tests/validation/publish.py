"""Measure all parts of a published GPU record in steps, most informative first.

    python -m tests.validation.publish --list
    python -m tests.validation.publish --output DIR --minutes 9
    python -m tests.validation.publish --output DIR --step doctor,suite

Each step is a command of this project with a time limit. Run files go to DIR/runs, all other files
to DIR. DIR/steps.json has the state of each step. Repeat the call with the same DIR until all steps
are done: done steps are skipped, and failed or stopped steps come last. Each call measures the
ceilings of the machine before the first step that needs them, because a rented GPU may differ
between calls.

exit codes: 0 all started steps are done; 1 a step failed or was stopped; 2 usage; 130 interrupted
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bench.harness.providers.registry import provider_names

ROOT = Path(__file__).resolve().parents[2]
GRACE_S = 20.0
"""Time for a command to print its table and draw its plot after Ctrl-C."""

BUDGET_SHARE = 0.85
"""Budget of a command as a fraction of its limit; the rest is for imports and the last row."""

DONE, FAILED, STOPPED = "done", "failed", "stopped"
FINDING = 1
"""Exit code of a command that found a wrong row or a slower version."""


@dataclass(frozen=True)
class Step:
    """The arguments of `python -m` and a time limit; `{budget}` is replaced by the budget of the
    command.
    """

    name: str
    arguments: str
    limit_s: float
    needs_ceilings: bool = False
    """Whether its rows need the measured ceilings of this machine."""

    def command(self, limit_s=None):
        budget = f"{BUDGET_SHARE * (limit_s or self.limit_s):.0f}"
        return [sys.executable, "-m", *shlex.split(self.arguments.replace("{budget}", budget))]


CALIBRATE_QUICK = Step("calibrate-quick", "bench calibrate --quick", 90)
CALIBRATE = Step("calibrate", "bench calibrate -v --plot calibrate.png", 330)
KERNEL_TESTS = "tests/kernels"


def compare(family, op, size, dtype="bf16"):
    """Return the step that compares torch, torch-compile and all Triton versions of an op."""
    providers = ",".join(name for name in provider_names(family) if not name.endswith("-autotune"))
    name = f"compare-{op}-{dtype}"
    words = (
        f"bench compare --op {op} --dtype {dtype} {size} --provider {providers} --budget {{budget}}"
    )
    return Step(name, f"{words} --plot {name}.png", 120, needs_ceilings=True)


def gpu_tests(name, path):
    """Return the step that runs GPU tests in a separate process, because a GPU error is sticky."""
    return Step(
        f"tests-{name}",
        f"pytest -m gpu -v --tb=short --junit-xml=tests-{name}.xml {ROOT / path}",
        300,
    )


def steps():
    compared = (
        ("matmul", "matmul", "--shape 8192", "fp8e4m3"),
        ("elementwise", "gelu", "--size 512MiB"),
        ("norm", "rmsnorm", "--shape 32768x4096"),
        ("softmax", "softmax", "--shape 32768x4096"),
        ("cross_entropy", "cross-entropy", "--shape 4096x128256"),
        ("matvec", "matvec", "--shape 16384"),
        ("reduction", "sum", "--size 512MiB"),
    )
    model = "--model llama-3.2-1b --layers 2 --shape 4x512 --backward"
    return [
        # First 10 minutes: machine facts and the most informative rows.
        Step("doctor", "bench doctor --output doctor.json", 240),
        CALIBRATE_QUICK,
        Step("suite", "bench suite --budget {budget} --plot suite.png", 240, needs_ceilings=True),
        compare("matmul", "matmul", "--shape 4096,8192"),
        # Up to 20 minutes: correctness, fp8, and the versions of each family.
        gpu_tests("quick", "tests/bench/ops/test_gpu_quick.py"),
        *(compare(*arguments) for arguments in compared),
        # Up to 45 minutes: full calibration, the suite with its ceilings, other timers, models, all
        # tests.
        CALIBRATE,
        Step(
            "suite-full",
            "bench suite --budget {budget} --plot suite-full.png",
            380,
            needs_ceilings=True,
        ),
        Step("side-by-side", "tests.validation.side_by_side --output side_by_side.json", 180),
        Step(
            "train-step",
            "bench.train_step --checkpoint none,full --budget {budget} --plot train-step.png",
            140,
            True,
        ),
        Step(
            "decode", "bench.decode --budget {budget} --plot decode.png", 140, needs_ceilings=True
        ),
        Step(
            "profile",
            f"bench profile {model} --budget {{budget}} --plot profile.png",
            120,
            needs_ceilings=True,
        ),
        Step("transfer", "bench.transfer --budget {budget}", 90, needs_ceilings=True),
        Step(
            "false-verdicts",
            "tests.validation.false_verdicts --rows 120 --output false_verdicts.jsonl",
            240,
        ),
        *(
            gpu_tests(family, f"{KERNEL_TESTS}/test_every_family.py -k {family}")
            for family, *_ in compared
        ),
        gpu_tests("streams", f"{KERNEL_TESTS}/test_gpu.py"),
        gpu_tests("layouts", f"{KERNEL_TESTS}/test_matmul.py"),
        gpu_tests("calibration", f"{KERNEL_TESTS}/test_calibration.py"),
    ]


class Record:
    """The directory of a record and the state of each step."""

    def __init__(self, folder):
        self.folder, self.path = folder, folder / "steps.json"
        folder.mkdir(parents=True, exist_ok=True)
        self.steps = json.loads(self.path.read_text()) if self.path.exists() else {}

    def save(self, step, command, state, exit_code, seconds):
        """Save the state of a step, with an atomic replacement of the file."""
        words = shlex.join(["python", *command[1:]])
        self.steps[step.name] = {
            "command": words,
            "state": state,
            "exit_code": exit_code,
            "wall_s": round(seconds, 1),
        }
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(self.steps, indent=1) + "\n")
        partial.replace(self.path)

    def state(self, step):
        """Return the state of a step, or None if it has not run."""
        return self.steps.get(step.name, {}).get("state")

    def waiting(self, steps):
        """Return the steps that are not done: those not tried first, then the others, each in
        order.
        """
        return sorted(
            (step for step in steps if self.state(step) != DONE),
            key=lambda step: bool(self.state(step)),
        )


def run(command, folder, name, limit_s):
    """Run a command and return its exit code (None if it reached the limit) and its stderr.

    Its output goes to files in the folder. At the limit or on Ctrl-C, the command gets Ctrl-C;
    `GRACE_S` later it and its child processes are killed.
    """
    variables = os.environ | {"PYTHONPATH": str(ROOT), "ROOFMARK_RUNS": str(folder / "runs")}
    with (
        (folder / f"{name}.out.txt").open("wb") as out,
        (folder / f"{name}.err.txt").open("wb") as errors,
    ):
        process = subprocess.Popen(
            command, cwd=folder, env=variables, stdout=out, stderr=errors, start_new_session=True
        )
    exit_code = None
    try:
        with suppress(subprocess.TimeoutExpired):
            exit_code = process.wait(limit_s)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return exit_code, (folder / f"{name}.err.txt").read_text(errors="replace")


def state_of(exit_code, errors):
    """Return the state of a finished step, from its exit code and its stderr."""
    if exit_code is None:
        return STOPPED
    has_crashed = exit_code == FINDING and "Traceback (most recent call last)" in errors
    return DONE if exit_code in (0, FINDING) and not has_crashed else FAILED


def publish(wanted, record, deadline_s, now=time.monotonic, run=run):
    """Run steps until `deadline_s` on the clock `now`; return whether all started steps are
    done.
    """
    is_calibrated, ended_well = False, True

    def take(step):
        limit_s = min(step.limit_s, deadline_s - now() - GRACE_S)
        if limit_s < step.limit_s / 2:
            print(f"{step.name}: not enough time left, postponed to the next call", file=sys.stderr)
            return None
        command, began = step.command(limit_s), now()
        print(f"{step.name}: at most {limit_s:.0f} s: {shlex.join(command[1:])}", file=sys.stderr)
        record.save(step, command, STOPPED, None, 0.0)  # remains if this process is killed
        exit_code, errors = run(command, record.folder, step.name, limit_s)
        state = state_of(exit_code, errors)
        record.save(step, command, state, exit_code, now() - began)
        print(f"{step.name}: {state}", file=sys.stderr)
        return state

    for step in record.waiting(wanted):
        if step.needs_ceilings and not is_calibrated:
            take(CALIBRATE_QUICK)
            is_calibrated = True
        state = take(step)
        is_calibrated |= step in (CALIBRATE, CALIBRATE_QUICK) and state == DONE
        ended_well &= state in (DONE, None)
    return ended_well


def main(argv=None):
    began = time.monotonic()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", metavar="DIR", type=Path, help="directory of the record")
    parser.add_argument(
        "--minutes", type=float, default=9, help="time limit of this call, in minutes (default: 9)"
    )
    parser.add_argument(
        "--step", metavar="LIST", help="run only these steps, even if they are done"
    )
    parser.add_argument(
        "--list", action="store_true", help="print the steps and their time limits, then exit"
    )
    args = parser.parse_args(argv)
    if args.list:
        for step in steps():
            print(
                f"{step.name:<26} at most {step.limit_s:>3g} s  python "
                f"{shlex.join(step.command()[1:])}"
            )
        return 0
    if args.output is None:
        parser.error("--output is required")
    record, names = Record(args.output.resolve()), args.step.split(",") if args.step else []
    wanted = [step for step in steps() if step.name in names or not names]
    if unknown := set(names) - {step.name for step in wanted}:
        parser.error(f"unknown step '{min(unknown)}' (see --list)")
    for name in names:
        record.steps.pop(name, None)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # `timeout` stops the step too
    try:
        return 0 if publish(wanted, record, began + 60 * args.minutes) else 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
