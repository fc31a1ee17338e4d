"""`bench.fleet` on tiny rows, with the fault of each rank in FAULTS:
`FAULTS=,hang torchrun -m tests.bench.ranks.faults OPTION...`.

The functions of the measuring process are replaced by these, which the new process imports by name.
"""

import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

from bench import fleet
from bench.harness.calibrate import bandwidth
from bench.harness.device.device import Device
from bench.ranks import measure, member
from results.record import Record
from tests.bench.ranks import faults

FAULTS = os.environ.get("FAULTS", "").split(",")
FAULT = FAULTS[int(os.environ.get("RANK", "0"))]
SHORT_S = 0.05
PARENT_SIGNALS = {"parent killed": signal.SIGKILL, "parent stopped": signal.SIGSTOP}


def measured(items, device, rank) -> Iterator[Record]:
    """Measure briefly; a matmul of the faulty rank never returns, or ends its process."""
    bandwidth.operand_bytes, measure.LINK_BYTES = lambda _: 2**20, 2**20
    measure.CPU_EXTENT = measure.GPU_EXTENT = 64
    measure.HANG_S = 8.0 if any(FAULTS) else measure.HANG_S
    yield from real_measured(hurt(items), device, rank)


def hurt(items):
    for item in items:
        if item.op == "matmul":
            if FAULT == "hang":
                time.sleep(1000)
            if FAULT == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if FAULT == "exit":
                os._exit(17)
        yield item._replace(seconds=SHORT_S)


def detected(rank) -> Device:
    device = real_detected(rank)
    return replace(device, name="Other GPU", slug="other-gpu") if FAULT == "sku" else device


real_measured, real_detected = measure.measured, measure.detected


def main():
    measure.measured, measure.detected = faults.measured, faults.detected
    member.HANG_S = 8.0 if any(FAULTS) else member.HANG_S
    if "hang" in FAULTS:  # it would take all the time that is left after SIGTERM
        member.GRACE_S = 4.0
    if FAULT == "disk":
        resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000))
    if FAULT in PARENT_SIGNALS:
        step = member.Member.step

        def step_or_stop(member, text):
            if text == "solo matmul":
                os.kill(os.getpid(), PARENT_SIGNALS[FAULT])
            step(member, text)

        member.Member.step = step_or_stop
    return fleet.main()


if __name__ == "__main__":
    sys.exit(main())
