"""python -m results compare with a hundred thousand records on either side: the verdicts, the memory, the time."""

import json
import math
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import pytest

RECORDS = 100_000
RATIOS = {1.1: "SLOWER", 1.01: "UNSURE", 0.9: "FASTER", 1.0: "SAME"}
"""Candidate over baseline. Both sides have the same noise, so that every interval has its ratio in the middle: one at
the margin of 1 % is across it."""

LENGTHS = range(20, 31)
"""Samples of a record."""

COMMAND = """
import re, resource, sys
from pathlib import Path
from results.__main__ import main

code = main(sys.argv[1:])
# What this process was before it became this program is in its own usage, but not in the peak of its memory.
own = int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
print("peak", own + resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(code)
"""
"""Prints the largest memory of the process and of its largest child, together, in KiB."""

TELEMETRY = dict.fromkeys(("temperature_c", "power_w", "energy_j", "clock_events", "governor", "turbo")) | {
    "sm_clock_hz": 1.755e9,
    "window_s": 0.018037288999039447,
    "throttle": {"cgroup_quota": 0.0, "steal": 0.0},
    "errors": {"governor": "FileNotFoundError", "turbo": "FileNotFoundError"},
}
CHECKED = {"reference": "fp64", "max_error_of_bound": 0.18268981976778573, "checked_elements": 65536}


@pytest.fixture
def large(tmp_path, make_environment, make_record):
    """Returns a function that writes a run quickly: lines that differ in case and shape, and in few sets of samples."""
    paths = []

    def write(name, ratios):
        paths.append(tmp_path / f"{name}.jsonl")
        templates = [_template(make_record, count, ratio) for count in LENGTHS for ratio in ratios]
        with paths[-1].open("w", encoding="ascii") as file:
            environment = make_environment(run_id=f"20261120T210312Z-{name}", git={"sha": name * 8})
            file.write(json.dumps(environment.to_dict()) + "\n")
            for size in range(1, RECORDS + 1):
                before, between, after = templates[size % len(templates)]
                file.write(f"{before}{size}{between}{size}{after}\n")
        return str(paths[-1])

    yield write
    for path in paths:
        path.unlink()


def _template(make_record, count, ratio):
    """Return a line in three parts, to be joined by the first extent."""
    generator = random.Random(count)
    samples_s = [ratio * 4e-6 * generator.lognormvariate(0, 0.002) for _ in range(count)]
    record = make_record(
        shape={"m": -1, "n": 64, "k": 64},
        case="-1x64x64",
        samples_s=samples_s,
        median_s=median(samples_s),
        ci95_s=(min(samples_s), max(samples_s)),
        options={"layout": "nn", "batch": 1},
        telemetry=TELEMETRY,
        verified={"before": CHECKED, "after": CHECKED},
    )
    return json.dumps(record.to_dict(), separators=(",", ":")).split("-1", 2)


@pytest.mark.exhaustive
def test_a_hundred_thousand_records_on_either_side_fit_in_a_gigabyte(large):
    ratios = list(RATIOS)
    paths = large("a", [1.0] * len(ratios)), large("b", ratios)
    start_s = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "compare", "--drift", "0%", *paths],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    seconds = time.perf_counter() - start_s
    peak_bytes = 1024 * int(re.search(r"^peak (\d+)$", done.stderr, re.MULTILINE)[1])
    size_mb = Path(paths[0]).stat().st_size / 1e6
    print(
        f"two files of {RECORDS:,} records and {size_mb:.0f} MB: {seconds:.1f} s, {peak_bytes / 1e6:.0f} MB of memory"
    )
    assert done.returncode == 1
    counts = ", ".join(f"{RECORDS // len(ratios)} {verdict}" for verdict in RATIOS.values())
    mean = math.prod(ratios) ** (1 / len(ratios))
    headline = f"aaaaaaaa -> bbbbbbbb: {counts} of {RECORDS:,} rows; geometric mean {mean:.4f}x the time"
    assert headline in done.stdout
    assert peak_bytes < 1e9
