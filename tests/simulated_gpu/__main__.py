"""Runs a module on the simulated device: `python -m tests.simulated_gpu bench.matmul --dtype fp16 --shape 64`.

Runs go to a folder of their own unless RIDGEPOINT_RUNS names one: nobody shall take them for those of a GPU.
"""

import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from bench.harness.isolate.ending import die_with
from tests.simulated_gpu.start import build, environment, missing


def main(words: list[str]) -> int:
    """Run a module with its arguments and return its exit code."""
    if not words or words[0].startswith("-"):
        print("usage: python -m tests.simulated_gpu MODULE [ARGUMENT ...]", file=sys.stderr)
        return 2
    if reason := missing():
        print(f"python -m tests.simulated_gpu: error: {reason}", file=sys.stderr)
        return 3
    runs = os.environ.get("RIDGEPOINT_RUNS") or tempfile.mkdtemp(prefix="simulated-runs-")
    print(f"a simulated GPU: every time is made up; runs are kept in {runs}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="simulated-gpu-") as folder:
        variables = environment(build(Path(folder))) | {"RIDGEPOINT_RUNS": runs}
        dying = partial(die_with, os.getpid())
        command = [sys.executable, "-m", *words]
        return subprocess.run(command, env=variables, check=False, preexec_fn=dying).returncode


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
