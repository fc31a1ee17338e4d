"""Recorded traces of a folder: is the time of the GPU that of an independent parse?

    ROOFMARK_TRACES=DIR python -m tests.validation.traces

The parse here reads the plain JSON and finds the operation of a kernel by the correlation id of its
launch. It shares no code with `bench.profiling`.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import sys
from collections import Counter
from pathlib import Path

import msgspec

from bench.harness.calibrate.calibration import ceilings_of
from bench.profiling.records import records_of, step_of
from bench.profiling.trace_file import from_trace
from results.record import Environment
from results.show.profile import parts_of, totals_of

GPU = ("kernel", "gpu_memcpy", "gpu_memset")
TOLERANCE_US = 0.1


def parsed(path: Path) -> tuple[float, Counter[str]]:
    """Return the microseconds of all GPU work, and those by the innermost operation with `::` that
    launched them; of nested ones only those that are no part of another count.
    """
    document = json.loads(gzip.decompress(path.read_bytes()))
    events = document["traceEvents"] if isinstance(document, dict) else document
    events = [event for event in events if event.get("ph") == "X"]
    work = [event for event in events if event.get("cat") in GPU]
    total_us = sum(event["dur"] for event in work)
    spent = {}
    for event in work:
        correlation = event["args"].get("correlation")
        spent[correlation] = spent.get(correlation, 0.0) + event["dur"]
    by_operation: Counter[str] = Counter()
    threads: dict[object, list[dict]] = {}
    for event in events:
        if event.get("cat") in ("cpu_op", "cuda_runtime", "cuda_driver"):
            threads.setdefault((event["pid"], event["tid"]), []).append(event)
    for ordered in threads.values():
        ordered.sort(key=lambda event: (event["ts"], -event.get("dur", 0)))
        around: list[dict] = []
        for event in ordered:
            while around and around[-1]["ts"] + around[-1].get("dur", 0) <= event["ts"]:
                around.pop()
            correlation = event.get("args", {}).get("correlation")
            if event["cat"] == "cpu_op":
                around.append(event)
            elif correlation in spent:
                for outer in around:
                    by_operation[outer["name"]] += spent[correlation]
    return total_us, by_operation


def main() -> int:
    failures = 0
    print("| trace | GPU | GPU time, us | counted | idle | top categories | MFU | operations |")
    print("|---|---|---|---|---|---|---|---|")
    for path in sorted(Path(os.environ["ROOFMARK_TRACES"]).glob("*.json.gz")):
        breakdown, gpu, _ = from_trace(path)
        records = records_of(breakdown)
        ours_us = 0.0
        by_operation: Counter[str] = Counter()
        for operation in breakdown.operations:
            name = re.sub(r"^(\w+)\.", r"\1::", operation.op)
            by_operation[name] += operation.time_ns / 1000
        if gpu is not None:
            ours_us = (
                sum(by_operation.values()) + sum(map(sum, breakdown.unattributed.values())) / 1000
            )
            ours_us += sum(breakdown.early_s) * 1e6
        total_us, expected = parsed(path)
        is_equal = abs(total_us - ours_us) <= TOLERANCE_US
        # An operation has no more than was launched within it; what is nested in another has less.
        names = [name for name in by_operation if name in expected]
        above = [name for name in names if by_operation[name] > expected[name] + TOLERANCE_US]
        failures += not is_equal or bool(above)
        line = [path.name.removesuffix(".json.gz")]
        if gpu is None:
            print("|", " | ".join([*line, "-", "no kernels", "", "", "", "", ""]), "|")
            continue
        environment = Environment(
            run_id="20261129T000000Z-0123456789",
            started_at="",
            argv=(),
            device={"slug": gpu.slug, "name": gpu.name, "type": "cuda"},
            machine=ceilings_of(gpu, None),
            profile=step_of(breakdown),
        )
        totals = totals_of(environment, records)
        categories: Counter[str] = Counter()
        for record in records:
            for category, time_s, _ in parts_of(record, "category"):
                categories[category] += time_s / totals.step.time_s
        top = ", ".join(f"{name} {share:.1%}" for name, share in categories.most_common(3))
        mfu = "-" if totals.mfu is None else f"{totals.mfu:.3%}"
        line += [
            gpu.name,
            f"{ours_us:.1f} {'=' if is_equal else '!='} {total_us:.1f}",
            f"{totals.counted / totals.busy:.1%}",
            f"{totals.idle:.1%}",
            top,
            f"{mfu} of {totals.step.time_s * 1e3:.2f} ms",
            f"{len(names)} compared, {len(above)} above",
        ]
        print("|", " | ".join(line), "|")
        msgspec.json.encode(records)  # nothing that a run file cannot hold
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
