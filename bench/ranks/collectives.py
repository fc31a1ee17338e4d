"""Collectives timed by each rank, and what their times say of slow ranks and links.

In a round, each rank times a short matmul, and then the collective. The rank that arrives last
waits least, so its collective is the shortest. Times are gathered after the rounds of a size.
"""

from __future__ import annotations

import atexit
import itertools
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial, reduce
from statistics import median
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from numpy import float64
from numpy.typing import NDArray
from torch.distributed import Store  # type: ignore[attr-defined]

from bench.harness.device.device import NoDeviceError
from bench.harness.run import Run
from bench.harness.timing.protocol import no_garbage_collection
from bench.harness.transfer import finished_s
from results.record import Object, Rank, Record
from results.show.terminal import NO_DEVICE
from results.show.units import duration, quantity
from results.stats.comparison import PeerSpread
from results.stats.samples import median_ci95

Pair = tuple[int, int]
Times = NDArray[float64]
"""Seconds (rounds, ranks)."""

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

REDUCING = ("all-reduce", "reduce-scatter")
DIVIDING = ("all-gather", "reduce-scatter", "all-to-all")
WAITING = ("all-reduce", *DIVIDING)
"""No rank finishes these before all have arrived. The others do not show who arrived last."""

WORK_WIDTHS = {False: 256, True: 4096}
"""n of the fp32 matmul before each collective, on a CPU and on a GPU: about a millisecond."""

WARM_UPS = 2
MIN_ROUNDS = 7
MAX_ROUNDS = 40
ROUNDS_S = 0.5
SWEEPS = 7
EXCHANGES = 5

LATE_ROUNDS = 0.8
"""A late rank is late in at least this fraction of the rounds."""
LATE_SHARE = 0.5
SLOWER_SHARE = 0.02
"""It is then late by at least these fractions of its collective and of the usual matmul."""
DEVICE_SHARE = 2 / 3
HOST_SHARE = 1 / 3
"""Fractions of the delay in the matmul: from the first it is the device, up to the second the host
or input.
"""

MIN_LINKED_RANKS = 4
LINK_SHARE = 0.1
"""Fraction of the time by which a slow pair exceeds the others in every sweep."""
LINK_P = 1e-4
"""Largest probability of such a pair by chance."""
LINK_SPREAD = 0.02
LINK_DEGREES = 12.0
"""Assumed spread between pairs, and its weight."""

ANSWER_S = 2.0
"""Time for the other ranks to answer after a timeout."""


all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""Both were renamed in torch 2.13."""


class Collective:
    """One op on arrays of integers; the size is rounded up to equal parts of all ranks if the op
    divides it.
    """

    def __init__(self, op: str, row: Record, group: Group) -> None:
        dtype = DTYPES[row.dtype]
        self.op = op
        self.rank = group.rank
        self.ranks = group.ranks
        self.timeout_s = group.run.settings.timeout_s
        unit = dtype.itemsize * (self.ranks if op in DIVIDING else 1)
        self.size_bytes = unit * math.ceil(row.shape["bytes"] / unit)
        total = self.size_bytes // dtype.itemsize
        part = total // self.ranks
        self.own = slice(self.rank * part, (self.rank + 1) * part)
        self._length = part if op == "all-gather" else total
        length = part if op == "reduce-scatter" else total
        self.result = torch.empty(length, dtype=dtype, device=group.run.device.torch_name)
        self.source = self.input_of(self.rank)

    def input_of(self, rank: int) -> torch.Tensor:
        modulus = 3 if self.op in REDUCING else 251  # bf16 is exact up to 256: sums of 128 ranks
        period = ((torch.arange(modulus) + 13 * rank) % modulus).to(self.result)
        return period.repeat(math.ceil(self._length / modulus))[: self._length]

    def expected(self) -> torch.Tensor:
        inputs = (self.input_of(rank) for rank in range(self.ranks))
        if self.op in REDUCING:
            total = reduce(torch.add, inputs)
            return total[self.own] if self.op == "reduce-scatter" else total
        if self.op in DIVIDING:
            return torch.cat(
                [(each if self.op == "all-gather" else each[self.own]).clone() for each in inputs]
            )
        return self.input_of(0 if self.op == "broadcast" else (self.rank - 1) % self.ranks)

    def prepare(self) -> None:
        if self.op == "all-reduce" or (self.op == "broadcast" and self.rank == 0):
            self.result.copy_(self.source)
        else:
            self.result.fill_(-1)

    def __call__(self) -> None:
        if self.op == "send-recv":
            self.exchange((self.rank + 1) % self.ranks, (self.rank - 1) % self.ranks)
            return
        calls: dict[str, Callable[[], Any]] = {
            "all-reduce": lambda: dist.all_reduce(self.result, async_op=True),
            "all-gather": lambda: all_gather(self.result, self.source, async_op=True),
            "reduce-scatter": lambda: reduce_scatter(self.result, self.source, async_op=True),
            "all-to-all": lambda: dist.all_to_all_single(self.result, self.source, async_op=True),
            "broadcast": lambda: dist.broadcast(self.result, 0, async_op=True),
        }
        self.finish([calls[self.op]()])

    def exchange(self, to: int, source: int) -> None:
        sent = dist.P2POp(dist.isend, self.source, to)
        received = dist.P2POp(dist.irecv, self.result, source)
        self.finish(dist.batch_isend_irecv([sent, received]))

    def finish(self, requests: Sequence[Any]) -> None:
        """Wait for requests; gloo waits with a deadline, nccl would wait for its watchdog, which
        ends the process.

        Raises:
            RuntimeError: a request has not finished after `timeout_s`.
        """
        deadline = time.monotonic() + self.timeout_s
        for request in requests:
            while self.result.is_cuda and not request.is_completed():
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{self.op} timed out")
            request.wait()


@dataclass(frozen=True)
class Claim:
    """A cause of slow collectives: `device`, `host or input`, or `link`, of a rank or of a pair of
    ranks.
    """

    cause: str
    ranks: tuple[int, ...]
    evidence: str


def excess(times_s: Times) -> Times:
    """Return by how much each rank exceeds the median of the others in each round."""
    others = [
        np.median(np.delete(times_s, rank, axis=1), axis=1) for rank in range(times_s.shape[1])
    ]
    return times_s - np.stack(others, axis=1)


def rounds_of(op: str, durations_s: Times) -> NDArray[float64]:
    """Return the seconds of each round without the wait for the last rank, which waits least.

    A rank finishes a broadcast or its own exchange before others: there the slowest counts.
    """
    times_s: NDArray[float64] = durations_s.max(axis=1)
    if op in WAITING:
        times_s = durations_s.min(axis=1)
    return times_s


def late_ranks(durations_s: Times, work_s: Times) -> tuple[set[int], list[Claim]]:
    """Return the ranks that arrive late in most rounds, and claims on those whose matmul shows the
    cause.
    """
    late_s = -excess(durations_s)
    slower_s = excess(work_s)
    late = set()
    claims = []
    min_s = SLOWER_SHARE * float(np.median(work_s))
    for rank in range(durations_s.shape[1]):
        is_late = late_s[:, rank] > np.maximum(LATE_SHARE * durations_s[:, rank], min_s)
        if is_late.mean() < LATE_ROUNDS:
            continue
        late.add(rank)
        delay = float(np.median(late_s[:, rank]))
        slower = float(np.median(slower_s[:, rank]))
        if HOST_SHARE < slower / delay < DEVICE_SHARE:
            continue
        cause = "host or input"
        more = "about as fast as"
        if slower >= DEVICE_SHARE * delay:
            cause = "device"
            more = f"{duration(slower)} slower than"
        rounds = f"late by {duration(delay)} in {is_late.sum()} of {len(is_late)} rounds"
        claims.append(Claim(cause, (rank,), f"{rounds}; its matmul is {more} those of others"))
    return late, claims


def pair_rounds(ranks: int) -> list[list[Pair]]:
    """Return all pairs in n - 1 rounds (n if n is odd) in which a rank is in one pair at most.

    Source: the circle method, Kirkman, Cambridge and Dublin Mathematical Journal 2 (1847) 191.
    """
    slots = list(range(ranks + ranks % 2))
    rounds = []
    for _ in slots[1:]:
        pairs = [sorted((slots[index], slots[-1 - index])) for index in range(len(slots) // 2)]
        rounds.append([(low, high) for low, high in pairs if high < ranks])
        slots = [slots[0], slots[-1], *slots[1:-1]]
    return rounds


def slow_links(
    pairs_s: Mapping[Pair, Sequence[float]], nodes: Sequence[str], late: Set[int] = frozenset()
) -> list[Claim]:
    """Return claims on pairs that are slower than the others in every sweep, or on a rank if all
    its pairs are.

    Pairs within a node and between nodes are compared separately; pairs of late ranks are left out.
    """
    claims = []
    for is_inside in (True, False):
        pairs = [
            (a, b)
            for a, b in pairs_s
            if (nodes[a] == nodes[b]) is is_inside and late.isdisjoint((a, b))
        ]
        partners = Counter(itertools.chain(*pairs))
        if len(partners) < MIN_LINKED_RANKS:
            continue
        # The rate of the middle, of an even number of pairs the faster one, is that of a usual pair
        # also if the 3 of 6 pairs of a rank are slow.
        rates = {pair: -math.log(median(pairs_s[pair])) for pair in pairs}
        spread = PeerSpread.of(rates.values(), LINK_SPREAD, LINK_DEGREES)
        slow = []
        for pair in pairs:
            best = -math.log(min(pairs_s[pair]))
            if best < spread.center - LINK_SHARE and spread.p_value(best) < LINK_P:
                slow.append(pair)
        of_slow = Counter(itertools.chain(*slow))
        ranks = [
            rank for rank, number in partners.items() if number > 2 and of_slow[rank] == number
        ]
        claimed: list[tuple[int, ...]] = [(rank,) for rank in sorted(ranks)]
        claimed += [pair for pair in slow if not set(ranks) & set(pair)]
        for who in claimed:
            rate = median(rates[pair] for pair in pairs if set(who) <= set(pair))
            ratio = math.exp(spread.center - rate)
            evidence = f"exchanges take {ratio:.3g} times as long as those of other pairs"
            claims.append(Claim("link", who, evidence))
    return claims


@contextmanager
def guarding(store: Store, here: Rank, timeout_s: float) -> Iterator[None]:
    """Leave the group at the end; after a failure, when leaving it may never return, name the ranks
    that do not answer.

    Raises:
        NoDeviceError: a failure, on the first rank that answers; the others exit with the same
            code.
    """
    ranks = range(here.world_size or 1)
    alive = {here.rank}
    try:
        yield
        if dist.is_initialized():
            dist.destroy_process_group()
    except RuntimeError as error:
        # Gloo's threads may still hold tensors, for which Python's own exit may wait forever.
        # Source: https://github.com/pytorch/pytorch/pull/179291.
        atexit.register(os._exit, NO_DEVICE)
        # After a timeout, all others fail at the same time; after a lost connection, until they
        # reach their timeout.
        is_timeout = "imed out" in str(error) or "monitoredBarrier" in str(error)
        deadline = time.monotonic() + ANSWER_S + (0 if is_timeout else timeout_s)
        try:
            store.set(f"alive/{here.rank}", "")
            while len(alive) < len(ranks) and time.monotonic() < deadline:
                alive |= {rank for rank in ranks if store.check([f"alive/{rank}"])}
                time.sleep(0.05)
        except RuntimeError:  # the store is gone with its rank
            alive = set(ranks[1:])
        if here.rank > min(alive):
            raise SystemExit(NO_DEVICE) from None
        missing = ", ".join(str(rank) for rank in ranks if rank not in alive)
        raise NoDeviceError(
            f"no answer from rank {missing}" if missing else str(error).splitlines()[0]
        ) from None


class Group:
    """The ranks of a run, and what is found about them. Checks and gathering use gloo, also between
    GPUs.
    """

    def __init__(self, here: Rank, store: Store, run: Run, backend: str) -> None:
        self.rank = here.rank
        self.run = run
        self.ranks = here.world_size or 1
        timeout = timedelta(seconds=run.settings.timeout_s)
        # Of nccl, the watchdog ends the process only after the deadline of `Collective.finish`.
        dist.init_process_group(
            backend,
            store=store,
            rank=here.rank,
            world_size=self.ranks,
            timeout=3 * timeout if run.device.is_gpu else timeout,
            device_id=torch.device(run.device.torch_name) if run.device.is_gpu else None,
        )
        group = dist.new_group(backend="gloo", timeout=timeout)
        self.gloo = cast("dist.ProcessGroup", group)  # all ranks are in it
        self.nodes = self.gathered(here.node)
        # Raises RuntimeError unless all ranks arrive in time.
        self.check = partial(dist.monitored_barrier, self.gloo, timeout, wait_all_ranks=True)
        n = WORK_WIDTHS[run.device.is_gpu]
        a = torch.ones(n, n, device=run.device.torch_name)
        out = torch.empty(n, n, device=run.device.torch_name)
        self.work = lambda: torch.mm(a, a, out=out)
        self.claims: list[Claim] = []
        self.pairs_s: dict[Pair, list[float]] = {}

    def gathered(self, value: Any) -> list[Any]:
        """Return the values of all ranks."""
        values = [None] * self.ranks
        dist.all_gather_object(values, value, self.gloo)
        return values

    def measure(self, rows: Sequence[Record], has_pairs: bool) -> None:
        """Measure all rows, then all pairs at the largest size; all ranks do so together."""
        arrivals = []
        late: set[int] = set()
        self.run.progress.expect(len(rows))
        for row in rows:
            self.run.progress.say(f"{row.op} {quantity(row.shape['bytes'], 'B')}")
            self.check()
            times = self.measure_row(row)
            # Large arrays hide who arrived late.
            if row.op in WAITING and row.shape == rows[0].shape:
                arrivals.append(times)
            self.run.progress.advance()
        if arrivals:
            durations_s, work_s = map(np.concatenate, zip(*arrivals, strict=True))
            late, self.claims = late_ranks(durations_s, work_s)
        if has_pairs:
            self.measure_pairs(rows[-1])
            self.claims += slow_links(self.pairs_s, self.nodes, late)

    def measure_row(self, row: Record) -> tuple[Times, Times]:
        """Save the record of this rank, and return the times of the collective and of the matmul
        before it.
        """
        job = Collective(row.op, row, self)
        device = self.run.device

        def rounds(count: int) -> Iterator[tuple[float, float]]:
            for _ in range(count):
                job.prepare()
                work_s = finished_s(self.work, device)
                yield finished_s(job, device), work_s

        with no_garbage_collection():
            *_, warm_up_s = rounds(WARM_UPS)
            round_s = max(self.gathered(sum(warm_up_s)))
            is_wrong = not torch.equal(job.result, job.expected())
            count = min(MAX_ROUNDS, max(MIN_ROUNDS, int(ROUNDS_S / round_s)))
            samples_s, own_work_s = zip(*rounds(count), strict=True)
        wrong = self.gathered(is_wrong or not torch.equal(job.result, job.expected()))
        all_s, work_s = np.array(self.gathered((samples_s, own_work_s))).transpose(1, 2, 0)
        telemetry: Object = {"work_s": list(own_work_s)}
        if self.rank == 0:
            telemetry["round_s"] = rounds_of(row.op, all_s).tolist()
            if row.op in WAITING:
                telemetry["skew_s"] = float(np.median(np.ptp(all_s, axis=1)))
        row = replace(
            row, shape={"bytes": job.size_bytes}, case=str(job.size_bytes), telemetry=telemetry
        )
        if True in wrong:
            row = replace(row, status="invalid", reason=f"wrong result on rank {wrong.index(True)}")
        else:
            row = replace(
                row,
                status="ok",
                samples_s=samples_s,
                median_s=median(samples_s),
                ci95_s=median_ci95(samples_s),
            )
        self.run.keep(row)
        return all_s, work_s

    def measure_pairs(self, row: Record) -> None:
        """Measure exchanges of each pair in several sweeps, because a disturbance may slow a pair
        in one whole sweep.

        The rank that arrived last did not wait, so the shorter time of the two counts.
        """
        job = Collective("send-recv", row, self)
        for pairs in pair_rounds(self.ranks) * SWEEPS:
            exchange = job.prepare
            for pair in pairs:
                if self.rank in pair:
                    partner = sum(pair) - self.rank
                    exchange = partial(job.exchange, partner, partner)
            self.check()
            all_s = self.gathered(
                [finished_s(exchange, self.run.device) for _ in range(1 + EXCHANGES)][1:]
            )
            for one, two in pairs:
                self.pairs_s.setdefault((one, two), []).append(
                    median(map(min, all_s[one], all_s[two]))
                )
