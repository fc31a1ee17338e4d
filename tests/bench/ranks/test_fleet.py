"""`bench.fleet` in real processes: every fault costs the rows of its own rank, and is named."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from bench import fleet
from bench.harness import worker
from bench.harness.calibrate.setup import NotMeasuredError
from bench.harness.device import gpu_state
from bench.ranks import measure
from bench.ranks.member import Member
from results.record import Rank
from results.store.runfile import load_run, read_head
from tests.bench.process_checks import soon

ROOT = Path(__file__).resolve().parents[3]
ALL = [f"{phase} {op}" for phase in measure.PHASES for op in measure.CPU_OPS]
MODULE = ("-m", "tests.bench.ranks.faults", "--quick")
TORCHRUN = ("-m", "torch.distributed.run")


def start(directory, *words, **environment):
    """Start a Python command whose processes can be found by `directory`."""
    return subprocess.Popen(
        [sys.executable, *words, "-o", str(directory)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(directory.parent), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(directory, *processes, timeout_s=100):
    """Return stdout, stderr and runs by rank; no process is left."""
    texts = [process.communicate(timeout=timeout_s) for process in processes]
    time.sleep(0.5)
    left = [
        p.pid
        for p in psutil.process_iter()
        if str(directory.parent) in environment_of(p).get("TMPDIR", "")
    ]
    assert left == []
    return *("".join(parts) for parts in zip(*texts, strict=True)), runs_in(directory)


def environment_of(process):
    try:
        return process.environ()
    except psutil.Error:
        return {}


def runs_in(directory):
    runs = [load_run(path) for path in directory.glob("*.jsonl")]
    assert [run.problems + run.notes for run in runs] == [()] * len(runs)
    return {run.environment.fleet.rank: run for run in runs}


def statuses(run):
    return {f"{record.options['phase']} {record.op}": record.status for record in run.records}


NO_TIME = "skipped", "no time was left"
REASONS = {
    "hang": "no result after",
    "kill": "killed by SIGKILL, as when memory runs out",
    "exit": "ended its process with exit code 17",
}
"""Reasons of a row whose measuring process is lost."""


@pytest.mark.exhaustive
def test_a_full_disk_and_a_killed_rank_cost_their_own_rows(tmp_path):
    words = ["--standalone", "--nproc-per-node", "3"]
    process = start(
        tmp_path / "f",
        *TORCHRUN,
        *words,
        *MODULE,
        ROOFMARK_NODE="a",
        FAULTS=",disk,parent killed",
    )
    out, err, runs = finish(tmp_path / "f", process)
    assert process.returncode == 1  # of torchrun
    assert statuses(runs[0]) == dict.fromkeys(ALL, "ok")
    known = runs[0].environment.fleet
    assert known.health["errors"]
    assert (known.rank, known.world_size, known.node) == (0, 3, "a")
    assert all(record.telemetry["throttle"] and record.op_sha256 for record in runs[0].records)
    assert 0 < len(runs[1].records) < len(ALL)
    assert statuses(runs[2]) == {"solo launch": "ok", "solo copy": "ok"}
    lines = err.splitlines()
    steps = [line.removeprefix("rank 0 (node a): ") for line in lines if "rank 0 (node" in line]
    assert [step for step in steps if step in (*ALL, "done")] == [*ALL, "done"]
    assert "cannot write" in err
    assert "rank 1" in next(line for line in lines if "File too large" in line)
    assert "rank 2 (node a)" in next(line for line in lines if "no answer within" in line)
    assert out == f"report: python -m bench fleet-report {tmp_path / 'f'}\n"


@pytest.mark.exhaustive
def test_two_nodes_measure_another_device_and_lose_measuring_processes(tmp_path):
    words = [
        "--nnodes",
        "2",
        "--nproc-per-node",
        "2",
        "--master-addr",
        "127.0.0.1",
        "--master-port",
        str(free_port()),
    ]
    nodes = [
        start(
            tmp_path / "f",
            *TORCHRUN,
            *words,
            "--node-rank",
            str(rank),
            *MODULE,
            ROOFMARK_NODE=node,
            FAULTS=",".join(["sku", *REASONS]),
        )
        for rank, node in enumerate("ab")
    ]
    out, err, runs = finish(tmp_path / "f", *nodes)
    assert [node.returncode for node in nodes] == [0, 0]
    assert sorted(runs) == [0, 1, 2, 3]
    assert [runs[rank].environment.fleet.node for rank in range(4)] == ["a", "a", "b", "b"]
    found = [statuses(runs[rank]) for rank in range(4)]
    assert all(set(rows) == set(ALL) for rows in found)
    measured = {"ok", "skipped"}  # four ranks on two cores may lack the time for a row
    assert set(found[0].values()) <= measured
    assert runs[0].environment.device["name"] == "Other GPU"
    for rank, reason in enumerate(REASONS.values(), start=1):
        for row, status in found[rank].items():
            assert status in ({"failed"} if "matmul" in row else measured)
        failed = [record for record in runs[rank].records if record.status == "failed"]
        assert all(record.reason.startswith(reason) for record in failed)
        for phase in measure.PHASES:
            assert f": {phase} matmul failed: {reason}" in err
    assert "rank 3 (node b): together matmul" in err
    assert "starts without" not in err
    assert out.startswith("report: python -m bench fleet-report ")


def free_port():
    return torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False).port


@pytest.mark.exhaustive
def test_ranks_end_with_torchrun(tmp_path):
    process = start(
        tmp_path / "f", *TORCHRUN, "--standalone", "--nproc-per-node", "2", *MODULE, FAULTS=",hang"
    )
    assert soon(lambda: len(list(tmp_path.glob("f/*"))) == 2)
    process.kill()
    finish(tmp_path / "f", process)
    assert list(tmp_path.glob("pymp-*")) == []


@pytest.mark.gpu
def test_all_gpus_are_measured(tmp_path):
    count = torch.cuda.device_count()
    words = "--standalone", "--nproc-per-node", str(count), "-m", "bench.fleet", "--quick"
    began_s, process = time.monotonic(), start(tmp_path / "f", *TORCHRUN, *words)
    out, err, runs = finish(tmp_path / "f", process, timeout_s=600)
    assert process.returncode == 0, err
    assert time.monotonic() - began_s < 60 * count
    assert sorted(runs) == list(range(count))
    assert len({run.environment.device["uuid"] for run in runs.values()}) == count
    for run in runs.values():
        assert statuses(run) == {
            f"{phase} {op}": "ok" for phase in measure.PHASES for op in measure.OPS
        }, out
        assert run.environment.fleet.health["power_limit_w"]
        assert run.environment.fleet.pci_bus_id


# ---- without processes


@pytest.fixture
def member(tmp_path, monkeypatch):
    """Return rank 0 of 3 with a store in this process; no other process starts."""
    monkeypatch.setattr(worker, "start_server", lambda: None)
    monkeypatch.setattr("bench.ranks.member.end_with_launcher", lambda rank: None)
    monkeypatch.setattr(
        "bench.ranks.member.rank_here", lambda: Rank(rank=0, world_size=3, node="a")
    )
    port = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setattr("bench.ranks.member.open_store", lambda rank, timeout_s: port)
    return Member(fleet.Options(quick=True, deadline=10.0, output=tmp_path / "fleet"), [])


def fake_call(function, *arguments, timeout_s):
    raise worker.WorkerError("crashed: SIGSEGV (segmentation fault)")


def test_a_device_that_cannot_be_used_has_failed_rows(member, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(worker, "call", fake_call)
    member.start_by = 0.0
    member.measure()
    [path] = (tmp_path / "fleet").iterdir()
    records = load_run(path).records
    assert {record.status for record in records} == {"failed"}
    assert {record.reason for record in records} == {"crashed: SIGSEGV (segmentation fault)"}
    assert read_head(path)[0].fleet.rank == 0
    assert "rank 0 (node a): cannot use its device: crashed: SIGSEGV" in capsys.readouterr().err


def test_ranks_without_an_answer_are_named_with_their_last_step(member, capsys):
    member.step("starting")
    member.peers.send(json.dumps([1, "rank 1 (node b)", "solo copy"]))
    member.step("done")
    assert list(member.missing()) == [1, 2]
    member.show()
    out, err = capsys.readouterr()
    assert out.startswith("report: python -m bench fleet-report ")
    assert err.splitlines() == [
        "rank 0 (node a): starting",
        "rank 1 (node b): solo copy",
        "rank 0 (node a): done",
        "rank 1 (node b): no answer within 0 s; last step: solo copy",
        "rank 2: no answer within 0 s; last step: none, it has not started",
    ]


def test_after_sigterm_a_rank_no_longer_waits_for_others(member, monkeypatch):
    monkeypatch.setattr(worker, "call", fake_call)
    member.finish_soon()
    began_s = time.monotonic()
    member.measure()
    assert time.monotonic() - began_s < 1
    assert member.has_time()


def test_rank_0_fails_if_a_rank_does_not_answer_so_that_the_launcher_ends(
    member, monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(member, "measure", lambda: None)
    monkeypatch.setattr(member, "writer", SimpleNamespace(path=tmp_path), raising=False)
    member.deadline = time.monotonic()
    assert member.run() == 3
    assert "rank 2: no answer" in capsys.readouterr().err


def test_ranks_meet_before_each_row_until_one_is_late(monkeypatch):
    met = []

    def meet(name, has_time):
        met.append(name)
        return len(met) < 2

    def not_measured(item, device):
        raise NotMeasuredError("not here")

    monkeypatch.setattr(measure, "open_store", lambda *_, **__: None)
    monkeypatch.setattr(measure, "Peers", lambda *_: SimpleNamespace(meet=meet))
    monkeypatch.setattr(measure, "MEASURES", {})
    monkeypatch.setattr(measure, "measure_rate", not_measured)
    monkeypatch.setattr(measure, "release", lambda device: True)
    device = SimpleNamespace(use=lambda: None, is_gpu=False)
    solo = measure.items_of("solo", False, None, is_quick=True)
    together = measure.items_of("together", False, None, is_quick=True)
    records = list(
        measure.measured([*solo, *together], device, Rank(rank=0, world_size=2, node="a"))
    )
    assert len(records) == len(ALL)
    assert met == ["together launch", "together copy"]


def test_a_process_is_bound_to_the_numa_node_of_its_gpu(monkeypatch, tmp_path):
    bound = []
    path = tmp_path / "sys/bus/pci/devices/0000:1b:00.0/local_cpulist"
    path.parent.mkdir(parents=True)
    monkeypatch.setattr(gpu_state, "ROOT", tmp_path)
    monkeypatch.setattr(gpu_state, "pci_bus_id", lambda uuid: "00000000:1B:00.0")
    monkeypatch.setattr("os.sched_setaffinity", lambda pid, cpus: bound.append(cpus))
    monkeypatch.setattr(measure, "usable_cores", lambda: SimpleNamespace(allowed={2, 3, 9}))
    gpu = SimpleNamespace(is_gpu=True, uuid="GPU-1")
    assert measure.bind(gpu) is None  # unknown
    path.write_text("0-3,8\n")
    assert measure.bind(gpu) == 0.0
    assert bound == [{2, 3}]
    path.write_text("4-7\n")
    assert measure.bind(gpu) == 1.0
    assert len(bound) == 1


def lost_stream(function, items, device, rank, limit_s):
    time.sleep(0.05)
    raise worker.WorkerError("no result after 0.05 s; increase --budget")
    yield


@pytest.mark.parametrize(
    ("left_s", "outcome"), [(9, ("failed", "no result after 0.05 s")), (0.02, NO_TIME)]
)
def test_only_a_row_with_time_left_fails(left_s, outcome, member, monkeypatch):
    kept = []
    monkeypatch.setattr(worker, "stream", lost_stream)
    monkeypatch.setattr(member, "keep", kept.append)
    items = measure.items_of("together", True, None, is_quick=True)
    member.measure_rows(items, SimpleNamespace(), until=time.monotonic() + left_s, reason="")
    assert [(record.status, record.reason) for record in kept] == [outcome] * len(measure.OPS)


def test_options_are_checked(capsys):
    with pytest.raises(SystemExit):
        fleet.build_parser().parse_args(["-o", "x", "--deadline", "1"])
    assert capsys.readouterr().err.startswith("python -m bench.fleet: error: ")
    assert fleet.main(["-o", "x", "--dtype", "int64"]) == 2
    assert capsys.readouterr().err.startswith("python -m bench.fleet: error: unknown dtype 'int64'")


def test_the_files_of_a_fleet_are_with_all_runs_by_default(monkeypatch, runs):
    places = []

    def member(args, argv):
        places.append(args.output)
        return SimpleNamespace(run=lambda: 0)

    monkeypatch.setattr("bench.ranks.member.Member", member)
    assert [fleet.main(words) for words in (["--quick"], ["-o", "here"])] == [0, 0]
    assert [places[0], str(places[1])] == [str(runs / "fleet"), "here"]
