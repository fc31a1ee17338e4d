"""Rank from the environment of each launcher; turns, common start and answers by a store on a
simulated clock.
"""

import multiprocessing
import os
import signal

import pytest
import torch.distributed

from bench.harness.cli.arguments import UsageError
from bench.ranks.launcher import Peers, gpu_of, open_store, rank_here, turn
from results.record import Rank

MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"}
TORCHRUN = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "7",
    "SLURM_TASKS_PER_NODE": "4(x2),3",
}


def rank_of(rank, local_rank, world_size=1, local_world_size=1, launcher="none"):
    return Rank(
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        local_world_size=local_world_size,
        node="n",
        launcher=launcher,
    )


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, rank_of(0, 0, 1, 1, "none")),
        (TORCHRUN, rank_of(5, 1, 8, 4, "torchrun")),
        (SLURM, rank_of(3, 1, 7, 4, "slurm")),
        (TORCHRUN | SLURM, rank_of(5, 1, 8, 4, "torchrun")),  # torchrun inside of an allocation
        (MPI, rank_of(2, 0, 4, 1, "mpi")),
        ({"JOB_COMPLETION_INDEX": "6"}, rank_of(6, 0, None, 1, "kubernetes")),
        ({"JOB_COMPLETION_INDEX": "6", "WORLD_SIZE": "8"}, rank_of(6, 0, 8, 1, "kubernetes")),
    ],
)
def test_each_launcher_gives_the_rank(monkeypatch, environ, expected):
    monkeypatch.setattr(os, "environ", {**environ, "SLURMD_NODENAME": "n"})
    assert rank_here() == expected


def test_a_rank_has_the_gpu_of_its_number_or_the_only_one():
    assert [gpu_of(rank_of(9, 1), visible) for visible in (8, 1)] == ["cuda:1", "cuda:0"]


def test_a_node_has_the_first_known_name(monkeypatch):
    names = {"ROOFMARK_NODE": "a", "SLURMD_NODENAME": "b", "NODE_NAME": "c"}
    monkeypatch.setattr(os, "environ", names)
    for expected in "abc":
        assert rank_here().node == expected
        names.pop(next(iter(names)))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"RANK": "x"}, "RANK: expected an integer from 0 to 99,999, got 'x'"),
        ({"WORLD_SIZE": "100000"}, "WORLD_SIZE: expected an integer from 0 to 99,999"),
        ({"RANK": "8"}, "expected a rank below 8, got 8"),
    ],
)
def test_a_wrong_rank_is_a_usage_error(monkeypatch, changes, said):
    monkeypatch.setattr(os, "environ", TORCHRUN | changes)
    with pytest.raises(UsageError, match=said):
        rank_here()


def looks(count):
    """Return a `has_time` that ends after `count` calls."""
    left = iter([True] * count)
    return lambda: next(left, False)


def peers_of(store, count):
    return [Peers(rank_of(number, number, count, count), store) for number in range(count)]


def test_all_ranks_start_together():
    first, second = peers_of(torch.distributed.HashStore(), 2)
    assert not first.meet("together", looks(3))
    assert second.meet("together", looks(0))
    assert Peers(rank_of(0, 0), None).meet("together", looks(0))  # one rank alone


class LostStore:
    def add(self, *_):
        raise torch.distributed.DistNetworkError("Connection reset by peer")


@pytest.mark.parametrize("store", [LostStore(), None])
def test_a_lost_store_leaves_a_rank_alone(store):
    peers = Peers(rank_of(1, 1, 4, 4), store)
    assert not peers.meet("together", lambda: True)
    assert (peers.send("x"), list(peers.received())) == (False, [])


@pytest.mark.exhaustive
def test_there_is_no_store_without_an_address_or_a_listener(monkeypatch):
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    assert open_store(rank_of(1, 1, 2), 1) is None
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    assert open_store(rank_of(1, 1, 2), 1) is None
    assert open_store(rank_of(0, 0), 1) is None


def test_texts_of_all_ranks_arrive_once(monkeypatch):
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    first, second = (
        Peers(rank, open_store(rank, 5)) for rank in (rank_of(0, 0, 2, 2), rank_of(1, 1, 2, 2))
    )
    assert second.send("1")
    assert first.send("0")
    assert [list(first.received()) for _ in range(2)] == [["1", "0"], []]


def hold_a_turn(rank, is_held):
    with turn(rank, lambda: True):
        is_held.set()
        signal.pause()


def test_a_killed_rank_gives_up_its_turn(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    context = multiprocessing.get_context("fork")
    is_held, here = context.Event(), Rank(rank=0, node="a/b")
    process = context.Process(target=hold_a_turn, args=(here, is_held))
    process.start()
    assert is_held.wait(10)
    with turn(Rank(rank=0, node="other"), looks(1)) as is_mine:
        assert is_mine
    with turn(here, looks(3)) as is_mine:
        assert not is_mine
    process.kill()
    with turn(here, looks(500)) as is_mine:
        assert is_mine
    process.join()
    assert list(tmp_path.iterdir()) == []
