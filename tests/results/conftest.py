"""Records and environments to keep: an H100 with round numbers, so that every judged value is known
by hand.

bf16 peak 1000 TFLOP/s and bandwidth 2 TB/s give a ridge of 500 FLOP/byte. A 1024-cube product in
4.294967296 us is 2^31 FLOPs at 500 TFLOP/s: half of the peak.
"""

import json

import pytest
from compare_runs import samples

from results.record import Environment
from results.store.runfile import RunWriter
from roofline.machine import Machine
from tests.records import record

HARDWARE = {
    "slug": "h100-sxm",
    "name": "NVIDIA H100 80GB HBM3",
    "entries": [
        {
            "quantity": "flops",
            "name": "bf16",
            "value": 1000e12,
            "kind": "datasheet",
            "source": "a test",
        },
        {
            "quantity": "bandwidth",
            "name": "memory",
            "value": 2e12,
            "kind": "datasheet",
            "source": "a test",
        },
    ],
    "note": None,
}


def _environment(**changes):
    values = {
        "run_id": "20261120T210312Z-0123456789",
        "started_at": "2026-11-20T21:03:12+00:00",
        "argv": ("python", "-m", "bench.matmul", "--dtype", "bf16"),
        "device": {"slug": "h100-sxm", "name": "NVIDIA H100 80GB HBM3", "type": "cuda"},
        "host": {"name": "node-7", "kernel": "6.8.0", "cpu": "a CPU", "cores": 64},
        "versions": {"python": "3.11.9", "torch": "2.13.0", "triton": None},
        "git": {"sha": "0123456789abcdef0123456789abcdef01234567", "dirty": True},
        "machine": Machine.from_dict(HARDWARE),
        "settings": {"seed": 0},
    }
    return Environment(**values | changes)


def _skipped(**changes):
    nothing = {
        "samples_s": (),
        "median_s": None,
        "ci95_s": None,
        "converged": None,
        "first_call_s": None,
    }
    return record(**{"status": "skipped", "reason": "out of memory", **nothing, **changes})


@pytest.fixture
def make_environment():
    return _environment


@pytest.fixture
def make_record():
    return record


@pytest.fixture
def make_skipped():
    return _skipped


@pytest.fixture
def write_lines(tmp_path):
    """Returns a function that writes lines, objects or raw bytes, as a file and returns its
    path.
    """

    def write(*lines, name="run.jsonl"):
        path = tmp_path / name
        raw = [
            line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines
        ]
        path.write_bytes(b"".join(raw))
        return path

    return write


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    """The directory of runs, apart from the one of the person who tests."""
    directory = tmp_path / "runs"
    monkeypatch.setenv("ROOFMARK_RUNS", str(directory))
    return directory


@pytest.fixture
def measured(make_record):
    """Returns a function that makes a record with noise of 0.2 % around `scale` times 4 us."""

    def make(scale=1.0, seed=0, count=80, noise=0.002, **changes):
        taken = samples(scale, f"{seed} {changes}", count, noise)
        ordered = sorted(taken)
        median = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
        ends = {"samples_s": taken, "median_s": median, "ci95_s": (ordered[0], ordered[-1])}
        if count % 4 == 0 and count >= 24:
            ends["visits"] = (count // 4,) * 4
        return make_record(**(ends | changes))

    return make


@pytest.fixture
def save(tmp_path, make_environment):
    """Returns a function that writes a run and returns its path; `again`: and a second run of the
    same code.
    """

    def write(name, *records, again=False, **changes):
        for run in (f"{name}-again", name) if again else (name,):
            environment = make_environment(
                **({"run_id": f"20261120T210312Z-{run}", "git": {"sha": name * 8}} | changes)
            )
            with RunWriter.create(environment, "matmul", tmp_path / f"{run}.jsonl") as writer:
                for record in records:
                    writer.append(record)
        return str(writer.path)

    return write


@pytest.fixture
def keep(make_environment):
    """Returns a function that saves a run of a day of November 2026 in the directory of runs and
    returns its path.
    """

    def write(day, *records, **changes):
        usual = {
            "run_id": f"202611{day:02d}T100000Z-{day:010x}",
            "started_at": f"2026-11-{day:02d}T10:00:00+00:00",
            "git": {"sha": f"{day:02d}" * 20, "dirty": day == 2},
        }
        with RunWriter.create(make_environment(**(usual | changes)), "matmul") as writer:
            for record in records:
                writer.append(record)
        return writer.path

    return write
