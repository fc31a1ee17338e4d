"""Measure a GPU that is available for fifteen minutes, in two calls.

    python3 tests/validation/rented_gpu.py wheels
    python3 tests/validation/rented_gpu.py 1 545
    python3 tests/validation/rented_gpu.py 2 225
    python3 tests/validation/rented_gpu.py 1 120 truth

`wheels` prints how to download the required packages that the machine lacks, and how to start both
calls there. A call runs its steps in order, each with a time limit, for SECONDS; names of steps run
only these. Call 1 has the facts that decide about call 2, and the most informative rows.

After each step, $OUT/record-CALL.tgz is replaced (default of OUT: out). It has the output of each
step, run files, plots and traces, and the digest. The digest says how each step ended, which files
were too large for the archive and, if the step `truth` ran, whether the GPU can be trusted.

exit codes: 0 all steps ended with 0; 1 another exit code, or no time was left; 2 usage, or OUT
cannot be written; 130 interrupted, the files of the steps are saved
"""

import argparse
import io
import math
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]

INSTALLED = (
    "torch",
    "triton",
    "numpy",
    "scipy",
    "pandas",
    "pyarrow",
    "matplotlib",
    "rich",
    "opt-einsum",
    "psutil",
    "nvidia-ml-py",
    "pytest",
    "tqdm",
)
"""Packages of the machine, besides those that they require."""

PYTHON = "3.12"
"""Python version of the machine."""

GRACE_S = 8.0
"""Time for a command to print its table after Ctrl-C."""

RESERVE_S = 12.0
"""Time kept free at the end of a call, to stop the last step and to write the archive."""

MIN_SHARE = 1 / 3
"""A step starts only if this fraction of its limit is left."""

KILL_S = 5.0
"""Time for a killed command to end; one that waits for the driver may take longer."""

MAX_FILE_BYTES = 256 * 2**20
MAX_ARCHIVE_BYTES = 15 * 2**20
"""The largest files are left out of the archive until it is no larger; 16 MiB can be copied."""

MARK = "ROOFMARK_STEP"
"""Environment variable by which the processes of a step are found, whatever their session."""

NO_TIME = "no time was left"
STDERR_CHARACTERS = 600
STDOUT_CHARACTERS = 900


class Step(NamedTuple):
    """A command with a time limit; `words` are the arguments of Python, or start with `bash`."""

    name: str
    limit_s: float
    words: tuple[str, ...]

    def command(self):
        return list(self.words) if self.words[0] == "bash" else [sys.executable, *self.words]


def module(text, *words):
    """Return the words that run a module; further words may have spaces."""
    return ("-m", *text.split(), *words)


FACTS = f"""nvidia-smi
uname -a
nproc
gcc --version
nvidia-smi -q -d CLOCK,POWER,PERFORMANCE,ECC
{shlex.quote(sys.executable)} -m pip list
nvidia-smi --query-gpu=name,driver_version,clocks.sm,power.limit,temperature.gpu --format=csv"""
PYTEST_OPTIONS = "-m gpu -q --tb=line -p no:cacheprovider --junit-xml quick.xml"
QUICK_TESTS = str(ROOT / "tests/bench/ops/test_gpu_quick.py")
MATMULS = "bench compare --op matmul --dtype bf16 --shape 8192"
FP8 = "bench.matmul --dtype fp8e4m3 --shape 4096,8192"
PROFILE = "bench profile --model tiny-llama --dtype bf16 --train --trace trace.json"
COMPILED = "bench.elementwise --op gelu,swiglu --provider torch,torch-compile,triton"
VERSIONS = "torch,triton-v3,triton-v4,triton-v5"

CALL_S = {"1": 545, "2": 225}
"""Time limit of each call, as `wheels` prints it."""

# Tables, not JSON: the digest shows their last lines, and all figures are in the run files.
STEPS = {
    "1": (
        Step("facts", 15, ("bash", "-c", FACTS)),
        Step("truth", 60, module("tests.validation.gpu_probe")),
        Step("tests-quick", 115, module(f"pytest {PYTEST_OPTIONS}", QUICK_TESTS)),
        Step(
            "calibrate",
            100,
            module("bench calibrate --quick -v --dtype bf16,fp8e4m3 --plot calibrate.png"),
        ),
        Step("suite", 185, module("bench suite --budget 150 --plot suite.png")),
        Step("compare", 58, module(f"{MATMULS} --provider {VERSIONS} --budget 40")),
    ),
    "2": (
        Step("fp8", 29, module(f"{FP8} --budget 10")),
        Step("profile", 32, module(f"{PROFILE} --budget 10")),
        Step("transfer", 26, module("bench.transfer --budget 8")),
        Step("train", 29, module("bench.train_step --budget 10")),
        Step("decode", 29, module("bench.decode --budget 10")),
        Step("compiled", 33, module(f"{COMPILED} --budget 12")),
        Step("fleet", 35, module("bench.fleet --quick --deadline 28")),
    ),
}
"""Steps of each call. The second is for the minutes that are left, while the machine is warm."""


def missing_requirements():
    """Return the required packages that the machine lacks, with their versions."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements = [text.partition(";")[0].strip() for text in project["dependencies"]]
    return [text for text in requirements if name_of(text) not in INSTALLED]


def name_of(requirement):
    """Return the name of a requirement as package indexes spell it."""
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0]).lower()


def print_wheels():
    wheels = missing_requirements()
    options = f"--only-binary :all: --python-version {PYTHON} --no-deps"
    print("# here, in the root of the repository:")
    print(f"python3 -m pip download {options} --dest .whl {shlex.join(wheels)}")
    print("# on the machine:")
    print("python3 -m pip install -q --no-index --no-deps --target SITE .whl/*.whl")
    for call, seconds in CALL_S.items():
        print(f"PYTHONPATH=SITE python3 tests/validation/rented_gpu.py {call} {seconds}")


def variables(directory):
    """Return the environment of a step, which runs in the directory of its files."""
    paths = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), *(str(Path(path).resolve()) for path in paths)]),
        "ROOFMARK_RUNS": str(directory / "runs"),
        "PYTHONUNBUFFERED": "1",
        "COLUMNS": "160",
    }


def run_step(step, directory, limit_s):
    """Run a step, and return its exit code, None if it was stopped at the limit.

    At the limit the command gets Ctrl-C; `GRACE_S` later it and its child processes are killed.
    """
    mark = f"{os.getpid()}-{step.name}"
    with (
        (directory / f"{step.name}.out").open("wb") as out,
        (directory / f"{step.name}.err").open("wb") as errors,
    ):
        process = subprocess.Popen(
            step.command(),
            cwd=directory,
            env=variables(directory) | {MARK: mark},
            stdout=out,
            stderr=errors,
            start_new_session=True,
        )
        exit_code = None
        try:
            with suppress(subprocess.TimeoutExpired):
                exit_code = process.wait(limit_s)
            if exit_code is None:
                process.send_signal(signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            kill_marked(mark)
            with suppress(subprocess.TimeoutExpired):
                process.wait(KILL_S)
    return exit_code


def kill_marked(mark):
    """Kill the processes of a step that started sessions of their own, if psutil is installed."""
    try:
        import psutil
    except ImportError:
        return
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == mark:
                process.kill()


def text_of(directory, name):
    path = directory / name
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def tail(text, characters):
    """Return the last whole lines of a text."""
    if len(text) <= characters:
        return text
    kept = text[-characters:]
    return kept.partition("\n")[2] or kept


def file_sizes(directory):
    """Return the bytes of each regular file, the smallest first."""
    sizes = {}
    for folder, _, names in os.walk(directory):
        for path in (Path(folder, name) for name in names):
            with suppress(OSError):  # it has vanished
                status = path.lstat()
                if stat.S_ISREG(status.st_mode):
                    sizes[path] = status.st_size
    return dict(sorted(sizes.items(), key=lambda entry: entry[1]))


def write_archive(directory, paths, digest, target):
    with tarfile.open(target, "w:gz", compresslevel=1) as archive:

        def add(name, content):
            entry = tarfile.TarInfo(f"record/{name}")
            entry.size, entry.mtime = len(content), int(time.time())
            archive.addfile(entry, io.BytesIO(content))

        add("digest.txt", digest.encode())
        for path in paths:
            # Read before its entry is written: a file that shrinks would break the archive.
            try:
                content = path.read_bytes()
            except OSError:  # it has vanished
                continue
            add(path.relative_to(directory), content)


def save_archive(directory, path, digest):
    """Replace the archive, so that the last complete one remains if the machine is lost.

    Returns the digest, with the files that were left out.
    """
    partial = path.with_suffix(".partial")
    sizes = file_sizes(directory)
    kept = [file for file, size in sizes.items() if size < MAX_FILE_BYTES]
    while True:
        left_out = [
            f"{file.relative_to(directory)} ({size / 1e6:.0f} MB)"
            for file, size in sizes.items()
            if file not in kept
        ]
        text = f"{digest}\nleft out of the archive: {', '.join(left_out)}" if left_out else digest
        write_archive(directory, kept, text, partial)
        if not kept or partial.stat().st_size <= MAX_ARCHIVE_BYTES:
            break
        kept.pop()
    partial.replace(path)
    return text


def ending(step, exit_code, directory):
    """Return how a step ended, with the last line of its output, or of its errors if it failed."""
    printed = text_of(directory, f"{step.name}.out").strip()
    errors = text_of(directory, f"{step.name}.err").strip()
    if exit_code == 0:
        how, text = "ok", printed
    else:
        how = "stopped at its limit" if exit_code is None else f"exit {exit_code}"
        text = errors or printed
    return f"{how}: {text.splitlines()[-1][:200]}" if text else how


def digest_of(endings, directory):
    lines = [f"{name:<12} {text}" for name, text in endings.items()]
    if endings.get("truth", NO_TIME) != NO_TIME:
        truth = text_of(directory, "truth.out").strip()
        lines.append(truth or "truth printed nothing: see truth.err")
    return "\n".join(lines)


def saved_digest(endings, directory, archive):
    """Save the archive and return the digest; it says so if the archive cannot be written."""
    digest = digest_of(endings, directory)
    try:
        return f"{save_archive(directory, archive, digest)}\nall files: {archive}"
    except OSError as error:
        return f"{digest}\nthe archive was not written: {error}"


def call(steps, directory, archive, limit_s):
    """Run steps within the limit, print a digest, and return the exit code of the call."""
    deadline = time.monotonic() + limit_s - RESERVE_S
    endings: dict[str, str] = {}
    exit_codes: list[int | None] = []
    try:
        for step in steps:
            began = time.monotonic()
            if deadline - began < MIN_SHARE * step.limit_s:
                endings[step.name] = NO_TIME
                exit_codes.append(None)
                continue
            endings[step.name] = "interrupted"  # unless it ends
            exit_code = run_step(step, directory, min(step.limit_s, deadline - began))
            exit_codes.append(exit_code)
            seconds = time.monotonic() - began
            endings[step.name] = f"{seconds:.0f} s, {ending(step, exit_code, directory)}"
            print(f"== {step.name}: {endings[step.name]}")
            print(tail(text_of(directory, f"{step.name}.err"), STDERR_CHARACTERS))
            print(tail(text_of(directory, f"{step.name}.out"), STDOUT_CHARACTERS), flush=True)
            saved_digest(endings, directory, archive)
        code = 0 if all(exit_code == 0 for exit_code in exit_codes) else 1
    except KeyboardInterrupt:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # a second one must not end the saving
        code = 130
    digest = saved_digest(endings, directory, archive)
    print(f"== digest\n{digest}", flush=True)
    return code


def finite_seconds(text):
    seconds = float(text)
    if not (math.isfinite(seconds) and seconds > 0):
        raise argparse.ArgumentTypeError(f"expected a finite number above 0, not '{text}'")
    return seconds


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("call", choices=("wheels", *STEPS))
    parser.add_argument("seconds", type=finite_seconds, nargs="?", help="time limit of the call")
    parser.add_argument("steps", nargs="*", help="run only these steps")
    args = parser.parse_args(argv)
    if args.call == "wheels":
        print_wheels()
        return 0
    if args.seconds is None:
        parser.error("expected SECONDS, the time limit of the call")
    steps = [step for step in STEPS[args.call] if not args.steps or step.name in args.steps]
    if unknown := {*args.steps} - {step.name for step in steps}:
        known = ", ".join(step.name for step in STEPS[args.call])
        parser.error(f"unknown step '{min(unknown)}' (choose from {known})")
    out = Path(os.environ.get("OUT", "out")).resolve()
    directory = Path(tempfile.gettempdir(), "roofmark-record")  # both calls use the same ceilings
    if args.call == "1" and not args.steps:
        shutil.rmtree(directory, ignore_errors=True)  # files of an earlier machine or attempt
    for path in (out, directory):
        try:
            path.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=path).close()
        except OSError as error:
            print(f"cannot write to {path}: {error.strerror}", file=sys.stderr)
            return 2
    return call(steps, directory, out / f"record-{args.call}.tgz", args.seconds)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    sys.exit(main())
