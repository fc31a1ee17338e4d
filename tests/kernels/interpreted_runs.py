"""The files of `interpreted/`, each run once in a process of its own, at most two at a time."""

import functools
import os
import subprocess
import sys
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).parent
CHECKS = sorted(path.stem for path in (HERE / "interpreted").glob("check_*.py"))
OPTIONS = ("-o", "python_files=check_*.py", "-q", "-p", "no:cacheprovider", "-W", "ignore::RuntimeWarning")
TIME_LIMIT_S = 600
PROCESSES = 2


@dataclass(frozen=True)
class Run:
    """A finished process, and the names of the checks that passed and that did not."""

    returncode: int
    output: str
    passed: tuple[str, ...]
    failed: tuple[str, ...]


SAMPLE = ("--sample", "1")
EVERYTHING = ("-m", "")


@functools.cache
def _started(chosen: tuple[str, ...]) -> dict[str, Future]:
    pool = ThreadPoolExecutor(PROCESSES)
    runs = {check: pool.submit(_run, check, chosen) for check in CHECKS}
    pool.shutdown(wait=False)
    return runs


def run_of(check: str, chosen: tuple[str, ...] = EVERYTHING) -> Run:
    """Return the run of one file with all of its checks, or a sample of them; the first call starts all files."""
    return _started(chosen)[check].result()


def _run(check: str, chosen: tuple[str, ...]) -> Run:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        path = HERE / "interpreted" / f"{check}.py"
        done = subprocess.run(
            [sys.executable, "-m", "pytest", str(path), *OPTIONS, *chosen, f"--junit-xml={report}"],
            cwd=HERE.parents[1],
            env=env | {"TRITON_INTERPRET": "1"},
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT_S,
        )
        cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
    passed = tuple(case.get("name", "") for case in cases if len(case) == 0)
    failed = tuple(case.get("name", "") for case in cases if {child.tag for child in case} & {"failure", "error"})
    return Run(done.returncode, f"{done.stdout}\n{done.stderr[-2000:]}", passed, failed)
