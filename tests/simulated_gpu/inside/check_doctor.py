"""`bench doctor` on small sizes; `test_simulation.py` runs it on a simulated GPU."""

import json
from dataclasses import replace

from bench.__main__ import main
from bench.commands import doctor
from bench.commands.doctor import rows_of
from bench.harness.measure import rows
from bench.harness.measure.budget import smaller_cases
from bench.harness.timing import protocol

FAMILIES = ("elementwise", "matmul", "norm")


def test_every_doctor_check_has_a_finding(monkeypatch, capsys):
    def small_rows(checkup, family, op, case, is_large=False):
        if family in FAMILIES:
            yield from rows_of(checkup, family, op, next(iter(smaller_cases(op, case))), is_large)

    monkeypatch.setattr(doctor, "rows_of", small_rows)
    monkeypatch.setattr(doctor, "GRAPH_LAUNCHES", 10)
    monkeypatch.setattr(doctor, "GRAPH_SAMPLES", 3)
    monkeypatch.setattr(doctor, "GPU_ROW_CAP_S", 0.01)
    monkeypatch.setitem(doctor.SIZES, "cuda", 64)
    monkeypatch.setattr(rows, "default_providers", lambda family, device, dtype="": {"torch": ()})
    monkeypatch.setitem(protocol.LIMITS, "cuda", replace(protocol.GPU_LIMITS, warm_up_s=0.0))
    main(["doctor", "--device", "cuda", "-q", "--budget", "0.1", "--format", "json"])
    page = json.loads(capsys.readouterr().out)
    found = {finding["name"]: finding for finding in page["findings"]}
    checks = (
        "the device",
        "launches",
        "one kernel as two providers",
        "large matmul and copy",
        "families",
    )
    # The finding of a failed check has this name.
    assert not [found[check] for check in checks if check in found]
    for name in ("launch floor", "launch in a graph of 10", "smallest detectable change"):
        assert name in found, name
    measured = [record for record in page["records"] if record["status"] in ("ok", "invalid")]
    assert {"matmul", "rmsnorm", "copy"} <= {record["op"] for record in measured}
    assert {record["cache"] for record in measured} == {"cold", "warm"}
