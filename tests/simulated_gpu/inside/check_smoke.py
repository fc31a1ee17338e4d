"""The first look as a whole, each of its steps on small sizes; `test_simulation.py` runs it on a simulated GPU."""

import json
from dataclasses import replace

from bench.__main__ import main
from bench.harness.calibrate import parts, setup
from bench.harness.calibrate.matmul_shapes import Shape
from bench.harness.commands import smoke
from bench.harness.measure import meter
from bench.harness.measure.cost import smaller_cases
from bench.harness.providers import registry
from bench.harness.timing.settle import SettleLimits

FAMILIES = ("elementwise", "matmul", "norm")


def test_every_step_of_a_first_look_finds_something_and_nothing_is_bad(monkeypatch, tmp_path):
    smallest = smoke.smallest
    monkeypatch.setattr(smoke, "MATMULS", {"gpu": (64,)})
    monkeypatch.setattr(smoke, "COPY", {"gpu": "64KiB"})
    monkeypatch.setattr(smoke, "GRAPHS", (1, 10))
    monkeypatch.setattr(smoke, "GRAPH_SAMPLES", 3)
    monkeypatch.setattr(smoke, "NORM", 64)
    monkeypatch.setattr(smoke, "LIMIT_S", {"gpu": 1e4})
    monkeypatch.setattr(smoke, "ROW_CAP_S", {"gpu": 0.01})
    monkeypatch.setattr(smoke, "ENOUGH", {"published": 0.0, "datasheet": 0.0})  # its times are made up
    monkeypatch.setattr(smoke, "FAR_OFF", 0.0)
    monkeypatch.setattr(smoke, "smallest", lambda *row: next(iter(smaller_cases(row[2], smallest(*row)))))
    monkeypatch.setattr(smoke, "FAMILY_DTYPES", ("fp8e4m3",))
    cases = smoke.family_cases
    monkeypatch.setattr(smoke, "family_cases", lambda look: [row for row in cases(look) if row[0] in FAMILIES])
    fp8 = {"fp8e4m3": ["torch", "torch-fast-accum"]}  # without the kernels, which are interpreted
    monkeypatch.setattr(registry, "default_providers", lambda family, device, dtype="": fp8.get(dtype, ["torch"]))
    monkeypatch.setattr(meter, "GPU_SETTLE", SettleLimits(0.0, 0.01))
    tiny = {"mix_s": 0.01, "matmul_s": 0.01, "long_run_s": 0.0, "largest": 64, "repetitions": 1}
    monkeypatch.setitem(setup.FIRST_PLANS, "gpu", replace(setup.FIRST_PLANS["gpu"], **tiny))
    monkeypatch.setattr(parts, "gpu_shapes", lambda processors, layouts: [Shape(64, 64, 64)])
    kept = tmp_path / "smoke.json"
    main(["smoke", "--device", "cuda", "-q", "-o", str(kept)])
    page = json.loads(kept.read_text())
    found = {line["name"]: line for line in page["lines"]}
    steps = ("the device", "compiling", "each family of kernels", "launches", "results kept and dropped", "quick peaks")
    assert not [
        found[step] for step in (*steps, "large matmuls and a large copy") if found.get(step, {}).get("status") == "bad"
    ]
    assert not [line for line in page["lines"] if line["value"] == "not looked at"]
    for name in ("power limit", "launch by the host", "compiling", "peak: bandwidth, copy", "peak: bf16 matmul"):
        assert name in found, name
    for launches in (1, 10):  # how they compare is left to a GPU: the host's time is real here
        for words in ("", ", no spin"):
            assert found[f"graph of {launches} empty kernels, each{words}"]["measured"] > 0
    assert {words in name for name in found for words in ("results kept", "results dropped")} == {True, False}
    rows = [record for record in page["records"] if record["status"] in ("ok", "invalid")]
    assert {"matmul", "rmsnorm", "copy"} <= {record["op"] for record in rows}
    assert {"torch", "torch-fast-accum"} <= {record["provider"] for record in rows if record["dtype"] == "fp8e4m3"}
