"""What the harness itself costs, so that a change that makes it slower shows.

No time is asserted. `pytest tests/perf --benchmark-autosave`, and later `--benchmark-compare`, tells what has changed.
"""

import itertools
from functools import partial

import pytest

from bench.harness.device.device import cpu_device
from bench.harness.measure import plan
from bench.harness.op import Case
from bench.harness.timing import samplers
from bench.harness.timing.protocol import Limits, collect
from bench.matmul import OPS
from results.record import Environment, Record
from results.show.judge import JUDGED_KEYS, judged
from results.store.runfile import encode_line, load_run
from results.store.runs import RunWriter
from roofline.ceilings import Ceiling, Ceilings

RECORDS = 10_000
SAMPLES = 1_000
TICK_S = 1e-3
BUDGET_S = 0.3

CEILINGS = Ceilings(
    "cpu-test",
    "A processor",
    (
        Ceiling("launch", "launch", 1e-6, "measured", "made up"),
        Ceiling("bandwidth", "copy", 2e10, "measured", "made up"),
        Ceiling("flops", "bf16", 2e11, "measured", "made up"),
    ),
)
ENVIRONMENT = Environment(
    run_id="20261120T210000Z-0123456789",
    started_at="2026-11-20T21:00:00+00:00",
    argv=("python", "-m", "bench.matmul"),
    device={"slug": "cpu-test", "name": "A processor", "type": "cpu"},
    hardware=CEILINGS.to_dict(),
)


class FakeSampler:
    """Returns at once a time that it makes up: what is left is the cost of the loop around it."""

    method = "host"
    launches_per_sample = 10

    def __init__(self, seconds):
        self._seconds = itertools.cycle(seconds)

    def sample(self):
        return next(self._seconds)


def ticking():
    """Return a clock that goes on by one tick a reading."""
    readings = itertools.count()
    return lambda: next(readings) * TICK_S


def add_per(gpu_benchmark, what, **also):
    """Add the seconds for each sample or launch, where any were measured: `--benchmark-disable` measures none."""
    gpu_benchmark.extra_info.update(also)
    if gpu_benchmark.enabled:
        gpu_benchmark.extra_info[f"seconds_per_{what}"] = gpu_benchmark.stats["median"] / SAMPLES


def record(number):
    """Return a record as a CPU run keeps it: twenty samples, two verifications."""
    n = 64 + number % 1000
    samples = tuple(1e-5 + 1e-7 * ((number + i) % 7) for i in range(20))
    checked = {"reference": "fp64", "max_error_of_bound": 0.15, "checked_elements": n * n, "elements": n * n}
    return Record(
        op="matmul",
        provider="torch",
        dtype="bf16",
        shape={"m": n, "n": n, "k": n},
        case=f"{n}x{n}x{n}",
        status="ok",
        options={"layout": "nn", "batch": 1},
        flops=2 * n**3,
        bytes_read=4 * n * n,
        bytes_written=2 * n * n,
        samples_s=samples,
        launches_per_sample=50,
        method="host",
        cache="cold",
        copies=100,
        fill="uniform",
        median_s=sorted(samples)[10],
        ci95_s=(min(samples), max(samples)),
        converged=True,
        host_latency_s=2e-5,
        first_call_s=1e-3,
        telemetry={"involuntary_switches_per_s": 1.0},
        verified={"before": checked, "after": checked},
    )


@pytest.fixture(scope="module")
def records():
    return [record(number) for number in range(RECORDS)]


@pytest.mark.parametrize(
    ("min_samples", "intervals"), [(2 * SAMPLES, "at the end only"), (30, "again and again")], ids=["loop", "intervals"]
)
def test_collect_costs_little_a_sample(gpu_benchmark, min_samples, intervals):
    never_reached = -1.0
    limits = Limits(min_samples, never_reached, 0.0, cap_s=SAMPLES * TICK_S, warm_up_s=0.0, min_sample_s=0.0)
    made_up = [1e-4 * (1 + 0.618 * i % 0.1) for i in range(SAMPLES)]

    run = partial(collect, limits=limits, cache="cold")
    samples = gpu_benchmark(lambda: run(FakeSampler(made_up), now=ticking()), device="cpu", budget_s=BUDGET_S)
    assert len(samples.samples_s) == SAMPLES
    assert samples.samples_s == pytest.approx([seconds / 10 for seconds in made_up])
    assert not samples.converged
    add_per(gpu_benchmark, "sample", samples=SAMPLES, intervals=intervals)


def test_a_launch_costs_the_host_sampler_little(gpu_benchmark):
    launches, calls = [], 3
    sampler = samplers.HostSampler([lambda: launches.append(1)] * calls, launches_per_sample=SAMPLES)
    seconds = gpu_benchmark(sampler.sample, device="cpu", budget_s=BUDGET_S)
    assert len(launches) % SAMPLES == 0
    assert seconds > 0
    add_per(gpu_benchmark, "launch")


def test_planning_two_thousand_rows(benchmark):
    device, options = cpu_device(), {"layout": "nn", "batch": 1}
    cases = [(OPS[0], Case("matmul", "bf16", {"m": n, "n": n, "k": n}, options)) for n in range(1, 2001)]
    settings = plan.Settings()
    rows = benchmark.pedantic(lambda: plan.plan(cases, ["torch"], device, settings), rounds=3, warmup_rounds=1)
    assert [row.case.shape["k"] for row in rows] == list(range(1, 2001))
    assert not any(row.refused for row in rows)


def test_judging_ten_thousand_records(benchmark, records):
    rows = benchmark.pedantic(lambda: judged(ENVIRONMENT, records), rounds=3, warmup_rounds=1)
    assert len(rows) == RECORDS
    assert list(rows[0]) == list(JUDGED_KEYS)
    assert rows[0]["flops_per_s"] == pytest.approx(records[0].flops / records[0].median_s)
    assert rows[-1]["bound"] is not None


def test_loading_ten_thousand_records(benchmark, records, tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_bytes(b"".join(encode_line(line) for line in (ENVIRONMENT, *records)))
    run = benchmark.pedantic(lambda: load_run(path), rounds=3, warmup_rounds=1)
    assert run.records == tuple(records)
    assert run.problems == ()
    benchmark.extra_info |= {"records": RECORDS, "bytes": path.stat().st_size}


def test_keeping_one_record_for_good(benchmark, records, tmp_path):
    """A write and an fsync: what lies between two rows."""
    with RunWriter.create(ENVIRONMENT, "matmul", tmp_path / "run.jsonl") as writer:
        benchmark.pedantic(lambda: writer.append(records[0]), rounds=20, warmup_rounds=1)
    assert load_run(tmp_path / "run.jsonl").records == (records[0],) * (21 if benchmark.enabled else 1)
