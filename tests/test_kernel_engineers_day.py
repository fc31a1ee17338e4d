"""The whole day of a kernel engineer in one Python file: from the first estimate to the picture of what was reached."""

import pytest
import torch

import bench
import results
import roofline
from roofline.work import Work
from tests.bench.commands import QUICK, keep_ceilings

ROWS, WIDTH = 64, 256


def by_hand(x):
    """Return the softmax of each row, step by step: the version of yesterday."""
    shifted = x - x.amax(-1, keepdim=True)
    powers = shifted.exp()
    return powers / powers.sum(-1, keepdim=True)


def fused(x):
    """Return the same by one operation: the version of today."""
    return torch.softmax(x, -1)


def wrong(x):
    """Return it without the sum: fast, and not the softmax."""
    return (x - x.amax(-1, keepdim=True)).exp()


@pytest.mark.exhaustive
def test_a_day(runs, tmp_path, capsys, monkeypatch):
    keep_ceilings(runs)
    for place in ("fixture.function", "measure.meter"):  # no test believes what it measures here
        monkeypatch.setattr(f"bench.harness.{place}.limits_of", lambda device: QUICK)
    x = torch.randn(ROWS, WIDTH)
    work = Work(flops=5 * x.numel(), bytes_read=x.nbytes, bytes_written=x.nbytes)

    # In the morning: what could be reached on the GPU that it is for, and what does a model make of it?
    most = roofline.attainable("h100-sxm", work.flops, work.bytes, "fp32")
    assert most.bound == "memory"
    assert most.seconds == pytest.approx(work.bytes / most.bandwidth_bytes_per_s)
    assert roofline.estimate.tensor(shape=(ROWS, WIDTH), dtype="fp32").values["bytes"] == x.nbytes

    # Where does the time of yesterday's version go?
    profile = bench.profile(by_hand, x)
    assert {"aten.exp", "aten.amax", "aten.sum"} <= {record.op for record in profile.records}

    # How fast is today's version here? What was counted is what the formula says.
    record = bench.measure(fused, x, budget_s=0.2)
    assert (record.status, record.flops, record.bytes_read, record.bytes_written) == (
        *("ok", work.flops),
        *(work.bytes_read, work.bytes_written),
    )
    assert record.roofline_pct == pytest.approx(record.judged["roofline_pct"])
    assert bench.do_bench(lambda: fused(x), warmup=1, rep=5) > 0

    # Is it faster? What is wrong gets no verdict, however fast it is.
    found = bench.compare({"by hand": by_hand, "fused": fused, "wrong": wrong}, x, budget_s=0.5)
    assert list(found.verdicts) == ["fused"]
    assert found.rows["fused"].ratio == found.to_dataframe()["ratio"][0]
    assert "wrong: invalid" in found.unmatched[0]

    # At other sizes?
    frame = bench.sweep({"by hand": by_hand, "fused": fused}, shapes=[(8, 64), (64, 64)], budget_s=0.1)
    assert len(frame) == 4
    assert (frame["status"] == "ok").all()

    # In the evening: the operation as the command measures it, kept, read again, drawn.
    measured = bench.softmax.run(dtype="fp32", shape=(ROWS, WIDTH), device="cpu", budget=5, save=tmp_path / "day.jsonl")
    kept = results.load(tmp_path / "day.jsonl", op="softmax")
    assert kept["median_s"].tolist() == [one.median_s for one in measured]
    figure = roofline.draw(tmp_path / "day.jsonl")
    figure.savefig(tmp_path / "day.png")
    assert (tmp_path / "day.png").stat().st_size > 10_000
    for shown in (profile, record, found, measured):
        assert repr(shown).strip()
        assert "<" in shown._repr_html_()
    assert capsys.readouterr().out == ""  # whatever was measured, nothing but what is asked for is printed
