"""One rank of `bench.collectives` with a fault:
`python rank_with_fault.py FAULT RANK SECONDS OPTIONS...`.

`before`, `inside` and `after` the collective and `work`, inside the matmul, sleep; `hang`, `exit`
and `kill` end the answers of the rank after two sizes. `none` has no fault.
"""

import os
import signal
import sys
import time

import torch

import bench.harness.collectives as harness
from bench.collectives import main

fault, rank, seconds, *options = sys.argv[1:]
finished_s, call, exchange, check = (
    harness.finished_s,
    *(getattr(harness.Collective, name) for name in ("__call__", "exchange", "prepare")),
)
calls = 0


def with_sleep(job, device):
    is_collective = isinstance(job, harness.Collective)
    if fault == "before" and is_collective:
        time.sleep(float(seconds))
    took_s = finished_s(
        job if fault != "work" or is_collective else lambda: (job(), time.sleep(float(seconds))),
        device,
    )
    if fault == "after" and is_collective:
        time.sleep(float(seconds))
    return took_s


def slow_call(self):
    if self.op != "send-recv":  # `exchange` sleeps
        time.sleep(float(seconds))
    call(self)


def slow_exchange(self, to, source):
    time.sleep(float(seconds))
    exchange(self, to, source)


def last_answer(row):
    global calls
    calls += 1
    if calls == 3:
        if fault == "hang":
            time.sleep(600)
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(17)


def wrong(self):
    call(self)
    self.result[-1] += 1


torch.set_num_threads(1)
if os.environ["RANK"] == rank:
    if fault in ("before", "after", "work"):
        harness.finished_s = with_sleep
    elif fault == "inside":
        harness.Collective.__call__, harness.Collective.exchange = slow_call, slow_exchange
    elif fault == "wrong":
        harness.Collective.__call__ = wrong
    elif fault in ("hang", "kill", "exit"):
        harness.Group.measure_row = lambda self, row, measure=harness.Group.measure_row: (
            last_answer(row),
            measure(self, row),
        )[1]
sys.exit(main(options))
