"""Records of the PyTorch benchmark database, schema v3, for the HUD of PyTorch.

The HUD shows the metric `latency` in seconds. The upload adds repository, commit and job.
`extra_info` has only texts.

Source: https://github.com/pytorch/test-infra, clickhouse_db_schema/oss_ci_benchmark_v3/schema.sql
and torchci/lib/benchmark/llms/common.ts;
https://github.com/pytorch/pytorch/wiki/PyTorch-OSS-benchmark-infra.
"""

import json
import shlex
from collections.abc import Sequence

from results.export.rows import Row
from results.record import Object
from results.store.runfile import Run


def render(run: Run, rows: Sequence[Row]) -> str:
    environment = run.environment
    device = environment.device
    info = "cpu_info" if device["type"] == "cpu" else "gpu_info"
    runner = {"name": device["slug"], "type": device["type"], info: device["name"]}
    versions = {name: {"version": str(text)} for name, text in environment.versions.items() if text}
    source = {"argv": shlex.join(environment.argv), "run_id": environment.run_id}
    shared = {"dependencies": versions, "runners": [runner]}
    return json.dumps([_record(row, source) | shared for row in rows], indent=2) + "\n"


def _record(row: Row, source: dict[str, str]) -> Object:
    record = row.record
    texts = {"unit": "s", "median_s": str(row.median_s)}
    if record.ci95_s:
        texts |= {"ci95_low_s": str(record.ci95_s[0]), "ci95_high_s": str(record.ci95_s[1])}
    values = list(record.samples_s) or [row.median_s]
    target = {} if row.roof_s is None else {"target_value": row.roof_s}
    return {
        "benchmark": {"name": "roofmark", "dtype": record.dtype, "extra_info": source},
        "model": {"name": row.name, "type": row.labels["op"], "backend": row.labels["provider"]},
        "metric": {"name": "latency", "benchmark_values": values, **target, "extra_info": texts},
    }
