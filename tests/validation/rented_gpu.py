"""Measure a GPU that is available for fifteen minutes, in two calls.

    python3 tests/validation/rented_gpu.py wheels
    python3 tests/validation/rented_gpu.py 1 545
    python3 tests/validation/rented_gpu.py 2 225
    python3 tests/validation/rented_gpu.py 1 120 truth

`wheels` prints how to download the required packages that the machine lacks, and how to start both
calls there. A call runs its steps in order, each with a time limit, for SECONDS; names of steps run
only these. Call 1 has the facts that decide about call 2, and the most informative rows.

After each step, $OUT/record-CALL.tgz is replaced (default of OUT: out). It has the output of each
step, run files, plots and traces. The digest on stdout says how each step ended and, if the step
`truth` ran, whether the GPU can be trusted.

exit codes: 0 all steps ended with 0; 1 another exit code, or no time was left; 2 usage
"""

import argparse
import os
import re
import shlex
import signal
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

MAX_FILE_BYTES = 8 * 2**20
"""Larger files are left out of the archive, which may have 16 MiB."""

STDERR_CHARACTERS = 600
STDOUT_CHARACTERS = 900


class Step(NamedTuple):
    """A command with a time limit; `arguments` are those of Python, or of bash after `bash`."""

    name: str
    limit_s: float
    arguments: str

    def command(self):
        words = shlex.split(self.arguments.format(root=ROOT))
        return words if words[0] == "bash" else [sys.executable, *words]


FACTS = "uname -a; nproc; gcc --version; nvidia-smi -q -d CLOCK,POWER,PERFORMANCE,ECC; nvidia-smi"
PYTEST_OPTIONS = "-m gpu -q --tb=line -p no:cacheprovider --junit-xml quick.xml"
QUICK_TESTS = "{root}/tests/bench/ops/test_gpu_quick.py"
MATMULS = "bench compare --op matmul --dtype bf16 --shape 8192"
COMPILED = "torch,torch-compile,triton"
VERSIONS = "torch,triton-v3,triton-v4,triton-v5"

STEPS = {
    "1": (
        Step("facts", 15, f"bash -c '{shlex.quote(sys.executable)} -m pip list; {FACTS}'"),
        Step("truth", 60, "-m tests.validation.gpu_probe"),
        Step(
            "tests-quick",
            120,
            f"-m pytest {PYTEST_OPTIONS} {QUICK_TESTS}",
        ),
        Step(
            "calibrate",
            100,
            "-m bench calibrate --quick -v --dtype bf16,fp8e4m3 --plot calibrate.png",
        ),
        Step("suite", 190, "-m bench suite --budget 155 --plot suite.png"),
        Step("compare", 60, f"-m {MATMULS} --provider {VERSIONS} --budget 40"),
    ),
    "2": (
        Step("fp8", 40, "-m bench.matmul --dtype fp8e4m3 --shape 4096,8192 --budget 25 --kernels"),
        Step(
            "profile",
            60,
            "-m bench profile --model tiny-llama --train --budget 15 --trace trace.json",
        ),
        Step("transfer", 45, "-m bench.transfer --budget 30"),
        Step("train", 45, "-m bench.train_step --budget 30"),
        Step("decode", 45, "-m bench.decode --budget 30"),
        Step(
            "compiled",
            45,
            f"-m bench.elementwise --op gelu,swiglu --provider {COMPILED} --budget 30",
        ),
        Step("fleet", 70, "-m bench.fleet --quick --deadline 60"),
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
    for call, seconds in (("1", 545), ("2", 225)):
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
    with (
        (directory / f"{step.name}.out").open("wb") as out,
        (directory / f"{step.name}.err").open("wb") as errors,
    ):
        process = subprocess.Popen(
            step.command(),
            cwd=directory,
            env=variables(directory),
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
            process.wait()
    return exit_code


def text_of(directory, name):
    path = directory / name
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def save_archive(directory, path):
    """Replace the archive, so that the last complete one remains if the machine is lost."""
    partial = path.with_suffix(".partial")
    with tarfile.open(partial, "w:gz") as archive:
        archive.add(
            directory, "record", filter=lambda entry: entry if entry.size < MAX_FILE_BYTES else None
        )
    partial.replace(path)


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


def call(steps, directory, archive, limit_s):
    """Run steps within the limit, print a digest, and return whether all ended with 0."""
    deadline = time.monotonic() + limit_s - RESERVE_S
    endings: dict[str, str] = {}
    exit_codes: list[int | None] = []
    for step in steps:
        began = time.monotonic()
        if deadline - began < MIN_SHARE * step.limit_s:
            endings[step.name] = "no time was left"
            exit_codes.append(None)
            continue
        exit_code = run_step(step, directory, min(step.limit_s, deadline - began))
        exit_codes.append(exit_code)
        seconds = time.monotonic() - began
        endings[step.name] = f"{seconds:.0f} s, {ending(step, exit_code, directory)}"
        print(f"== {step.name}: {endings[step.name]}")
        print(text_of(directory, f"{step.name}.err")[-STDERR_CHARACTERS:])
        print(text_of(directory, f"{step.name}.out")[-STDOUT_CHARACTERS:], flush=True)
        save_archive(directory, archive)
    print("== digest")
    for name, text in endings.items():
        print(f"{name:<12} {text}")
    if " s, " in endings.get("truth", ""):
        print(text_of(directory, "truth.out").strip() or "truth printed nothing: see truth.err")
    print(f"all files: {archive}", flush=True)
    return all(exit_code == 0 for exit_code in exit_codes)


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("call", choices=("wheels", *STEPS))
    parser.add_argument("seconds", type=float, nargs="?", help="time limit of the call")
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
    for path in (out, directory):
        path.mkdir(parents=True, exist_ok=True)
    archive = out / f"record-{args.call}.tgz"
    return 0 if call(steps, directory, archive, args.seconds) else 1


if __name__ == "__main__":
    sys.exit(main())
