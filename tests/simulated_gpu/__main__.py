"""Run a module on the simulated device:
`python -m tests.simulated_gpu bench.matmul --dtype fp16 --shape 64`.

Runs go to a temporary directory unless ROOFMARK_RUNS is set, so they are not mistaken for runs of a
GPU.
"""

import os
import subprocess
import sys
import tempfile

from tests.simulated_gpu.start import environment, missing

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: python -m tests.simulated_gpu MODULE [ARGUMENT ...]")
    if reason := missing():
        sys.exit(f"python -m tests.simulated_gpu: error: {reason}")
    runs = os.environ.get("ROOFMARK_RUNS") or tempfile.mkdtemp(prefix="simulated-runs-")
    print(f"a simulated GPU: every time is made up; runs are saved in {runs}", file=sys.stderr)
    command = [sys.executable, "-m", *sys.argv[1:]]
    sys.exit(
        subprocess.run(command, env=environment() | {"ROOFMARK_RUNS": runs}, check=False).returncode
    )
