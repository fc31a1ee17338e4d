"""A published record whose steps are a few lines of Python, for the tests of how one comes about."""

import sys

import pytest

from bench.validation import publish
from bench.validation.publish import ROOT, Step

DEVICE = {"slug": "h100-sxm", "name": "NVIDIA H100 80GB HBM3", "is_gpu": True, "has_fp8": True, "import_s": 2.0}
LONG_S = 60.0
"""Far more than any of these steps takes."""

RUN = ROOT / "results" / "published" / "cpu-amd-epyc-2t" / "20261120T233629Z-matmul-a349e4f85f.jsonl"
KEEPING = f"""
import os, pathlib, shutil
place = pathlib.Path(os.environ["RIDGEPOINT_RUNS"]) / "h100-sxm"
place.mkdir(parents=True, exist_ok=True)
shutil.copyfile({str(RUN)!r}, place / "20261120T233629Z-matmul-a349e4f85f.jsonl")
pathlib.Path("matmul.png").write_bytes(b"a picture")
"""


def step(name, code="", limit_s=LONG_S, needs_s=0.0, **more):
    return Step(name, (code,), limit_s, needs_s, **more)


@pytest.fixture
def planned(monkeypatch, tmp_path):
    """Give `publish` a plan of steps whose words are Python code, and return how to call it."""
    monkeypatch.setattr(publish, "probe", lambda: dict(DEVICE))
    monkeypatch.setattr(publish, "python", lambda step: [sys.executable, "-c", *step.words])
    monkeypatch.setattr(publish, "GRACE_S", 0.3)
    monkeypatch.setattr(publish, "CLOSING_S", 0.0)
    folder = tmp_path / "record"

    def call(steps, *words, left_out=None):
        monkeypatch.setattr(publish, "plan", lambda is_gpu: (list(steps), left_out or {}))
        return publish.main(["--output", str(folder), *words])

    call.folder = folder
    return call


def states(folder):
    return {attempt["folder"].name: attempt["state"] for attempt in publish.attempts(folder)}
