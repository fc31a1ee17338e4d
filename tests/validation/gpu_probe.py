"""Measure with torch, Triton and NVML alone what the measurements of a GPU rely on.

    python -m tests.validation.gpu_probe

After each part it saves `truth.json` in the current directory, and prints what decides whether the
GPU can be trusted: its bandwidth and its bf16 matmul as fractions of the datasheet's, and its clock
by the cycles of a spinning kernel compared with NVML's. A part that fails is named, and costs only
its facts.

exit codes: 0 measured; 3 no GPU
"""

import gc
import itertools
import json
import math
import subprocess
import sys
import time
from functools import cached_property
from pathlib import Path
from statistics import median

import torch

MIN_COPY_SHARE = 0.78
MIN_BF16_SHARE = 0.65
MAX_SHARE = 1.05
MAX_CLOCK_DIFFERENCE = 0.03
"""The stop rule: fractions of the datasheet, and the relative difference of the clocks. More than
`MAX_SHARE` means that the events are wrong.
"""

DATASHEET_S = 30
"""Time limit for reading the table of GPUs."""

SPIN_CYCLES = 8_000_000
"""About 4 ms, of which the events are 0.1 %."""

LOAD_ROUNDS = 12
MATMULS_OF_HALF_A_LOAD = 20
GRAPH_LAUNCHES = (1, 10, 100, 800, 2000)
CLOCK_SM = 1
"""`NVML_CLOCK_SM`."""

POWER_INSTANT = 186
"""`NVML_FI_DEV_POWER_INSTANT`."""

MAX_QUEUE_PROBE = 3000
QUEUE_SPIN_CYCLES = 1_000_000_000
"""About half a second, longer than queuing the launches."""


def event_s(work):
    """Return the seconds between events before and after `work`."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3


def warm_up(work):
    """Call once, because the first launch loads the kernel's module."""
    work()
    torch.cuda.synchronize()


def spin(cycles=SPIN_CYCLES):
    torch.cuda._sleep(cycles)


def nvml_handle():
    import pynvml

    pynvml.nvmlInit()
    uuid = str(torch.cuda.get_device_properties(0).uuid)
    return pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.removeprefix('GPU-')}")


class Probe:
    """The parts of the probe; each returns its facts."""

    def __init__(self, width, copy_bytes):
        self.copy_bytes, self.width = copy_bytes, width

    @cached_property  # made by the first part that needs it: the idle clock is read before
    def a(self):
        return torch.randn(self.width, self.width, device="cuda", dtype=torch.bfloat16)

    @cached_property
    def product(self):
        return torch.empty_like(self.a)

    @cached_property
    def element(self):
        return torch.ones(1, device="cuda")

    def matmul(self, times):
        for _ in range(times):
            torch.mm(self.a, self.a, out=self.product)

    def device(self):
        properties = torch.cuda.get_device_properties(0)
        return {
            "name": properties.name,
            "memory_bytes": properties.total_memory,
            "l2_bytes": properties.L2_cache_size,
            "sm_count": properties.multi_processor_count,
            "torch": torch.__version__,
        }

    def datasheet(self):
        """Bandwidth and dense bf16 peak from the table of GPUs."""
        properties = torch.cuda.get_device_properties(0)
        command = [sys.executable, "-m", "roofline", "gpus", "--format", "json"]
        done = subprocess.run(
            command, capture_output=True, check=False, text=True, timeout=DATASHEET_S
        )
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise RuntimeError(f"`python -m roofline gpus` ended with {done.returncode}: {last}")
        return published(json.loads(done.stdout), properties.name, properties.total_memory)

    def idle_clock(self):
        nvml, handle = nvml_handle()
        nvml_hz = 1e6 * nvml.nvmlDeviceGetClockInfo(handle, CLOCK_SM)
        warm_up(spin)
        return {"nvml_hz": nvml_hz, "spin_hz": SPIN_CYCLES / event_s(spin)}

    def copy(self):
        source = torch.empty(self.copy_bytes, dtype=torch.int8, device="cuda")
        target = torch.empty_like(source)
        warm_up(lambda: target.copy_(source))
        copy_s = min(event_s(lambda: target.copy_(source)) for _ in range(10))
        return {"bytes_per_s": 2 * self.copy_bytes / copy_s}

    def bf16(self):
        warm_up(lambda: self.matmul(10))
        samples_s = [event_s(lambda: self.matmul(10)) / 10 for _ in range(10)]
        return {"flops_per_s": 2 * self.width**3 / median(samples_s), "samples_s": samples_s}

    def clocks(self):
        """The clock by cycles and by NVML, and the power, in the middle of 60 ms of matmuls."""
        nvml, handle = nvml_handle()
        warm_up(spin)
        warm_up(lambda: self.matmul(10))
        loaded = []
        for _ in range(LOAD_ROUNDS):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self.matmul(MATMULS_OF_HALF_A_LOAD)
            start.record()
            spin()
            end.record()
            self.matmul(MATMULS_OF_HALF_A_LOAD)
            start.synchronize()
            nvml_hz = 1e6 * nvml.nvmlDeviceGetClockInfo(handle, CLOCK_SM)
            power_w = nvml.nvmlDeviceGetPowerUsage(handle) / 1e3
            torch.cuda.synchronize()
            loaded.append([SPIN_CYCLES / (start.elapsed_time(end) / 1e3), nvml_hz, power_w])
        return {"loaded_hz_and_w": loaded}

    def nvml_costs(self):
        nvml, handle = nvml_handle()
        queries = {
            "clock": lambda: nvml.nvmlDeviceGetClockInfo(handle, CLOCK_SM),
            "power_field": lambda: nvml.nvmlDeviceGetFieldValues(handle, [POWER_INSTANT]),
            "utilization": lambda: nvml.nvmlDeviceGetUtilizationRates(handle),
            "processes": lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle),
        }
        costs_s = {"driver": str(nvml.nvmlSystemGetDriverVersion())}
        for name, query in queries.items():
            start = time.perf_counter()
            for _ in range(20):
                query()
            costs_s[name] = (time.perf_counter() - start) / 20
        return costs_s

    def events(self):
        """The durations of empty pairs of events: their median and their smallest step."""
        warm_up(lambda: event_s(lambda: None))
        samples_s = sorted(event_s(lambda: None) for _ in range(300))
        steps = [after - before for before, after in itertools.pairwise(samples_s)]
        return {
            "empty_pair_s": median(samples_s),
            "step_s": min((step for step in steps if step > 1e-9), default=None),
        }

    def queue(self):
        """The launches that are queued behind a spin before the host waits."""
        warm_up(spin)
        warm_up(lambda: self.element.add_(0))
        spin(QUEUE_SPIN_CYCLES)
        slowest_s, entries = 0.0, None
        for index in range(MAX_QUEUE_PROBE):
            start = time.perf_counter()
            self.element.add_(0)
            launch_s = time.perf_counter() - start
            if launch_s > slowest_s:
                slowest_s, entries = launch_s, index
        torch.cuda.synchronize()
        return {"entries_before_the_slowest_launch": entries, "slowest_launch_s": slowest_s}

    def graph_of(self, launches, call):
        """Return a graph of calls, which has been replayed once."""
        warm_up(call)
        graph = torch.cuda.CUDAGraph()
        gc.disable()  # freeing a tensor or a graph can end a capture: pytorch#161037
        try:
            with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
                for _ in range(launches):
                    call()
        finally:
            gc.enable()
        warm_up(graph.replay)
        return graph

    def graph_nodes(self):
        """The seconds of a node of graphs of one short kernel, behind a spin and without."""
        from triton import jit

        @jit
        def nothing(x_ptr):
            pass

        def launch():
            nothing[(1,)](self.element)

        warm_up(spin)
        warm_up(launch)
        node_s = {}
        for launches in GRAPH_LAUNCHES:
            start = time.perf_counter()
            graph = self.graph_of(launches, launch)
            capture_s = time.perf_counter() - start

            def behind_a_spin(graph=graph):
                spin(SPIN_CYCLES // 20)
                return event_s(graph.replay)

            node_s[launches] = {
                "spin": median(behind_a_spin() for _ in range(30)) / launches,
                "no_spin": median(event_s(graph.replay) for _ in range(30)) / launches,
                "capture_s": capture_s,
            }
        return node_s

    def failed_capture(self):
        """The errors of a capture that must fail, and whether `bench.measure` works after one."""
        import bench

        host = torch.ones(2**20).pin_memory()
        target = torch.empty(2**20, device="cuda")
        record = bench.measure(lambda: target.copy_(host))  # waits, so it cannot be captured
        return {
            "method": record.method,
            "reasons": dict(record.flag_reasons),
            "random": float(torch.rand(3, device="cuda").sum()),
            "captured_again": event_s(self.graph_of(3, lambda: torch.rand_like(target)).replay),
            "pinned": float(torch.ones(5).pin_memory().sum()),
        }


PARTS = (
    *("device", "datasheet", "idle_clock", "copy", "bf16", "clocks", "events", "queue"),
    *("graph_nodes", "nvml_costs"),
    "failed_capture",  # the last, because an error of the GPU may be final
)


def published(table, name, memory_bytes):
    """Return the figures of a GPU of the table; raise LookupError if it is not one of them."""
    named = [gpu for gpu in table if name in gpu["driver_names"]]
    if not named:
        raise LookupError(f"{name} is not in the table of GPUs")
    gpu = min(named, key=lambda gpu: abs(gpu["memory_bytes"] - memory_bytes))
    return {
        "bytes_per_s": gpu["memory_bandwidth_bytes_per_s"],
        "flops_per_s": gpu["stated_peaks_flops_per_s"]["bf16_tensor"],
    }


def numbers_in(fact):
    if isinstance(fact, dict):
        fact = list(fact.values())
    if isinstance(fact, list):
        return [number for each in fact for number in numbers_in(each)]
    return [fact] if isinstance(fact, int | float) else []


def check_rate(name, key, unit, min_share, facts):
    rate = facts[name][key]
    text = f"{name} {rate / 1e12:.4g} T{unit}/s"
    stated = facts.get("datasheet", {}).get(key)
    if stated is None:
        return f"{text}: undecided, compare it with the datasheet", "undecided"
    share = rate / stated
    outcome = "ok" if min_share <= share <= MAX_SHARE else "STOP"
    allowed = f"{min_share:.0%} to {MAX_SHARE:.0%}"
    return f"{text}, {share:.0%} of the datasheet ({allowed}): {outcome}", outcome


def check_clocks(facts):
    samples = zip(*facts["clocks"]["loaded_hz_and_w"], strict=True)
    by_cycles, by_nvml, _ = (median(values) for values in samples)
    if by_nvml <= 0:
        raise ValueError("NVML's clock is 0")
    difference = abs(by_cycles / by_nvml - 1)
    outcome = "ok" if difference <= MAX_CLOCK_DIFFERENCE else "STOP"
    text = (
        f"clocks {by_cycles / 1e6:.0f} MHz by cycles and {by_nvml / 1e6:.0f} MHz by NVML, "
        f"{difference:.1%} apart (at most {MAX_CLOCK_DIFFERENCE:.0%}): {outcome}"
    )
    return text, outcome


def check(name, facts):
    """Return the line that a part decides, empty for most, and its outcome.

    Raises ValueError if a number is not finite.
    """
    if not all(map(math.isfinite, numbers_in(facts[name]))):
        raise ValueError("a number is not finite")
    if name == "copy":
        return check_rate(name, "bytes_per_s", "B", MIN_COPY_SHARE, facts)
    if name == "bf16":
        return check_rate(name, "flops_per_s", "FLOP", MIN_BF16_SHARE, facts)
    if name == "clocks":
        return check_clocks(facts)
    return "", "ok"


def run_part(probe, name, facts):
    """Run a part, add its facts, and return its line and its outcome."""
    try:
        facts[name] = getattr(probe, name)()
        return check(name, facts)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"[:300]
        facts[name] = facts.get(name, {}) | {"error": text}
        return f"{name} failed: {text}", "failed"


def verdict(outcomes):
    """Return the line that decides about call 2, from the outcomes of all parts."""
    if stops := [name for name, outcome in outcomes.items() if outcome == "STOP"]:
        return (
            f"STOP ({', '.join(stops)}): no other figure can be trusted before this is explained. "
            f"Spend the rest on `rented_gpu.py 1 120 truth` and on a copy under "
            f"`ncu --clock-control none`."
        )
    if missing := [name for name in PARTS if outcomes.get(name) != "ok"]:
        return f"undecided ({', '.join(missing)}): see truth.json before call 2"
    return "the GPU can be trusted: go on with call 2"


def measure(probe, path):
    facts, outcomes = {}, {}
    for name in PARTS:
        line, outcomes[name] = run_part(probe, name, facts)
        path.write_text(json.dumps(facts, indent=1, default=str), encoding="utf-8")
        if line:
            print(line, flush=True)
    print(verdict(outcomes), flush=True)


def main(width=8192, copy_bytes=2**31, path=Path("truth.json")):
    if not torch.cuda.is_available():
        print("truth needs CUDA: torch finds no GPU here, so nothing is decided")
        return 3
    measure(Probe(width, copy_bytes), path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
