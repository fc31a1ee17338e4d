"""One rank of `bench.collectives` with a fault:
`python rank_with_fault.py FAULT RANK SECONDS OPTIONS...`.

`before` and `inside` the collective and `work`, inside the matmul, sleep; `wrong` changes a result;
`hang` and `kill` end the answers of the rank after two sizes. `none` has no fault.
"""

import os
import signal
import sys
import time

import torch

import bench.ranks.collectives as harness
from bench.collectives import main

fault, rank, seconds, *options = sys.argv[1:]
finished_s = harness.finished_s
call = harness.Collective.__call__
exchange = harness.Collective.exchange
measure_row = harness.Group.measure_row
calls = 0


def sleep():
    time.sleep(float(seconds))


def with_sleep_before(job, device):
    if isinstance(job, harness.Collective):
        sleep()
    return finished_s(job, device)


def with_slow_work(job, device):
    def slow():
        job()
        sleep()

    return finished_s(job if isinstance(job, harness.Collective) else slow, device)


def slow_call(self):
    if self.op != "send-recv":  # `exchange` sleeps
        sleep()
    call(self)


def slow_exchange(self, to, source):
    sleep()
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


torch.set_num_threads(1)
if os.environ["RANK"] == rank:
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
sys.exit(main(options))
