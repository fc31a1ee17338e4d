"""Where this rank runs, and what it shares with the others: a store, turns on its node, a common
start, steps.

Ranks are started by torchrun, srun, mpirun, a Kubernetes Job, or one by one. Nothing here waits
without a deadline, and a store that is lost is not an error: each rank has its results on disk.
"""

from __future__ import annotations

import os
import platform
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from bench.harness.cli.arguments import UsageError
from bench.harness.worker import signal_on_parent_exit
from results.record import Object, Rank

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

LAUNCHERS = {
    "torchrun": ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    "slurm": ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_TASKS_PER_NODE"),
    "mpi": (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    "kubernetes": ("JOB_COMPLETION_INDEX", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
}
"""Environment variables of each launcher, in the order of `NUMBERS`.

Source: torchrun's documentation; srun(1), where `SLURM_TASKS_PER_NODE` may be `4(x2),3`; Open MPI
FAQ, running MPI jobs; Kubernetes documentation, indexed Jobs: one pod for each index."""

NUMBERS = ("rank", "local_rank", "world_size", "local_world_size")

POLL_S = 0.05
"""Time between two looks at the lock of a node or at the store, and so the difference between the
starts of ranks.
"""

QUEUE = "steps"
MAX_ADDRESS = 108
"""Maximum bytes of the address of a socket. Source: unix(7)."""


def gpu_of(rank: Rank, visible: int) -> str:
    """Return the name of the rank's GPU. A launcher that gives each rank one GPU hides the
    others.
    """
    return "cuda:0" if visible == 1 else f"cuda:{rank.local_rank}"


def rank_here() -> Rank:
    """Return the rank of this process, from the variables of its launcher; rank 0 of 1 if there are
    none.

    Raises:
        UsageError: a variable is not an integer, or the rank is not below the number of ranks.
    """
    names = ("ROOFMARK_NODE", "SLURMD_NODENAME", "NODE_NAME")
    node = next(
        (os.environ[name] for name in names if os.environ.get(name)), platform.node() or "localhost"
    )
    launcher = next(
        (launcher for launcher, (rank, *_) in LAUNCHERS.items() if os.environ.get(rank)), None
    )
    if launcher is None:
        return Rank(rank=0, world_size=1, node=node)
    numbers: Object = {}
    for name, variable in zip(NUMBERS, LAUNCHERS[launcher], strict=True):
        text = os.environ.get(variable)
        if text:
            match = re.match(r"[0-9]{1,5}(?![0-9])", text)
            if match is None:
                raise UsageError(f"{variable}: expected an integer from 0 to 99,999, got '{text}'")
            numbers[name] = int(match[0])
    rank = Rank(node=node, launcher=launcher, **numbers)
    if rank.world_size is not None and rank.rank >= rank.world_size:
        raise UsageError(
            f"{LAUNCHERS[launcher][0]}: expected a rank below {rank.world_size}, got {rank.rank}"
        )
    return rank


def end_with_launcher(rank: Rank) -> None:
    """Let this process get SIGTERM when torchrun is killed, which then cannot end its ranks."""
    if rank.launcher == "torchrun":
        signal_on_parent_exit(signal.SIGTERM)


def open_store(rank: Rank, timeout_s: float, is_parent: bool = True) -> Store | None:
    """Return torchrun's store, or that of rank 0 at `MASTER_ADDR` and `MASTER_PORT`; None if there
    is none.

    `timeout_s` limits the time to connect, and each call that waits for a key. A process that a
    rank has started, not `is_parent`, does not hold the store.
    """
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    host = os.environ.get("MASTER_ADDR")
    port = os.environ.get("MASTER_PORT", "")
    if not host or not port.isdecimal() or rank.world_size in (None, 1):
        return None
    is_master = (
        is_parent and rank.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    )
    timeout = timedelta(seconds=timeout_s)
    try:
        store = TCPStore(
            host, int(port), is_master=is_master, timeout=timeout, wait_for_workers=False
        )
    except (RuntimeError, ValueError):  # nobody listens there, or the port is taken
        return None
    return PrefixStore(f"roofmark/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


@contextmanager
def turn(rank: Rank, has_time: Callable[[], bool]) -> Iterator[bool]:
    """Let one rank of a node at a time run the block; yield False if there was no turn while
    `has_time()`.

    A rank that has the turn owns the name of a socket, which leaves no file and which the kernel
    frees when the rank dies. Source: abstract addresses, unix(7).
    """
    address = f"\0roofmark-fleet-{os.getuid()}-{rank.node}".encode()[:MAX_ADDRESS]
    with socket.socket(socket.AF_UNIX) as holder:
        is_mine = False
        while not is_mine and has_time():
            try:
                holder.bind(address)
                is_mine = True
            except OSError:
                time.sleep(POLL_S)
        yield is_mine


class Peers:
    """The ranks of a run, connected by a store; without a store, or after it is lost, a rank is
    alone.
    """

    def __init__(self, rank: Rank, store: Store | None) -> None:
        self.rank = rank
        self.store = store

    def _try(self, use: Callable[[Any], Any]) -> Any:
        """Return the result of an operation on the store; None if there is no store (any more)."""
        if self.store is not None:
            try:
                return use(self.store)
            except RuntimeError:  # as when the process that has it is gone
                self.store = None
        return None

    def meet(self, name: str, has_time: Callable[[], bool]) -> bool:
        """Arrive at `name`; return whether all ranks have arrived while `has_time()`."""
        size = self.rank.world_size or 1
        arrived = self._try(lambda store: store.add(name, 1)) or 1
        while arrived < size and self.store is not None and has_time():
            time.sleep(POLL_S)
            arrived = self._try(lambda store: store.add(name, 0)) or 1
        return arrived == self.rank.world_size

    def send(self, step: str) -> bool:
        """Append a step to the queue for rank 0; return whether it was sent."""
        self._try(lambda store: store.queue_push(QUEUE, step))
        return self.store is not None

    def received(self) -> Iterator[str]:
        """Remove and yield the steps in the queue."""
        while self._try(lambda store: store.queue_len(QUEUE)):
            yield self._try(lambda store: store.queue_pop(QUEUE, block=False)).decode()
