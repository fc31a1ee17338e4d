"""The paths: each returns answers about functions.

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
from functools import cache, partial
from multiprocessing import get_context

import psutil
import pytest
import torch

import bench
from tests.validation.adversary.catalog import CASES, FOLDER, HONEST, ROOT, SHAPES

BUDGET_S = 0.3
"""Time to measure a function, or to compare two."""
CALL_LIMIT_S = "15"
"""`--timeout` of the commands: what a function that hangs takes."""
COMMAND_LIMIT_S = 300
FORK_LIMIT_S = 40
"""Times after which a path is stopped, generous for a busy machine."""
MARK = "ROOFMARK_ADVERSARY"
"""Environment variable by which the processes of a command are found."""


def finished(*words):
    """Run `python -m bench WORDS`; return its exit code, None if it was stopped, its output, its
    errors, and how many processes it left, which are killed.
    """
    mark = str(time.monotonic_ns())
    code = None
    # Files, because a process that is left would keep a pipe open.
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        with suppress(subprocess.TimeoutExpired):
            code = subprocess.run(
                [sys.executable, "-m", "bench", *words],
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
        return code, output.read(), errors.read(), left


def kill_marked(mark):
    """Kill all processes with the mark; return their number."""
    left = 0
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK) == mark:
                process.kill()
                left += 1
    return left


def by_command(path, subjects):
    """Return the answers by provider about functions with one twin and dtype, and about the
    twin.
    """
    first = subjects[0]
    names = dict.fromkeys([first.twin, *(each.provider for each in subjects)])
    shapes = SHAPES[first.op]
    if path == "op":
        op = first.op.removeprefix("long").removeprefix("big")
        case = CASES.get(first.op, shapes.partition(",")[0])
        words = [op, "--shape", case, "--provider", ",".join(names)]
    else:
        names = {first.baseline: None} | names
        words = ["compare", *names, "--shape", shapes, "--fill", "normal", "--budget", "1"]
    words += ["--dtype", first.dtype, "--device", "cpu", "--timeout", CALL_LIMIT_S]
    code, output, errors, left = finished(*words, "--no-save", "--format", "json", "-q")
    error = errors.strip().rpartition("\n")[2]
    is_refused = code == 2 and "error: " in error
    status = "refused" if is_refused else "lost"
    reason = f"exit code {code}: {error}"
    answers = {name: {"status": status, "reason": reason} for name in names}
    if is_refused and path == "compare":  # the functions share one process
        answers[first.twin] = {"status": "not run"}
    if output.startswith("{"):
        document = json.loads(output)
        for row in document.get("records") or document["unmatched"]:
            answers[row["provider"]] = row
        if path == "compare":  # a baseline without a right candidate is not measured
            answers[first.baseline] = {"status": "ok"}
        for row in document.get("rows", ()):
            row |= {"status": "ok", "flags": row["flags_candidate"]}
            answers[row["candidate"]] = row | {"median_s": row["candidate_s"]}
    if left:
        answers[first.provider]["left"] = "a process"
    return answers


def warm_up():
    """Import and cache what a measurement needs, so that no fork has to."""
    torch.set_num_threads(1)  # a fork has no other threads
    functions = {"one": torch.relu, "other": torch.relu}
    bench.compare(functions, torch.ones(64), rounds=2)


def in_forks(path, subjects):
    """Return the same of a function of the Python API and its twin, each in a fork."""
    (subject,) = subjects
    providers = (subject.provider, subject.twin)
    return {each: forked(path, each, subject.op, subject.dtype) for each in providers}


@cache
def forked(path, provider, op, dtype):
    with ProcessPoolExecutor(1, get_context("fork")) as pool:
        try:
            return pool.submit(answer, path, provider, op, dtype).result()
        except BrokenProcessPool:
            return {"status": "lost", "reason": f"it ended its process, or took {FORK_LIMIT_S} s"}


def answer(path, provider, op, dtype):
    signal.alarm(FORK_LIMIT_S)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    before = settings()
    try:
        found = PYTHON_PATHS[path](function_of(provider), partial(inputs_of, op, dtype))
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


def inputs_of(op, dtype):
    """Return normal random inputs."""
    torch_dtype = torch.bfloat16 if dtype == "bf16" else torch.float32
    shapes = [map(int, shape.split("x")) for shape in SHAPES[op].split(",")]
    return tuple(torch.randn(*shape).to(torch_dtype) for shape in shapes)


def facts(record):
    names = ("status", "reason", "flags", "median_s")
    return {name: getattr(record, name) for name in names}


def measured(function, inputs):
    return facts(bench.measure(function, *inputs(), budget_s=BUDGET_S))


def swept(function, inputs):
    functions = {"function": function}
    frame = bench.sweep(functions, [1], inputs=lambda *_: inputs(), budget_s=BUDGET_S)
    (row,) = frame.to_dict("records")
    return row | {"flags": row["flags"].split(",")}


def compared(function, inputs):
    op = inputs.args[0]
    functions = {"honest": function_of(f"{HONEST}:{op}"), "other": function}
    verdicts = bench.compare(functions, *inputs(), budget_s=BUDGET_S)
    return facts(verdicts.records[1]) | {"verdict": verdicts.verdicts.get("other", "")}


class Plugin:
    """Passes the function to gpu_benchmark_file.py, and gets the record."""

    record = None

    def __init__(self, *arguments):
        self.arguments = arguments

    @pytest.fixture
    def plugin(self):
        return self


def in_a_test(function, inputs):
    plugin = Plugin(function, inputs, BUDGET_S)
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
