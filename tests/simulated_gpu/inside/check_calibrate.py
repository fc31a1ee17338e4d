"""`bench calibrate` on small sizes; `test_simulation.py` runs it on a simulated GPU."""

import json

from bench.__main__ import main
from bench.harness.calibrate import bandwidth, calibration, peaks, setup
from kernels import bandwidth as tiles


def test_every_calibration_part_measures_its_ceiling(monkeypatch, capsys):
    monkeypatch.setattr(setup, "QUICK", setup.Effort(0.001, 0.001))
    monkeypatch.setattr(bandwidth, "BRIEF", setup.Effort(0.001, 0.001))
    monkeypatch.setattr(bandwidth, "operand_bytes", lambda device: 2**16)
    filled = bandwidth.filled
    monkeypatch.setattr(bandwidth, "filled", lambda device, size: filled(device, min(size, 2**14)))
    monkeypatch.setattr(
        tiles, "configs", lambda sm_count: (tiles.Config(1, 1),)
    )  # each is interpreted
    monkeypatch.setattr(peaks, "GPU_SHAPES", ("32", "64"))
    words = "calibrate --device cuda -q --quick --dtype tf32,fp8e4m3 --format json"
    code = main(words.split())
    document = json.loads(capsys.readouterr().out)
    assert (code, document["not_measured"]) == (0, [])
    found = {(entry["quantity"], entry["name"]) for entry in document["ceilings"]}
    assert found == {
        ("launch", "launch"),
        ("cache-bandwidth", "L2 cache"),
        *(("bandwidth", mix) for mix in calibration.MIXES),
        *(("flops", dtype) for dtype in ("tf32", "fp8e4m3")),
    }
    assert {record["method"] for record in document["records"]} == {"graph"}
