"""Rank from the environment of each launcher; turns, common start and answers by a store on a
simulated clock.
"""

import multiprocessing
import signal

import pytest
import torch.distributed

from bench.harness.cli.arguments import UsageError
from bench.ranks.launcher import Peers, Rank, open_store, rank_here, turn

MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"}
TORCHRUN = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "7",
    "SLURM_TASKS_PER_NODE": "4(x2),3",
}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, Rank(0, 0, 1, 1, "n", "none")),
        (TORCHRUN, Rank(5, 1, 8, 4, "n", "torchrun")),
        (SLURM, Rank(3, 1, 7, 4, "n", "slurm")),
        (TORCHRUN | SLURM, Rank(5, 1, 8, 4, "n", "torchrun")),  # torchrun inside of an allocation
        (MPI, Rank(2, 0, 4, 1, "n", "mpi")),
        ({"JOB_COMPLETION_INDEX": "6"}, Rank(6, 0, None, 1, "n", "kubernetes")),
        ({"JOB_COMPLETION_INDEX": "6", "WORLD_SIZE": "8"}, Rank(6, 0, 8, 1, "n", "kubernetes")),
    ],
)
def test_each_launcher_gives_the_rank(environ, expected):
    assert rank_here({**environ, "SLURMD_NODENAME": "n"}) == expected


def test_a_rank_has_the_gpu_of_its_number_or_the_only_one():
    assert [Rank(9, 1).gpu(visible) for visible in (8, 1)] == ["cuda:1", "cuda:0"]


def test_a_node_has_the_first_known_name():
    names = {"ROOFMARK_NODE": "a", "SLURMD_NODENAME": "b", "NODE_NAME": "c"}
    for expected in "abc":
        assert rank_here(names).node == expected
        names.pop(next(iter(names)))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"RANK": "x"}, "RANK: expected an integer from 0, got 'x'"),
        ({"RANK": "8"}, "expected a rank below 8, got 8"),
    ],
)
def test_a_wrong_rank_is_a_usage_error(changes, said):
    with pytest.raises(UsageError, match=said):
        rank_here(TORCHRUN | changes)


def looks(count):
    """Return a `has_time` that ends after `count` calls."""
    left = iter([True] * count)
    return lambda: next(left, False)


def peers_of(store, count):
    return [Peers(Rank(number, number, count, count), store) for number in range(count)]


def test_all_ranks_start_together():
    store = torch.distributed.HashStore()
    first, second = peers_of(store, 2)
    assert not first.meet("together", looks(3))
    assert second.meet("together", looks(0))
    assert Peers(Rank(), None).meet("together", looks(0))  # one rank alone


class LostStore:
    def add(self, *_):
        raise torch.distributed.DistNetworkError("Connection reset by peer")


@pytest.mark.parametrize("store", [LostStore(), None])
def test_a_lost_store_leaves_a_rank_alone(store):
    peers = Peers(Rank(1, 1, 4, 4), store)
    assert not peers.meet("together", lambda: True)
    assert (peers.send("answers", "x"), list(peers.received("answers"))) == (False, [])


@pytest.mark.exhaustive
def test_there_is_no_store_without_an_address_or_a_listener(monkeypatch):
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    assert open_store(Rank(1, 1, 2), 1) is None
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    assert open_store(Rank(1, 1, 2), 1) is None
    assert open_store(Rank(), 1) is None


def test_texts_of_all_ranks_arrive_once(monkeypatch):
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    first, second = (
        Peers(rank, open_store(rank, 5)) for rank in (Rank(0, 0, 2, 2), Rank(1, 1, 2, 2))
    )
    assert second.send("answers", "1")
    assert first.send("answers", "0")
    assert [list(first.received("answers")) for _ in range(2)] == [["1", "0"], []]


def hold_a_turn(rank, is_held):
    with turn(rank, lambda: True):
        is_held.set()
        signal.pause()


def test_a_killed_rank_gives_up_its_turn(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    context = multiprocessing.get_context("fork")
    is_held, here = context.Event(), Rank(node="a/b")
    process = context.Process(target=hold_a_turn, args=(here, is_held))
    process.start()
    assert is_held.wait(10)
    with turn(Rank(node="other"), looks(1)) as is_mine:
        assert is_mine
    with turn(here, looks(3)) as is_mine:
        assert not is_mine
    process.kill()
    with turn(here, looks(500)) as is_mine:
        assert is_mine
    process.join()
    assert list(tmp_path.iterdir()) == []
