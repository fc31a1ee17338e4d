"""The published measurements that stand beside ours: each has a source and is possible on its GPU."""

import tomllib
from pathlib import Path

from roofline.gpu_table import load_gpus
from roofline.machine import QUANTITIES

ROOT = Path(__file__).parents[3]


def test_every_published_figure_has_a_source_and_is_possible():
    text = (ROOT / "bench" / "harness" / "commands" / "published.toml").read_text(encoding="utf-8")
    records = tomllib.loads(text)["record"]
    seen = [(gpu, one["quantity"], one["name"]) for one in records for gpu in one["gpus"]]
    assert len(seen) == len(set(seen))
    for one in records:
        assert one["unit"] == QUANTITIES[one["quantity"]]
        assert one["source"].startswith(("github.com/", "AMD"))
        for gpu in (load_gpus()[slug] for slug in one["gpus"]):
            if one["quantity"] == "flops":  # boost clocks are above those of the datasheet
                assert one["value"] < 1.1 * gpu.peak(one["name"]).value
            if one["quantity"] == "bandwidth":
                assert one["value"] < gpu.memory_bandwidth_bytes_per_s
