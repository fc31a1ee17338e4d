"""How often a row prepares, verifies, captures, settles and polls, on a simulated GPU."""

from itertools import pairwise

from bench.elementwise import OPS
from bench.harness import clock, loop
from bench.harness.data import verify
from bench.harness.device.device import detect
from bench.harness.device.telemetry import POLL_EVERY_S
from bench.harness.measure import measure_row
from bench.harness.measure.rows import Row
from bench.harness.op import Case
from bench.harness.timing import samplers
from tests.bench.commands import StubRun


def test_visits_of_a_row_share_what_they_need(monkeypatch):
    taken, polls = {}, []

    def count(place, name, cost=lambda found: 1):
        original = getattr(place, name)

        def counting(*arguments, **options):
            found = original(*arguments, **options)
            taken[name] = taken.get(name, 0) + cost(found)
            return found

        monkeypatch.setattr(place, name, counting)

    def keep_busy(sampler, sample_s):
        polls.append(clock.now())
        return 1

    monkeypatch.setattr(samplers.GraphSampler, "_keep_busy", keep_busy)
    count(measure_row, "make_copies")
    count(measure_row, "load")
    count(verify, "check")
    count(samplers, "make_sampler")
    count(samplers.GraphSampler, "__init__")
    count(measure_row, "settle", lambda settling: settling.seconds)
    op = next(op for op in OPS if op.name == "gelu")
    row = Row(op, Case("gelu", "fp32", {"n": 2**16}, {}), "torch", family="elementwise")
    run = StubRun(detect("cuda"))
    loop.measure_rows(run, [row])
    (record,) = run.records
    assert (record.method, len(record.visits)) == ("graph", loop.VISITS)
    assert taken["make_copies"] == taken["load"] == 1
    assert taken["check"] == 2  # before timing, and after
    assert taken["__init__"] == taken["make_sampler"] == 2  # cold, and warm
    assert taken["settle"] < 0.85
    close = [later - at < POLL_EVERY_S for at, later in pairwise(polls)]
    assert sum(close) < loop.VISITS  # only between visits
