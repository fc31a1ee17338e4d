"""Ranks of `bench.collectives`, of which one has a fault.

`before` and `inside` the collective and `work`, inside the matmul, sleep; `wrong` changes a result;
`hang` and `kill` end the answers of the rank after two sizes. `none` has no fault.

Imports of torch would take most of the time of a test, so this process imports it once and forks
the ranks. Each line of stdin is a job, and the answer is the exit code of each rank; None for a
rank that was killed because it hung.
"""

import json
import os
import signal
import sys
import time

import torch

import bench.ranks.collectives as harness
from bench.collectives import main

finished_s = harness.finished_s
call = harness.Collective.__call__
exchange = harness.Collective.exchange
measure_row = harness.Group.measure_row
calls = 0


def hurt(fault, seconds):
    """Give this process a fault."""

    def with_sleep_before(job, device):
        if isinstance(job, harness.Collective):
            time.sleep(seconds)
        return finished_s(job, device)

    def with_slow_work(job, device):
        def slow():
            job()
            time.sleep(seconds)

        return finished_s(job if isinstance(job, harness.Collective) else slow, device)

    def slow_call(self):
        if self.op != "send-recv":  # `exchange` sleeps
            time.sleep(seconds)
        call(self)

    def slow_exchange(self, to, source):
        time.sleep(seconds)
        exchange(self, to, source)

    def measure_two_rows(self, row):
        global calls
        calls += 1
        if calls == 3:
            if fault == "hang":
                time.sleep(600)
            os.kill(os.getpid(), signal.SIGKILL)
        return measure_row(self, row)

    def wrong(self):
        call(self)
        self.result[-1] += 1

    if fault == "before":
        harness.finished_s = with_sleep_before
    elif fault == "work":
        harness.finished_s = with_slow_work
    elif fault == "inside":
        harness.Collective.__call__ = slow_call
        harness.Collective.exchange = slow_exchange
    elif fault == "wrong":
        harness.Collective.__call__ = wrong
    elif fault in ("hang", "kill"):
        harness.Group.measure_row = measure_two_rows


def become(rank, job):
    """Let this process be a rank, with its own environment, stdout and stderr."""
    os.environ.update(job["environments"][rank])
    for number, suffix in ((1, "out"), (2, "err")):
        descriptor = os.open(f"{job['directory']}/{rank}.{suffix}", os.O_CREAT | os.O_WRONLY)
        os.dup2(descriptor, number)
    fault, faulty, seconds = job["fault"]
    torch.set_num_threads(1)
    if rank == faulty:
        hurt(fault, seconds)
    elif fault == "inside":  # times of a usual link that a busy machine hardly changes
        hurt(fault, seconds / 10)
    sys.exit(main(job["options"]))


def serve():
    for line in sys.stdin:
        job = json.loads(line)
        processes = {}
        for rank in range(len(job["environments"])):
            processes[rank] = os.fork()
            if not processes[rank]:
                become(rank, job)
        fault, faulty, _ = job["fault"]
        hung = processes.pop(faulty) if fault == "hang" else None
        codes = {}
        for rank, process in processes.items():
            codes[rank] = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if hung:
            os.kill(hung, signal.SIGKILL)
            os.waitpid(hung, 0)
        print(json.dumps(codes), flush=True)


if __name__ == "__main__":
    serve()
