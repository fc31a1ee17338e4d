"""Collectives: which rank or link is slow, by arrays of times and by real ranks with a fault."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bench.collectives import main, sizes_of
from bench.harness.cli.arguments import UsageError
from bench.harness.device.device import NoDeviceError
from bench.ranks.collectives import (
    Collective,
    guarding,
    late_ranks,
    pair_rounds,
    rounds_of,
    slow_links,
)
from results.record import Rank
from results.store.runfile import load_run
from roofline.links import read_fits

HERE = Path(__file__).parent
ROUNDS = 60
LIMIT_S = 150.0
"""Time limit of ranks."""


def round_times(ranks, seed, late_s=0.0, work_s=0.0, both_s=0.0):
    """Return noisy times of collectives and matmuls; rank 1 is late, has a slow matmul, or a slow
    collective.
    """
    random = np.random.default_rng(seed)
    work = 1e-3 * random.lognormal(0, 0.1, (ROUNDS, ranks))
    arrival = work + 50e-6 * random.exponential(1, (ROUNDS, ranks))
    work[:, 1] += work_s
    arrival[:, 1] += late_s + work_s
    end = (
        arrival.max(axis=1, keepdims=True)
        + 200e-6 * random.lognormal(0, 0.1, (ROUNDS, ranks))
        + both_s
    )
    return end - arrival, work


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 64])
def test_a_calm_run_claims_nothing(ranks):
    assert all(late_ranks(*round_times(ranks, seed)) == (set(), []) for seed in range(50))


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize(
    ("delay", "cause"),
    [
        ({"late_s": 2e-3}, "host or input"),
        ({"work_s": 2e-3}, "device"),
        ({"both_s": 2e-3}, None),
        ({"late_s": 2e-3, "work_s": 2e-3}, None),
    ],
)
def test_a_delay_of_one_rank_is_claimed_for_its_cause(ranks, delay, cause):
    for seed in range(20):
        late, claims = late_ranks(*round_times(ranks, seed, **delay))
        assert [(claim.cause, claim.ranks) for claim in claims] == (
            [(cause, (1,))] if cause else []
        )
        assert late == (set() if "both_s" in delay else {1})


def test_a_rank_that_is_late_in_few_rounds_is_not_claimed():
    calm, late = round_times(4, 0), round_times(4, 0, late_s=5e-3)
    durations, work = (
        np.where(np.arange(ROUNDS)[:, None] % 2, *parts) for parts in zip(calm, late, strict=True)
    )
    assert late_ranks(durations, work) == (set(), [])


def test_the_time_of_a_round_is_without_the_wait_for_the_last_rank():
    times_s = np.array([[1.0, 9.0], [8.0, 2.0]])
    assert rounds_of("all-reduce", times_s).tolist() == [1.0, 2.0]
    assert rounds_of("broadcast", times_s).tolist() == [9.0, 8.0]  # a root does not wait


class Request:
    """A request of nccl that never completes, whose `wait` does not return in time."""

    def is_completed(self):
        return False

    def wait(self):
        raise AssertionError("the watchdog would end the process")


def test_a_request_of_nccl_that_does_not_complete_has_a_deadline():
    run = SimpleNamespace(
        settings=SimpleNamespace(timeout_s=0.01), device=SimpleNamespace(torch_name="cpu")
    )
    row = SimpleNamespace(dtype="fp32", shape={"bytes": 8})
    collective = Collective("all-reduce", row, SimpleNamespace(rank=0, ranks=2, run=run))
    collective.result = SimpleNamespace(is_cuda=True)
    with pytest.raises(RuntimeError, match="all-reduce timed out"):
        collective.finish([Request()])


def test_a_group_that_failed_is_not_left(monkeypatch):
    left = []
    at_exit = []
    monkeypatch.setattr("atexit.register", lambda *call: at_exit.append(call))
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.destroy_process_group", lambda: left.append(True))
    monkeypatch.setattr("bench.ranks.collectives.ANSWER_S", 0.0)
    with (
        pytest.raises(NoDeviceError, match="no answer from rank 1"),
        guarding(torch.distributed.HashStore(), Rank(rank=0, world_size=2, node="a"), 0.0),
    ):
        raise RuntimeError("timed out")
    assert not left
    assert at_exit == [(os._exit, 3)]  # nor by the interpreter, whose exit may hang


@pytest.mark.parametrize("ranks", range(2, 10))
def test_pairs_meet_once_in_the_fewest_rounds(ranks):
    rounds = pair_rounds(ranks)
    assert len(rounds) == ranks - 1 + ranks % 2
    assert sorted(pair for pairs in rounds for pair in pairs) == list(combinations(range(ranks), 2))
    assert all(
        max(Counter(rank for pair in pairs for rank in pair).values()) == 1 for pairs in rounds
    )


def pair_times(ranks, seed=0, slow=(), between=1.0, nodes=None):
    """Return noisy times of exchanges; those of `slow` pairs are 30 % longer."""
    random, nodes = np.random.default_rng(seed), nodes or ["a"] * ranks
    factors = {
        pair: (1.3 if pair in slow else 1) * (1 if nodes[pair[0]] == nodes[pair[1]] else between)
        for pair in combinations(range(ranks), 2)
    }
    return {
        pair: (1e-3 * factor * random.lognormal(0, 0.02, 7)).tolist()
        for pair, factor in factors.items()
    }, nodes


def links(*arguments, late=frozenset(), **options):
    return [claim.ranks for claim in slow_links(*pair_times(*arguments, **options), late)]


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8, 16])
def test_equal_links_are_not_claimed(ranks):
    assert not any(links(ranks, seed) for seed in range(50))


def test_the_slow_link_is_claimed():
    assert links(8, slow=[(2, 5)]) == [(2, 5)]
    assert links(8, slow=[(2, 5), (0, 1)]) == [(0, 1), (2, 5)]
    assert links(3, slow=[(0, 1)]) == []


@pytest.mark.parametrize("ranks", [4, 8])
def test_a_rank_whose_links_are_all_slow_is_claimed_once(ranks):
    slow = [(min(1, other), max(1, other)) for other in range(ranks) if other != 1]
    assert links(ranks, slow=slow) == [(1,)]
    assert links(ranks, slow=slow, late={1}) == []


def test_links_between_nodes_are_compared_with_each_other():
    nodes = ["a"] * 4 + ["b"] * 4
    assert links(8, nodes=nodes, between=5) == []
    assert links(8, nodes=nodes, between=5, slow=[(0, 3)]) == [(0, 3)]
    assert links(8, nodes=nodes, between=5, slow=[(0, 5)]) == [(0, 5)]


def test_sizes_are_a_geometric_range():
    assert sizes_of(["1KiB:1MiB:x32", "5"]) == [5, 1024, 32768, 1048576]
    assert sizes_of(["1:10:x3"]) == [1, 3, 9]


@pytest.mark.parametrize(
    "text", ["1KiB:2KiB", "2KiB:1KiB:x2", "1:2:x1", "many", "1:many:x2", "1:2:3"]
)
def test_other_sizes_are_usage_errors(text):
    with pytest.raises(UsageError, match="invalid size"):
        sizes_of([text])


def test_usage_errors_are_one_line(capsys, monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert main(["--op", "all-reduce"]) == 2
    assert (
        capsys.readouterr()
        .err.splitlines()[0]
        .endswith("torchrun --nproc-per-node 2 -m bench.collectives")
    )
    assert main(["--op", "gather"]) == 2
    assert "unknown op 'gather'" in capsys.readouterr().err
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert main(["--backend", "nccl"]) == 3
    assert "torch found none; use --backend gloo" in capsys.readouterr().err


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@pytest.fixture(scope="module")
def server():
    """Return a process that forks ranks, see `rank_with_fault`."""
    environment = os.environ | {"PYTHONPATH": str(HERE.parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.bench.rank_with_fault"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, start_new_session=True, **pipes) as process:
        yield process
        process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        with suppress(ProcessLookupError):  # ranks that hang
            os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def run_ranks(server, tmp_path):
    def run(count, *options, fault=("none", 0, 0), nodes=None):
        """Run ranks of gloo with a fault in one; return exit code, stdout and stderr of those that
        do not hang.
        """
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": str(count)}
        environments = []
        for rank in range(count):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(count)}
            own |= {"ROOFMARK_NODE": nodes[rank]} if nodes else {}
            environments.append(shared | own)
        directory = tmp_path / "texts"
        directory.mkdir()
        job = {
            "environments": environments,
            "directory": str(directory),
            "fault": fault,
            "options": ["-q", *map(str, options)],
        }
        print(json.dumps(job), file=server.stdin, flush=True)
        assert select.select([server.stdout], [], [], LIMIT_S)[0], "a rank hangs"
        results = []
        for rank, code in json.loads(server.stdout.readline()).items():
            texts = [(directory / f"{rank}.{kind}").read_text() for kind in ("out", "err")]
            results.append((code, *texts))
        return results

    return run


def document(results):
    """Return what rank 0 printed; all ranks have succeeded."""
    assert [code for code, *_ in results] == [0] * len(results), results
    return json.loads(results[0][1])


@pytest.mark.exhaustive
def test_two_ranks_verify_fit_and_save_all_ops(run_ranks, tmp_path):
    runs = tmp_path / "runs"
    options = "--size 1001,10001,100001 --format json"
    found = document(run_ranks(2, *options.split(), "-o", runs))
    rows = {(row["op"], row["bytes"]): row for row in found["rows"]}
    assert len(rows) == 18
    assert found["claims"] == []
    assert {row["status"] for row in rows.values()} == {"ok"}
    assert ("all-reduce", 1004) in rows
    assert ("all-to-all", 1008) in rows
    assert {row["op"] for row in rows.values() if "skew_s" not in row} == {
        "broadcast",
        "send-recv",
    }
    row = rows["all-gather", 100008]
    assert row["algbw_bytes_per_s"] == pytest.approx(100008 / row["median_s"])
    assert row["busbw_bytes_per_s"] == pytest.approx(row["algbw_bytes_per_s"] / 2)
    saved = sorted(
        (load_run(path) for path in runs.iterdir()),
        key=lambda run: run.environment.fleet.rank,
    )
    assert [run.environment.fleet.rank for run in saved] == [0, 1]
    own, other = (run.records[0] for run in saved)
    assert own.op == "all-reduce"
    assert own.telemetry["round_s"] == np.minimum(own.samples_s, other.samples_s).tolist()
    assert set(read_fits(runs)) <= {row["op"] for row in found["rows"]}


FEW = "--op all-reduce,all-to-all --size 1KiB,64KiB --pairs --format json --no-save"


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("fault", "nodes", "cause"),
    [("before", "ab", "host or input"), ("work", "ab", "device"), ("inside", "aaaa", "link")],
)
def test_a_sleep_is_claimed_for_its_rank_node_and_cause(run_ranks, fault, nodes, cause):
    found = document(run_ranks(len(nodes), *FEW.split(), fault=(fault, 1, 0.2), nodes=nodes))
    (claim,) = found["claims"]
    assert (claim["cause"], claim["ranks"], claim["nodes"]) == (cause, [1], [nodes[1]])


@pytest.mark.exhaustive
@pytest.mark.parametrize(("fault", "rank"), [("hang", 1), ("kill", 0)])
def test_a_missing_rank_is_named_soon_after_the_deadline(run_ranks, fault, rank, tmp_path):
    options = "--op all-reduce --size 1KiB:64KiB:x2 --timeout 5"
    runs = tmp_path / "runs"
    hurt = run_ranks(3, *options.split(), "-o", runs, fault=(fault, rank, 0))
    survivors = [result for result in hurt if result[0] != -9]
    assert [code for code, *_ in survivors] == [3, 3]
    assert sum(f"error: no answer from rank {rank}\n" in err for _, _, err in survivors) == 1
    assert {len(load_run(path).records) for path in runs.iterdir()} <= {2, 3}


@pytest.mark.exhaustive
def test_a_wrong_result_names_its_rank(run_ranks):
    options = "--op all-reduce --size 1KiB --no-save"
    results = run_ranks(2, *options.split(), fault=("wrong", 1, 0))
    assert [code for code, *_ in results] == [1, 1]
    assert "wrong result on rank 1" in results[0][1]


def by_torchrun(count, options):
    """Run the command on `count` ranks; return what rank 0 printed."""
    words = f"-m torch.distributed.run --standalone --nproc-per-node {count} -m bench.collectives"
    return subprocess.run(
        [sys.executable, *words.split(), *options.split()],
        capture_output=True,
        text=True,
        cwd=HERE.parents[1],
        timeout=500,
        check=True,
    ).stdout


@pytest.mark.exhaustive
def test_torchrun_starts_the_command():
    options = "--op all-reduce --size 1KiB,64KiB -q --no-save"
    assert "2 ranks, gloo, fp32" in by_torchrun(2, options)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_nccl_between_all_gpus(tmp_path, dtype):
    import torch

    count = torch.cuda.device_count()
    if count < 2:
        pytest.skip("needs two GPUs")
    options = f"--size 1001:64MiB:x4 --dtype {dtype} --pairs -q --format json -o {tmp_path}"
    found = json.loads(by_torchrun(count, options))
    assert found["backend"] == "nccl"
    assert {row["status"] for row in found["rows"]} == {"ok"}
    assert all(row["busbw_bytes_per_s"] < 1e13 for row in found["rows"])
    assert len(list(tmp_path.glob("*.jsonl"))) == count
