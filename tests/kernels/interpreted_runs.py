"""The files of `interpreted/`, run in two processes."""

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
TIME_LIMIT_S = 900
ONE_HALF = ("check_cross_entropy", "check_elementwise", "check_norm")
"""Files of one process; those of the other take about as long together. Loading torch and Triton for each file would
take as long as the checks of some."""


@dataclass(frozen=True)
class Run:
    """The checks of a file that passed and that did not; exit code and output are those of the process of its half."""

    returncode: int
    output: str
    passed: tuple[str, ...]
    failed: tuple[str, ...]


SAMPLE = ("--sample", "1")
EVERYTHING = ("-m", "")


@functools.cache
def _started(chosen: tuple[str, ...]) -> dict[str, Future]:
    groups = [[check for check in CHECKS if (check in ONE_HALF) is is_one] for is_one in (True, False)]
    pool = ThreadPoolExecutor(len(groups))
    runs = [(group, pool.submit(_run, group, chosen)) for group in groups]
    pool.shutdown(wait=False)
    return {check: run for group, run in runs for check in group}


def run_of(check: str, chosen: tuple[str, ...] = EVERYTHING) -> Run:
    """Return the run of one file with all of its checks, or a sample of them; the first call starts all files.

    Only `test_interpreted.py` calls this: the suite is shared among processes by file, and another file would run all
    of it a second time.
    """
    return _started(chosen)[check].result()[check]


def _run(checks: list[str], chosen: tuple[str, ...]) -> dict[str, Run]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        paths = [str(HERE / "interpreted" / f"{check}.py") for check in checks]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *paths, *OPTIONS, *chosen, f"--junit-xml={report}"],
            cwd=HERE.parents[1],
            env=env | {"TRITON_INTERPRET": "1"},
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT_S,
        )
        cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
    runs = {}
    for check in checks:
        own = [case for case in cases if case.get("classname", "").endswith(check)]
        passed = tuple(case.get("name", "") for case in own if len(case) == 0)
        failed = tuple(case.get("name", "") for case in own if {child.tag for child in case} & {"failure", "error"})
        runs[check] = Run(done.returncode, f"{done.stdout}\n{done.stderr[-2000:]}", passed, failed)
    return runs
