"""Number of functions and files of this project from `main` to the saved record of one
measurement.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.bench.commands import keep_ceilings

ROOT = Path(__file__).resolve().parents[1]
MAX_FUNCTIONS = 216
MAX_FILES = 30

COUNT = """
import json, sys
from bench import matmul
from bench.harness.cli.main import main
from results.record import Record

OURS = tuple(f"{sys.argv[1]}/{name}/" for name in ("bench", "kernels", "roofline", "results"))
OPTIMIZED = 1  # code of a function, not of a class or a module
called, is_kept = set(), []

def watch(frame, event, argument):
    code = frame.f_code
    if event == "return" and code.co_qualname == "RunWriter.append" and isinstance(frame.f_locals["line"], Record):
        is_kept.append(True)
        sys.setprofile(None)
    elif code.co_filename.startswith(OURS) and code.co_flags & OPTIMIZED and not code.co_name.startswith("<"):
        called.add((code.co_filename.removeprefix(sys.argv[1] + "/"), code.co_qualname))

options = ["--dtype", "fp32", "--shape", "128", "--device", "cpu", "-q"]
sys.setprofile(watch)
code = main(matmul.__file__, matmul.__doc__, matmul.EXAMPLES, matmul.OPS, matmul.OPTIONS, options)
sys.setprofile(None)
assert code == 0 and is_kept
print("called:", json.dumps(sorted(called)))
"""  # noqa: E501


def test_the_path_to_a_saved_record_has_few_functions(tmp_path):
    keep_ceilings(tmp_path)
    environment = os.environ | {"ROOFMARK_RUNS": str(tmp_path)}
    command = [sys.executable, "-c", COUNT, str(ROOT)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    called = json.loads(done.stdout.rpartition("called: ")[2])
    files = {}
    for file, name in called:
        files.setdefault(file, []).append(name)
    listed = "\n".join(f"{len(names)} {file}: {', '.join(names)}" for file, names in files.items())
    assert len(called) <= MAX_FUNCTIONS, listed
    assert len(files) <= MAX_FILES, listed
