"""What makes a published record of a machine, in one go: every measurement of this project, the most telling first.

    python -m bench.validation.publish --output DIR
    python -m bench.validation.publish --output DIR --minutes 9 --archive record.tar.gz
    python -m bench.validation.publish --output DIR --step suite,compare-matmul --again
    python -m bench.validation.publish --list

Each step is a command of this project with a limit of its own. Steps that are done are skipped when the same DIR is
given again; those that were never tried come first, those that failed or took too long last. Unpack an archive, and its
folder goes on as DIR on another machine.

    DIR/steps/<name>/       one attempt: step.json, stdout.txt, stderr.txt, pictures; a later one is <name>.2
    DIR/runs/               run files and ceilings of all steps
    DIR/triton/             compiled kernels, so that an unpacked archive need not compile them again
    DIR/summary.md          how each step ended
    DIR/published/<slug>/   what is to be committed as results/published/<slug>

exit codes: 0 all steps that were started are done; 1 one failed or took too long; 2 usage; 130 interrupted
"""

import ast
import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from bench.harness.cli.arguments import add_list, number
from bench.harness.isolate.ending import die_with
from bench.harness.providers.baselines import FAST_ACCUMULATION
from bench.harness.providers.registry import AUTOTUNE, provider_names
from results.show.export import json_text, markdown_text, write_output
from results.show.terminal import Parser, prepare_streams, printable, say
from results.store.runfile import StoreError, load_run

# ---- the steps, in the order of how much they tell of a machine ----------------------------------------------------

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Step:
    """One command of this project, and the time that it may take."""

    name: str
    words: tuple[str, ...]
    """What follows `python -m`."""
    limit_s: float
    """Then it is interrupted: what it has finished is kept."""
    needs_s: float
    """It is not started with less time than this left, unless it is the first."""
    wanted_s: float | None = None
    """Wall time that it should stay below, by the project's own promises."""
    is_after_import: bool = False
    """Whether the promise leaves out what the imports take."""
    reports_by_1: bool = True
    """Whether exit code 1 is a finding, such as a wrong result, and no crash."""
    has_own_roofs: bool = False
    """Whether it starts without kept ceilings, and hands on none."""
    kept_as: str | None = None
    """Under which name what it prints is published, for a step that writes no run file."""

    @property
    def command(self):
        """The command as it is typed in the root of the repository."""
        return shlex.join(["python", "-m", *(word.removeprefix(f"{ROOT}/") for word in self.words)])


COMPARED = (
    ("matmul", "matmul", ("--shape", "4096,8192"), ("--shape", "512")),
    ("elementwise", "gelu", ("--size", "512MiB"), ("--size", "8MiB")),
    ("norm", "rmsnorm", ("--shape", "32768x4096"), ("--shape", "1024x1024")),
    ("softmax", "softmax", ("--shape", "32768x4096"), ("--shape", "1024x1024")),
    ("cross_entropy", "cross-entropy", ("--shape", "4096x128256"), ("--shape", "256x32000")),
    ("matvec", "matvec", ("--shape", "16384"), ("--shape", "4096")),
    ("reduction", "sum", ("--size", "512MiB"), ("--size", "8MiB")),
)
"""Of each family one op, and where it is compared: on a GPU, on a CPU."""

STATISTICS = {
    "side_by_side": (("--quick",), 300, 100),
    "profiler_times": ((), 180, 40),
    "repeated_processes": ((), 500, 200),
}
"""Scripts beside this file that take `--output DIR`: their words, their limits, and what they need, seconds."""

QUICK_TESTS = "gpu-tests-quick"
COMPARED_IN_FP8 = "compare-matmul-fp8"


def plan(is_gpu, root=ROOT, has_fp8=True):
    """Return the steps for a GPU or a CPU, most telling first, and why others are left out, by name.

    Time on a GPU is often rented by the hour: what a record cannot do without comes before what makes it complete.
    """
    on_gpu = gpu_tests(root)
    quick = [step for step in on_gpu if step.name == QUICK_TESTS]
    measured, compared, models, trusted = measurements(is_gpu), comparisons(is_gpu), whole_models(is_gpu), statistics()
    by_name = {step.name: step for step in (*measured, *compared, *trusted)}
    order = "matmul-bf16", "calibrate-quick", "suite", "compare-matmul", "calibrate", "profiler-times", "side-by-side"
    rest = [step for name, step in by_name.items() if name not in order]
    steps = [
        Step("smoke", ("bench", "smoke", "--format", "json"), 240, 60, kept_as="smoke.json"),
        Step("doctor", ("bench", "doctor", "--format", "json"), 60, 15, kept_as="doctor.json"),
        *(*quick, *(by_name[name] for name in order), *models, *rest),
        *(step for step in on_gpu if step.name != QUICK_TESTS),
    ]
    left_out = {} if is_gpu else {step.name: "needs a CUDA device" for step in on_gpu}
    if not has_fp8:
        left_out[COMPARED_IN_FP8] = "the device has no fp8"
    return [step for step in steps if step.name not in left_out], left_out


def gpu_tests(root):
    """Return the tests of the GPU: one of each version first, then every family in a process of its own.

    A process of its own, because a kernel that writes where it may not takes all later launches of its process along.
    """
    files = [path for path in sorted((root / "tests").rglob("test_*.py")) if is_for_gpus(path)]

    def step(name, paths, limit_s, needs_s, *words):
        pytest = ("pytest", *("-p", "bench.validation.gpu_order"), *("-p", "no:cacheprovider"), *("-m", "gpu"))
        report = ("-v", "--tb=short", "-rfE", "--junitxml=junit.xml")
        return Step(name, (*pytest, *report, *words, *(str(path) for path in paths)), limit_s, needs_s)

    families = [re.sub(r"^test_(gpu_)?", "", path.stem).replace("_", "-") for path in files]
    each = [step(f"gpu-tests-{name}", [path], 300, 60) for name, path in zip(families, files, strict=True)]
    several = [path for path in files if path.stem != "test_gpu_quick"]  # all families are in that one
    return [step("gpu-tests", several, 180, 60, "--gpu-tests", "first"), *each]


def is_for_gpus(path):
    """Return whether a file of tests has some that need a GPU: whether its code, no text in it, says `mark.gpu`."""
    text = path.read_text("utf-8")
    found = (
        (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)) if "mark.gpu" in text else ()
    )
    return any(node.attr == "gpu" and getattr(node.value, "attr", None) == "mark" for node in found)


def measurements(is_gpu):
    """Return matmul, the calibration, the suite; then the quick calibration, matmul in all dtypes, an odd length."""
    usual = "bf16,fp16,fp32,tf32,fp8e4m3" if is_gpu else "bf16,fp32"
    return [
        Step(
            "matmul-bf16",
            matmul("bf16", *within(BUDGET_SHARE * 120)),
            120,
            35,
            wanted_s=30 if is_gpu else None,
            is_after_import=True,
        ),
        Step("calibrate", calibrate("-v", "--plot", "calibrate.png"), 330, 300, wanted_s=300 if is_gpu else 120),
        Step(
            "suite",
            ("bench", "suite", *within(BUDGET_SHARE * 500), "--plot", "suite.png"),
            500,
            200,
            wanted_s=480 if is_gpu else None,
        ),
        Step("calibrate-quick", calibrate("--quick"), 90, 60, 60 if is_gpu else 30, has_own_roofs=True),
        Step("matmul-dtypes", matmul(usual, *within(BUDGET_SHARE * 240)), 240, 120),
        Step("odd-length", odd_length(2**28 if is_gpu else 2**22, *within(BUDGET_SHARE * 60)), 60, 20),
    ]


def calibrate(*words):
    """Return the words of the calibration."""
    return "bench", "calibrate", *words


def matmul(dtypes, *words):
    """Return the words of the matmul command, with its picture."""
    return "bench.matmul", "--dtype", dtypes, *words, "--plot", "matmul.png"


def odd_length(elements, *words):
    """Return the words that measure gelu on an even number of elements, and on one less, which no vector load ends."""
    return "bench.elementwise", "--op", "gelu", "--dtype", "bf16", "--shape", f"{elements},{elements - 1}", *words


BUDGET_SHARE = 0.85
"""Of the limit of a step, what its command is told to take: the rest is for imports, and for what it has begun."""


def within(seconds):
    """Return the words that let a command end by itself before its limit, and say what it left out."""
    return "--budget", f"{seconds:g}"


def comparisons(is_gpu):
    """Return a comparison of every version of each family with torch and torch-compile; without the tuned twins.

    On a GPU matmul is compared in fp8 too, which its first versions refuse.
    """
    steps = []
    for family, op, gpu_size, cpu_size in COMPARED:
        names = [name for name in provider_names(family) if not name.endswith((AUTOTUNE, FAST_ACCUMULATION))]
        names = [name for name in names if is_gpu or name in ("torch", "torch-compile")]
        words = ("bench", "compare", "--op", op, *(gpu_size if is_gpu else cpu_size), "--provider", ",".join(names))
        words = (*words, *within(BUDGET_SHARE * 120), "--plot", f"{op}.png")
        steps.append(Step(f"compare-{family.replace('_', '-')}", words, 120, 45))
        if family == "matmul" and is_gpu:
            steps.append(Step(COMPARED_IN_FP8, (*words, "--dtype", "fp8e4m3"), 120, 45))
    return steps


def whole_models(is_gpu):
    """Return a training step, decoding, the profile of a model, and the transfers between host and device."""
    step = ("bench.train_step", "--checkpoint", "none,full")
    model = () if is_gpu else ("--shape", "1x128,4x128,16x128", "--op", "decode-attention,decode-block")
    profiled = ("llama-3.2-1b", "--layers", "2", "--shape", "4x512") if is_gpu else ("tiny-llama", "--shape", "4x128")
    profile = ("bench", "profile", "--model", *profiled, "--backward", *within(BUDGET_SHARE * 120))
    return [
        Step("train-step", (*step, *within(BUDGET_SHARE * 140), "--plot", "train-step.png"), 140, 60),
        Step("decode", ("bench.decode", *model, *within(BUDGET_SHARE * 140), "--plot", "decode.png"), 140, 60),
        Step("profile", (*profile, "--plot", "profile.png"), 120, 45),
        Step("transfer", ("bench.transfer", *within(BUDGET_SHARE * 90)), 90, 45),
    ]


def statistics():
    """Return what says how far the numbers can be believed, the shorter ones first."""
    side_by_side, profiler_times, repeated_processes = (
        Step(name.replace("_", "-"), (f"bench.validation.{name}", *words, "--output", "found"), limit_s, needs_s)
        for name, (words, limit_s, needs_s) in STATISTICS.items()
    )
    false_verdicts = ("bench.validation.false_verdicts", "--rows", "120", "--planted", "20", "--minutes", "4")
    return [
        side_by_side,
        profiler_times,
        repeated_processes,
        Step("false-verdicts", false_verdicts, 300, 60, reports_by_1=False, kept_as="false-verdicts.txt"),
    ]


def python(step):
    """Return the command line of a step in this interpreter."""
    return [sys.executable, "-m", *step.words]


# ---- the command ---------------------------------------------------------------------------------------------------

USAGE, INTERRUPTED = 2, 130

GRACE_S = 20.0
"""What a command gets after Ctrl-C, to end a launch, print its table and draw its picture; pytest, to report."""

CLOSING_S = 5.0
"""Of each call: the last summary, and what is to be committed."""

PROBE_S = 300
"""Time in which the device must have answered."""

CRASH = re.compile(r"^Traceback \(most recent call last\)|: No module named ", re.MULTILINE)
"""In stderr: exit code 1 is no finding then."""

PROBE = """
import json, time
began = time.perf_counter()
import torch, triton, bench.matmul
from bench.harness.device import device
from bench.harness.measure.plan import has_dtype
took_s = time.perf_counter() - began
found = device.detect(None)
told = {"slug": found.slug, "name": found.name, "is_gpu": found.is_gpu, "has_fp8": has_dtype(found, "fp8e4m3")}
print(json.dumps(told | {"import_s": took_s}))
"""
"""In a process of its own, because a CUDA context takes memory and counts as another user of the GPU."""

DONE, FAILED, STOPPED, CUT, KILLED = "done", "failed", "stopped", "cut", "killed"
MEANINGS = {
    DONE: "ended by itself; exit code 1 is a finding: a wrong row, a slower version, a machine that is not fit",
    FAILED: "ended by itself with an error",
    STOPPED: "interrupted at its own limit of time; what it had finished is kept",
    CUT: "interrupted because the time of the call was over, or by Ctrl-C; what it had finished is kept",
    KILLED: "ended with the whole call; what it had finished is kept",
}
SHOWN_LINES, WRONG_ROWS = 12, 10
"""Last lines of stderr, and wrong rows, that are shown of a step that did not end well."""

KEPT = ("*.png", "*.svg", "found/*.json", "found/*.md")
"""What a step leaves in its folder that is published; the tools write what they found into `found`."""


class PublishError(Exception):
    """What was asked for cannot be; the message is one line."""


def parser():
    """Return the parser of the command line."""
    made = Parser(prog="python -m bench.validation.publish", description=__doc__)
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
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that `timeout` ends it as Ctrl-C does
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


def list_steps():
    """Print the plan for a GPU, and what of it a machine without one leaves out."""
    steps, _ = plan(is_gpu=True)
    _, without_gpu = plan(is_gpu=False)
    for step in steps:
        also = f"  ({without_gpu[step.name]})" if step.name in without_gpu else ""
        print(f"{step.name:<28} at most {step.limit_s:>3g} s  {step.command}{also}")
    return 0


def publish(args, deadline):
    """Run what is to be run until `deadline`, a reading of `time.monotonic`, and return the exit code.

    Raises:
        PublishError: a step has no such name, or the folder is another device's.
    """
    folder, archive = args.output.resolve(), args.archive.resolve() if args.archive else None
    if archive is not None and archive.is_relative_to(folder):
        raise PublishError(f"--archive {args.archive} lies in the folder that it packs; name a file outside of it")
    for place in (folder, *([archive.parent] if archive else [])):
        place.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        device = device_of(folder)
        steps, left_out = plan(device["is_gpu"], has_fp8=device["has_fp8"])
        waiting = chosen(steps, left_out, args, counting(attempts(folder)))

        def sum_up():
            """Write what follows from the attempts; what cannot be written stops no measurement."""
            try:
                write_output(folder / "summary.md", summary(folder, device, steps, left_out).encode())
                collect(folder, device, steps)
                if archive is not None:
                    pack(folder, archive)
            except (OSError, StoreError) as error:
                say(f"not summed up: {error}")

        try:
            ended_well = run_all(waiting, folder, device, deadline, sum_up)
        finally:
            with undisturbed():
                sum_up()
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
    """Return the device of this machine; its slug is kept in the folder.

    Raises:
        PublishError: the folder holds the record of another.
    """
    device, path = probe(), folder / "device.json"
    kept = read_json(path).get("slug", device["slug"])
    if kept != device["slug"]:
        raise PublishError(
            f"{folder} is the record of {printable(kept)}, and this is {device['slug']}; name another --output"
        )
    write_output(path, json.dumps(device).encode())
    return device


def read_json(path):
    """Return the object that a file holds; an empty one where it is missing, torn or something else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def probe():
    """Return what a process of its own tells of the device, with the seconds that its imports have taken.

    Raises:
        PublishError: it cannot.
    """
    command = [sys.executable, "-c", PROBE]
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=PROBE_S)
        return json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        why = f"no answer in {PROBE_S:g} s"
    except (ValueError, IndexError):
        why = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    raise PublishError(f"the device cannot be told: {why}")


def environment(**also):
    """Return the variables of a step: this repository is in front, and what is printed is there at once."""
    paths = os.pathsep.join(part for part in (str(ROOT), os.environ.get("PYTHONPATH")) if part)
    return {**os.environ, "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1", **also}


def chosen(steps, left_out, args, last):
    """Return the steps to run now: those that no attempt has finished; those that were tried before come last.

    Raises:
        PublishError: a step was named that there is not.
    """
    names = [step.name for step in steps]
    for name in args.step or ():
        if name not in names:
            why = f"left out: {left_out[name]}" if name in left_out else f"there are: {', '.join(names)}"
            raise PublishError(f"--step {name}: {why}")
    states = {name: attempt["state"] for name, attempt in last.items()}
    wanted = [step for step in steps if args.step is None or step.name in args.step]
    open_steps = [step for step in wanted if args.again or states.get(step.name) != DONE]
    turns = {None: 0, DONE: 0, CUT: 1}  # whatever had its turn must not keep the others from theirs, call after call
    return sorted(open_steps, key=lambda step: turns.get(states.get(step.name), 2))


# ---- one step after the other ---------------------------------------------------------------------------------------


def run_all(waiting, folder, device, deadline, sum_up):
    """Run steps while there is time, and return whether all that were started are done.

    Raises:
        KeyboardInterrupt: after the step that it ended is kept.
    """
    ended_well, is_first = True, True
    for step in waiting:
        left_s = deadline - time.monotonic() - GRACE_S - CLOSING_S
        if left_s <= 0 or (left_s < step.needs_s and not is_first):
            say(f"{step.name}: left for the next call: it needs {step.needs_s:g} s, {max(0.0, left_s):.0f} s are left")
            continue
        state, ended_by = run_step(step, folder, device, min(step.limit_s, left_s))
        sum_up()
        ended_well, is_first = ended_well and state in (DONE, CUT), False
        if ended_by == "interrupt":
            raise KeyboardInterrupt
    return ended_well


def run_step(step, folder, device, limit_s):
    """Run one step, keep how it ended, and return its state and what ended it."""
    path = next_folder(folder, step.name)
    runs = path / "runs" if step.has_own_roofs else folder / "runs"
    before, started_at = set(runs.rglob("*.jsonl")), datetime.now(UTC).isoformat(timespec="seconds")
    attempt = {"command": step.command, "started_at": started_at, "limit_s": limit_s, "state": KILLED}
    write_output(path / "step.json", json_text(attempt).encode())  # stays so where this process is killed
    say(f"{step.name}: at most {limit_s:.0f} s: {step.command}")
    variables = environment(RIDGEPOINT_RUNS=str(runs), TRITON_CACHE_DIR=str(folder / "triton"))
    exit_code, ended_by, wall_s = run(python(step), path, variables, limit_s)
    with undisturbed():
        state = state_of(step, exit_code, ended_by, limit_s, path)
        attempt |= {"state": state, "exit_code": exit_code, "wall_s": wall_s}
        attempt |= outcome(sorted(set(runs.rglob("*.jsonl")) - before))
        if step.wanted_s and state == DONE:
            took_s = wall_s - device["import_s"] * step.is_after_import
            attempt["wanted"] = f"below {step.wanted_s:g} s: {'met' if took_s < step.wanted_s else 'missed'}"
        write_output(path / "step.json", json_text(attempt).encode())
    say(f"{step.name}: {state}, exit code {exit_code}, {wall_s:.1f} s")
    return state, ended_by


def run(command, folder, variables, limit_s):
    """Run a command in `folder`; return its exit code, what ended it (`itself`, `limit`, `interrupt`), and seconds.

    When `limit_s` is over, or the user presses Ctrl-C, it gets one too. `GRACE_S` later its process group is killed, as
    what it leaves behind is in any case. It dies with this process.
    """
    began, ended_by = time.perf_counter(), "itself"
    with (folder / "stdout.txt").open("wb") as out, (folder / "stderr.txt").open("wb") as errors:
        process = subprocess.Popen(
            command, cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=out, stderr=errors,
            start_new_session=True, preexec_fn=partial(prepare, os.getpid()),
        )  # fmt: skip
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        ended_by = "limit"
    except KeyboardInterrupt:
        ended_by = "interrupt"
    with undisturbed():
        if ended_by != "itself":
            signal_group(process.pid, signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
        signal_group(process.pid, signal.SIGKILL)
        process.wait()
    return process.returncode, ended_by, time.perf_counter() - began


def prepare(parent):
    """In the new process: it dies with its parent, and Ctrl-C reaches it also where this process was to ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with(parent)


def signal_group(group, number):
    """Send a signal to what is left of a process group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


@contextmanager
def undisturbed():
    """Within it a further Ctrl-C changes nothing: who is impatient would leave processes behind."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def state_of(step, exit_code, ended_by, limit_s, path):
    """Return the state of an attempt that has ended."""
    if ended_by == "interrupt" or (ended_by == "limit" and limit_s < step.limit_s):
        return CUT
    if ended_by == "limit":
        return STOPPED
    is_finding = exit_code == 1 and step.reports_by_1 and not CRASH.search(text_of(path / "stderr.txt"))
    return DONE if exit_code == 0 or is_finding else FAILED


def outcome(files):
    """Return what run files say: rows by status, and the wrong ones with their reasons."""
    statuses, wrong = Counter(), []
    for file in files:
        try:
            records = load_run(file).records
        except StoreError as error:
            wrong.append(f"{file.name}: {error}")
            continue
        statuses.update(record.status for record in records)
        bad = [record for record in records if record.status in ("invalid", "failed")]
        wrong += [f"{r.op} {r.case} {r.dtype} {r.provider}: {r.status}: {r.reason}" for r in bad]
    return {"rows": dict(statuses), "wrong": wrong[:WRONG_ROWS]}


# ---- what a folder holds ---------------------------------------------------------------------------------------------


def attempts(folder):
    """Return all attempts that a folder holds, oldest first for each step; a torn or foreign one counts as killed."""

    def number_of(path):
        return int(path.suffix[1:]) if path.suffix[1:].isdecimal() else 1

    found = []
    for path in sorted((folder / "steps").glob("*"), key=lambda path: (path.stem, number_of(path))):
        kept = read_json(path / "step.json")
        kept = kept if kept.get("state") in MEANINGS else {"state": KILLED}
        found.append({"rows": {}, "wrong": [], **kept, "folder": path, "name": path.stem})
    return found


def next_folder(folder, name):
    """Return the folder of the next attempt at a step, newly made."""
    tried = sum(attempt["name"] == name for attempt in attempts(folder))
    path = folder / "steps" / (f"{name}.{tried + 1}" if tried else name)
    path.mkdir(parents=True)
    return path


def counting(found):
    """Return of each step the attempt that counts: the last one that is done, else the last one."""
    last = {}
    for attempt in found:
        before = last.get(attempt["name"])
        if before is None or attempt["state"] == DONE or before["state"] != DONE:
            last[attempt["name"]] = attempt
    return last


def text_of(path):
    """Return what a step printed, as no terminal obeys it; nothing where the file is gone."""
    with suppress(OSError):
        return "\n".join(map(printable, path.read_text("utf-8", "replace").splitlines()))
    return ""


def summary(folder, device, steps, left_out):
    """Return how each step ended as Markdown, in the order of the plan."""
    last = counting(attempts(folder))
    names = [step.name for step in steps]
    ordered = sorted(last.values(), key=lambda a: names.index(a["name"]) if a["name"] in names else len(names))
    rows = [
        {
            "step": attempt["name"],
            "state": attempt["state"],
            "exit": str(attempt.get("exit_code", "")),
            "wall s": f"{attempt['wall_s']:.1f}" if attempt.get("wall_s") else "",
            "wanted": attempt.get("wanted", ""),
            "outcome": outcome_text(attempt),
            "command": attempt.get("command", ""),
        }
        for attempt in ordered
    ]
    missing = [name for name in names if name not in last]
    lines = [f"# {device['name']} ({device['slug']})\n"]
    lines.append(markdown_text(rows, tuple(rows[0])) if rows else "No step was started yet.\n")
    lines += [f"`{state}`: {MEANINGS[state]}.\n" for state in dict.fromkeys(row["state"] for row in rows)]
    lines += [f"Not started yet: {', '.join(missing)}.\n"] if missing else []
    lines += [f"- left out: {name}: {why}" for name, why in left_out.items()]
    for attempt in ordered:
        last_lines = text_of(attempt["folder"] / "stderr.txt").splitlines()[-SHOWN_LINES:]
        shown = [*map(printable, attempt["wrong"]), *(last_lines if attempt["state"] != DONE else [])]
        lines += ["\n".join([f"\n## {attempt['name']}\n", "```", *shown, "```"])] if shown else []
    return "\n".join(lines) + "\n"


def outcome_text(attempt):
    """Return rows by status; else what the doctor or the first look found to be bad, or the last line of stdout."""
    if attempt["rows"]:
        return ", ".join(f"{count} {status}" for status, count in attempt["rows"].items())
    page = read_json(attempt["folder"] / "stdout.txt")
    findings = page.get("findings", page.get("lines"))
    if findings is not None:
        bad = [f"{one['name']}: {one['value']}" for one in findings if one["status"] == "bad"]
        return printable(f"bad: {'; '.join(bad)}" if bad else "nothing is bad")
    last = (text_of(attempt["folder"] / "stdout.txt").splitlines() or [""])[-1]
    return re.sub(r"^=+ | =+$", "", last)[:100]


def collect(folder, device, steps):
    """Make `published/<slug>` anew: run files, what the attempts that count have left, and the ceilings.

    Run files that cannot be read stay where they are.
    """
    target, unfinished = folder / "published", folder / ".published.partial"
    shutil.rmtree(unfinished, ignore_errors=True)
    place = unfinished / device["slug"]
    place.mkdir(parents=True)
    for file in filter(is_whole, (folder / "runs").rglob("*.jsonl")):
        shutil.copyfile(file, place / file.name)
    printed = {step.name: step.kept_as for step in steps if step.kept_as}
    for name, attempt in counting(attempts(folder)).items():
        for file in sorted(path for pattern in KEPT for path in attempt["folder"].glob(pattern)):
            is_picture = file.parent == attempt["folder"]
            shutil.copyfile(file, place / (f"{name}{file.suffix}" if is_picture else file.name))
        if name in printed and (attempt["folder"] / "stdout.txt").is_file():
            shutil.copyfile(attempt["folder"] / "stdout.txt", place / printed[name])
    # Those that hold most, not the newest: another machine of the same name, as a later call may get, finds the first
    # ones stale, and measures in a hurry the few that its rows are judged by.
    kept = [read_json(path) for path in (folder / "runs").rglob("ceilings-*.json")]
    most = max(kept, key=lambda data: len(data.get("entries") or ()), default={})
    if most:
        most.pop("identity", None)  # of the machine
        (place / "ceilings.json").write_text(json.dumps(most, indent=1) + "\n", encoding="utf-8")
    (place / "README.md").write_text(summary(folder, device, steps, {}).partition("\n## ")[0], encoding="utf-8")
    shutil.rmtree(target, ignore_errors=True)
    unfinished.replace(target)


def is_whole(file):
    """Return whether a run file can be published: it has records, and no line that cannot be read."""
    try:
        run_found = load_run(file)
    except StoreError:
        return False
    return bool(run_found.records) and not run_found.problems


def pack(folder, path):
    """Pack a whole record into one .tar.gz; the old archive stays until the new one is complete.

    Raises:
        OSError: it cannot be written.
    """
    base = path.with_name(f".{path.name}.{os.getpid()}.partial")
    unfinished = base.with_name(f"{base.name}.tar.gz")
    try:
        shutil.make_archive(str(base), "gztar", folder.parent, folder.name)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


if __name__ == "__main__":
    raise SystemExit(main())
