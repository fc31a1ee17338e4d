"""The paths: each takes a function and the twin, and returns an answer.

An answer has the keys of a record, `status`, `reason`, `flags`, `median_s`, and may have a
`verdict`, and `left`: what the function left behind.
"""

import json
import os
import pkgutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import partial
from multiprocessing import get_context

import psutil
import pytest
import torch

import bench
from tests.validation.adversary.catalog import CASES, FOLDER, ROOT, SHAPES

BUDGET_S = 0.3
"""Time to measure a function, or to compare two."""
CALL_LIMIT_S = 15
"""`--timeout` of the commands: what a function that hangs takes."""
COMMAND_LIMIT_S = 240
FORK_LIMIT_S = 40
"""Times after which a path is stopped, generous for a busy machine."""
MARK = "ROOFMARK_ADVERSARY"
"""Environment variable by which the processes of a command are found."""


def finished(*words):
    """Run `python -m WORDS`; return its exit code, None if it was stopped, its output, the last
    line of its errors, and how many processes it left, which are killed.
    """
    mark = str(time.monotonic_ns())
    code = None
    # Files, because a process that is left would keep a pipe open.
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        with suppress(subprocess.TimeoutExpired):
            code = subprocess.run(
                [sys.executable, "-m", *words],
                cwd=ROOT,
                env=os.environ | {MARK: mark},
                stdout=output,
                stderr=errors,
                timeout=COMMAND_LIMIT_S,
                check=False,
            ).returncode
        time.sleep(0.5)
        left = kill_marked(mark)
        output.seek(0)
        errors.seek(0)
        return code, output.read(), errors.read().strip().rpartition("\n")[2], left


def kill_marked(mark):
    """Kill all processes with the mark; return their number."""
    left = 0
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK) == mark:
                process.kill()
                left += 1
    return left


def command(path, subject):
    """Return the answers of a command about the function and its twin."""
    names = dict.fromkeys((f"{FOLDER}/honest.py:{subject.op}", subject.twin, subject.provider))
    shapes = SHAPES[subject.op]
    if path == "op":
        op = subject.op.removeprefix("long").removeprefix("big")
        case = CASES.get(subject.op, shapes.partition(",")[0])
        words = [op, "--shape", case, "--provider", f"{subject.twin},{subject.provider}"]
    else:
        words = ["compare", *names, "--shape", shapes, "--fill", "normal", "--budget", "1"]
    words += ["--dtype", subject.dtype, "--device", "cpu", "--timeout", str(CALL_LIMIT_S)]
    code, output, error, left = finished("bench", *words, "--no-save", "--format", "json", "-q")
    status = "refused" if code == 2 and "error: " in error else "lost"
    missing = {"status": status, "reason": f"exit code {code}: {error}"}
    answers = dict.fromkeys((subject.twin, subject.provider), missing)
    if output.startswith("{"):
        document = json.loads(output)
        if path == "compare":
            answers[f"{FOLDER}/honest.py:{subject.op}"] = {"status": "ok"}
        for row in [*document.get("records", ()), *document.get("unmatched", ())]:
            answers[row["provider"]] = row
        for row in document.get("rows", ()):
            row |= {"flags": row["flags_candidate"], "median_s": row["candidate_s"]}
            answers[row["candidate"]] = row | {"status": "ok"}
    if left:
        answers[subject.provider] |= {"left": "a process"}
    return answers[subject.provider], answers[subject.twin]


def forked(path, subject, provider):
    """Return the answer of a path of the Python API, in a fork of this process."""
    pool = ProcessPoolExecutor(1, get_context("fork"))
    try:
        return pool.submit(answer, path, subject, provider).result()
    except BrokenProcessPool:
        return {"status": "lost", "reason": f"the process ended, or hung for {FORK_LIMIT_S} s"}


def answer(path, subject, provider):
    signal.alarm(FORK_LIMIT_S)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    before = settings()
    try:
        found = PYTHON_PATHS[path](function_of(provider), subject)
    except BaseException as error:
        found = {"status": "raised", "reason": f"{type(error).__name__}{error.args}"}
    if settings() != before:
        found["left"] = "settings"
    return found


def function_of(provider):
    return pkgutil.resolve_name(provider.replace(".py", "").replace("/", "."))


def settings():
    """Return settings that a function must not leave changed."""
    return (
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.tensor([1e-40]).mul(1).item() > 0,  # whether denormals are kept
    )


def inputs_of(subject):
    """Return normal random inputs."""
    dtype = torch.bfloat16 if subject.dtype == "bf16" else torch.float32
    shapes = [map(int, shape.split("x")) for shape in SHAPES[subject.op].split(",")]
    return tuple(torch.randn(*shape).to(dtype) for shape in shapes)


def facts(record):
    return {
        "status": record.status,
        "reason": record.reason,
        "flags": record.flags,
        "median_s": record.median_s,
    }


def measured(function, subject):
    return facts(bench.measure(function, *inputs_of(subject), budget_s=BUDGET_S))


def swept(function, subject):
    make = partial(inputs_of, subject)
    functions = {"function": function}
    frame = bench.sweep(functions, [1], inputs=lambda *_: make(), budget_s=BUDGET_S)
    (row,) = frame.to_dict("records")
    return row | {"flags": row["flags"].split(",")}


def compared(function, subject):
    honest = function_of(f"{FOLDER}/honest.py:{subject.op}")
    functions = {"honest": honest, "other": function}
    verdicts = bench.compare(functions, *inputs_of(subject), budget_s=BUDGET_S)
    verdict = verdicts.verdicts.get("other", "")
    return facts(verdicts.records[1]) | {"verdict": verdict}


class Plugin:
    """Passes the function to gpu_benchmark_file.py, and gets the record."""

    record = None

    def __init__(self, *arguments):
        self.arguments = arguments

    @pytest.fixture
    def plugin(self):
        return self


def in_a_test(function, subject):
    plugin = Plugin(function, partial(inputs_of, subject))
    file = str(ROOT / FOLDER / "gpu_benchmark_file.py")
    pytest.main([file, "--noconftest", "-p", "no:cacheprovider"], plugins=[plugin])
    if plugin.record is None:
        return {"status": "failed", "reason": "the test failed"}
    return facts(plugin.record)


PYTHON_PATHS = {
    "bench.compare": compared,
    "bench.measure": measured,
    "bench.sweep": swept,
    "gpu_benchmark": in_a_test,
}
