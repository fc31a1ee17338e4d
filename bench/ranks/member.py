"""The parent process of a rank of `bench.fleet`: its measuring processes, its run file, and what it
tells rank 0.
"""

from __future__ import annotations

import json
import math
import signal
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from bench.harness import worker
from bench.harness.cli.arguments import chosen
from bench.harness.device.device import Device
from bench.harness.op_file import module_of
from bench.harness.run import stamp
from bench.harness.settings import Argv
from bench.ranks import measure
from bench.ranks.launcher import (
    POLL_S,
    Peers,
    end_with_launcher,
    open_store,
    rank_here,
    turn,
)
from bench.ranks.measure import CONNECT_S, HANG_S, PHASES, Item, items_of
from results.record import Environment, Record
from results.show.terminal import NO_DEVICE, OK, fail, print_out, say
from results.store.runfile import RunWriter, StoreError
from roofline.machine import Machine

if TYPE_CHECKING:
    from bench.fleet import Options

SOLO_SHARE = 0.6
"""Fraction of the time limit after which ranks start together even if some are missing or not
measured alone.
"""

GRACE_S = 20.0
"""Time left after SIGTERM. Source: torchrun kills ranks 30 s after it has sent SIGTERM; Slurm's
KillWait is 30 s.
"""

DONE = "done"
"""The last step of a rank."""


class Member:
    """The parent process of a rank: it starts processes that use the device, and saves their
    records.

    Rank 0 also follows the steps of all ranks.
    """

    def __init__(self, options: Options, argv: Argv) -> None:
        chosen("dtype", options.dtype, module_of("matmul").OPS[0].dtypes, ())
        self.options = options
        self.argv = sys.argv[1:] if argv is None else argv
        self.rank = rank_here()
        self.name = f"rank {self.rank.rank} (node {self.rank.node})"
        end_with_launcher(self.rank)
        self.began_s = time.monotonic()
        self.deadline = self.began_s + options.deadline
        self.start_by = self.began_s + SOLO_SHARE * options.deadline
        self.is_alone = False
        worker.start_server()
        self.peers = Peers(self.rank, open_store(self.rank, CONNECT_S))
        self.problem = ""
        self.steps = dict[int, tuple[str, str]]()

    def run(self) -> int:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, self.finish_soon)
        self.measure()
        if not self.problem and not self.writer.path.exists():
            self.stop(StoreError(f"{self.writer.path} was removed during the run"))
        self.step(DONE)
        if self.rank.rank == 0 or self.peers.store is None:
            while self.has_time() and self.missing():
                time.sleep(POLL_S)
            self.show()
        # A launcher ends all ranks if one fails, so a rank that fails waits for the others.
        self.peers.meet("end", lambda: bool(self.problem) and self.has_time())
        if self.problem:
            return fail("python -m bench.fleet", f"{self.name}: {self.problem}")
        # A launcher waits for a rank that is stopped, unless another one fails.
        is_lost = self.rank.rank == 0 and self.missing()
        return NO_DEVICE if is_lost else OK

    def finish_soon(self, *_: object) -> None:
        """Measure what there is still time for, without waiting for a common start."""
        self.deadline = min(self.deadline, time.monotonic() + GRACE_S)
        self.is_alone = True

    def has_time(self, until: float = math.inf) -> bool:
        self.follow()
        return time.monotonic() < min(until, self.deadline)

    def step(self, text: str) -> None:
        """Report progress to rank 0, which prints it."""
        if (
            not self.peers.send(json.dumps([self.rank.rank, self.name, text]))
            and not self.options.quiet
        ):
            say(f"{self.name}: {text}")
        self.follow()

    def follow(self) -> None:
        """Print the new steps of all ranks."""
        if self.rank.rank:
            return
        for rank, name, text in map(json.loads, self.peers.received()):
            self.steps[rank] = name, text
            if not self.options.quiet:
                say(f"{name}: {text}")

    def missing(self) -> dict[int, tuple[str, str]]:
        """Return name and last step of the ranks that are not done; without a store, of none."""
        missing = {}
        for rank in range(self.rank.world_size or 1):
            step = self.steps.get(rank, (f"rank {rank}", "none, it has not started"))
            if step[1] != DONE and self.peers.store is not None:
                missing[rank] = step
        return missing

    def show(self) -> None:
        """Name the ranks that are not done, and the command that reports on all."""
        waited_s = time.monotonic() - self.began_s
        for name, step in self.missing().values():
            say(f"{name}: no answer within {waited_s:.0f} s; last step: {step}")
        print_out(f"report: python -m bench fleet-report {self.options.output}\n")

    def measure(self) -> None:
        device, environment, reason = self.described()
        try:
            name = f"rank-{self.rank.rank}-{self.rank.node}"
            self.writer = RunWriter.create(environment, name, f"{self.options.output}/")
        except StoreError as error:
            self.stop(error)
        solo, together = (
            items_of(phase, device.is_gpu, self.options.dtype, self.options.quick)
            for phase in PHASES
        )
        with turn(self.rank, lambda: self.has_time(self.start_by)) as is_mine:
            turn_s = HANG_S + sum(item.seconds for item in solo) if is_mine else 0.0
            self.measure_rows(solo, device, min(self.start_by, time.monotonic() + turn_s), reason)
        if not self.peers.meet(
            "together", lambda: self.has_time(self.start_by) and not self.is_alone
        ):
            self.step("starts without all ranks")
        self.measure_rows(together, device, self.deadline, reason)

    def described(self) -> tuple[Device, Environment, str]:
        """Return the device, the first line of the run file, and why the device cannot be used, if
        so.
        """
        settings = {"quick": self.options.quick, "deadline_s": self.options.deadline}
        device = Device("unknown", "unknown", "unknown", "unknown", 0, 0)
        try:
            self.step("starting")
            device, _ = worker.call(measure.detected, self.rank, timeout_s=HANG_S)
            environment, _ = worker.call(
                measure.described, self.rank, device, settings, self.argv, timeout_s=HANG_S
            )
            return device, environment, ""
        except worker.WorkerError as error:
            self.step(f"cannot use its device: {brief(error)}")
            environment = stamp(
                "bench.fleet", device, Machine(), settings, self.argv, is_here=False
            )
            return device, replace(environment, fleet=self.rank), brief(error)

    def measure_rows(self, items: list[Item], device: Device, until: float, reason: str) -> None:
        """Measure rows and save their records; all fail with the `reason`, if there is one."""

        def left_s() -> float:
            row_s = HANG_S + items[0].seconds
            if items[0].phase == "together":
                row_s *= 2  # ranks wait for each other as long as for a row
            return min(row_s, min(until, self.deadline) - time.monotonic())

        while items and not self.problem:
            if reason or left_s() <= 0:
                self.keep(
                    items.pop(0).blank(
                        reason or "no time was left", "failed" if reason else "skipped"
                    )
                )
                continue
            try:
                self.step(items[0].title)
                for record in worker.stream(
                    measure.measured, items, device, self.rank, limit_s=left_s
                ):
                    self.keep(record)
                    del items[0]
                    if self.problem or not items:
                        break
                    self.step(items[0].title)
            except worker.WorkerError as error:
                if left_s() > 0:  # else the deadline ended it
                    self.step(f"{items[0].title} failed: {brief(error)}")
                    self.keep(items.pop(0).blank(brief(error), "failed"))

    def keep(self, record: Record) -> None:
        try:
            self.writer.append(record)
        except StoreError as error:
            self.stop(error)

    def stop(self, error: StoreError) -> None:
        """Measure no more rows, because they cannot be saved."""
        self.problem = brief(error)
        self.step(self.problem)


def brief(error: Exception) -> str:
    """Return an error without the advice at its end, which names options of other commands."""
    return str(error).partition(";")[0]
