"""`bench.fleet` on tiny rows, with the FAULT of rank FAULTY_RANK:
`torchrun -m tests.bench.fleet.faults OPTION...`.

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
from bench.harness.fleet import measure, member
from results.record import Record
from tests.bench.fleet import faults

FAULT, SHORT_S = os.environ.get("FAULT"), 0.05
PARENT_SIGNALS = {"parent killed": signal.SIGKILL, "parent stopped": signal.SIGSTOP}


def is_faulty():
    return os.environ.get("FAULTY_RANK", "1") == os.environ.get("RANK", "0")


def measured(items, device) -> Iterator[Record]:
    """Measure briefly; a matmul of the faulty rank never returns, or ends its process."""
    bandwidth.operand_bytes, measure.LINK_BYTES = lambda _: 2**20, 2**20
    measure.CPU_EXTENT = measure.GPU_EXTENT = 64
    for item in items:
        if is_faulty() and item.op == "matmul":
            if FAULT == "hang":
                time.sleep(1000)
            if FAULT == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if FAULT == "exit":
                os._exit(17)
        yield from real_measured([item._replace(seconds=SHORT_S)], device)


def detected(rank) -> Device:
    device = real_detected(rank)
    return (
        replace(device, name="Other GPU", slug="other-gpu")
        if FAULT == "sku" and is_faulty()
        else device
    )


real_measured, real_detected = measure.measured, measure.detected


def main():
    measure.measured, measure.detected = faults.measured, faults.detected
    member.HANG_S = 8.0 if FAULT else member.HANG_S
    if is_faulty() and FAULT == "disk":
        resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000))
    if is_faulty() and FAULT in PARENT_SIGNALS:
        step = member.Member.step

        def step_or_stop(member, text):
            if text == "solo matmul":
                os.kill(os.getpid(), PARENT_SIGNALS[FAULT])
            step(member, text)

        member.Member.step = step_or_stop
    return fleet.main()


if __name__ == "__main__":
    sys.exit(main())
