"""Runs a module on the simulated device: `python -m tests.simulated_gpu bench.matmul --dtype bf16 --shape 256`."""

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.simulated_gpu.start import build, environment

folder = Path(tempfile.gettempdir()) / "ridgepoint-simulated-gpu"
folder.mkdir(exist_ok=True)
sys.exit(subprocess.run([sys.executable, "-m", *sys.argv[1:]], env=environment(build(folder)), check=False).returncode)
