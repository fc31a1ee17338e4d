"""Measure with torch, Triton and NVML alone what the measurements of a GPU rely on.

    python -m tests.validation.gpu_probe

It saves `truth.json` in the current directory after each part, and prints what decides whether the
GPU can be trusted: its bandwidth and its bf16 matmul as fractions of the datasheet's, and its clock
by the cycles of a spinning kernel compared with NVML's. A part that fails costs only its facts.

exit codes: 0 measured; 3 no GPU
"""

import itertools
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import torch

MIN_COPY_SHARE = 0.78
MIN_BF16_SHARE = 0.65
MAX_CLOCK_DIFFERENCE = 0.03
"""The stop rule: fractions of the datasheet, and the relative difference of the clocks."""

SPIN_CYCLES = 8_000_000
"""About 4 ms, of which the events are 0.1 %."""

LOAD_ROUNDS = 12
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


def spin_hz():
    """Return the clock of the SMs, in cycles of a spinning kernel per second."""
    return SPIN_CYCLES / event_s(lambda: torch.cuda._sleep(SPIN_CYCLES))


def nvml_handle():
    import pynvml

    pynvml.nvmlInit()
    uuid = str(torch.cuda.get_device_properties(0).uuid)
    return pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.removeprefix('GPU-')}")


class Probe:
    """The parts of the probe; each returns its facts."""

    def __init__(self, width, copy_bytes):
        self.copy_bytes, self.width = copy_bytes, width
        self.a = torch.randn(width, width, device="cuda", dtype=torch.bfloat16)
        self.product = torch.empty_like(self.a)
        self.element = torch.ones(1, device="cuda")

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

    def copy(self):
        source = torch.empty(self.copy_bytes, dtype=torch.int8, device="cuda")
        target = torch.empty_like(source)
        copy_s = min(event_s(lambda: target.copy_(source)) for _ in range(10))
        return {"bytes_per_s": 2 * self.copy_bytes / copy_s}

    def bf16(self):
        self.matmul(10)
        samples_s = [event_s(lambda: self.matmul(10)) / 10 for _ in range(10)]
        return {"flops_per_s": 2 * self.width**3 / median(samples_s), "samples_s": samples_s}

    def clocks(self):
        """The clock by cycles right after 60 ms of matmuls, and NVML's during them."""
        nvml, handle = nvml_handle()
        idle = [spin_hz(), 1e6 * nvml.nvmlDeviceGetClockInfo(handle, CLOCK_SM)]
        loaded = []
        for _ in range(LOAD_ROUNDS):
            self.matmul(40)
            nvml_hz = 1e6 * nvml.nvmlDeviceGetClockInfo(handle, CLOCK_SM)
            power_w = nvml.nvmlDeviceGetPowerUsage(handle) / 1e3
            loaded.append([spin_hz(), nvml_hz, power_w])
        return {"idle_hz": idle, "loaded_hz_and_w": loaded}

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
        samples_s = sorted(event_s(lambda: None) for _ in range(300))
        steps = [after - before for before, after in itertools.pairwise(samples_s)]
        return {
            "empty_pair_s": median(samples_s),
            "step_s": min((step for step in steps if step > 1e-9), default=None),
        }

    def queue(self):
        """The launches that are queued behind a spin before the host waits."""
        torch.cuda.synchronize()
        torch.cuda._sleep(QUEUE_SPIN_CYCLES)
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
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
            for _ in range(launches):
                call()
        return graph

    def graph_nodes(self):
        """The seconds of a node of graphs of one short kernel, behind a spin and without."""
        from triton import jit

        @jit
        def nothing(x_ptr):
            pass

        def launch():
            nothing[(1,)](self.element)

        launch()
        node_s = {}
        for launches in GRAPH_LAUNCHES:
            start = time.perf_counter()
            graph = self.graph_of(launches, launch)
            capture_s = time.perf_counter() - start

            def behind_a_spin(graph=graph):
                torch.cuda._sleep(SPIN_CYCLES // 20)
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
    *("device", "copy", "bf16", "clocks", "events", "queue", "graph_nodes", "nvml_costs"),
    "failed_capture",  # the last, because an error of the GPU may be final
)


def datasheet(name, memory_bytes):
    """Return bandwidth and dense bf16 peak of a GPU of the table, None if it is not one of them."""
    command = [sys.executable, "-m", "roofline", "gpus", "--format", "json"]
    table = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    named = [gpu for gpu in table if name in gpu["driver_names"]]
    if not named:
        return None
    gpu = min(named, key=lambda gpu: abs(gpu["memory_bytes"] - memory_bytes))
    return gpu["memory_bandwidth_bytes_per_s"], gpu["stated_peaks_flops_per_s"]["bf16_tensor"]


def decisions(facts):
    """Return the lines that decide about the next step, from the facts of all parts."""
    failed = [name for name in PARTS if "error" in facts[name]]
    lines = [f"{name} failed: {facts[name]['error']}" for name in failed]
    verdicts = {}

    def compare(name, text, is_right):
        verdicts[name] = "ok" if is_right else "STOP"
        lines.append(f"{text}: {verdicts[name]}")

    published = facts["datasheet"]
    for name, key, limit in (
        ("copy", "bytes_per_s", MIN_COPY_SHARE),
        ("bf16", "flops_per_s", MIN_BF16_SHARE),
    ):
        rate = facts[name].get(key)
        if rate is None:
            continue
        text = f"{name} {rate / 1e12:.4g} T{'B' if name == 'copy' else 'FLOP'}/s"
        if published is None:
            lines.append(f"{text}; the GPU is not in the table, compare it with its datasheet")
            continue
        share = rate / published[0 if name == "copy" else 1]
        compare(
            name, f"{text}, {share:.0%} of the datasheet (at least {limit:.0%})", share >= limit
        )
    if loaded := facts["clocks"].get("loaded_hz_and_w"):
        by_cycles, by_nvml, _ = (median(values) for values in zip(*loaded, strict=True))
        difference = abs(by_cycles / by_nvml - 1)
        text = (
            f"clock {by_cycles / 1e6:.0f} MHz by cycles and {by_nvml / 1e6:.0f} MHz by NVML, "
            f"{difference:.1%} apart (at most {MAX_CLOCK_DIFFERENCE:.0%})"
        )
        compare("clock", text, difference <= MAX_CLOCK_DIFFERENCE)
    if stops := [name for name, verdict in verdicts.items() if verdict == "STOP"]:
        lines.append(
            f"STOP ({', '.join(stops)}): no other figure can be trusted before this is explained. "
            f"Spend the rest on `rented_gpu.py 1 120 truth` and on a copy under "
            f"`ncu --clock-control none`."
        )
    elif len(verdicts) == 3:
        lines.append("the GPU can be trusted: go on with call 2")
    else:
        lines.append("undecided: a fact is missing; see truth.json before call 2")
    return lines


def main(width=8192, copy_bytes=2**31, path=Path("truth.json")):
    if not torch.cuda.is_available():
        print("truth needs CUDA: torch finds no GPU here, so nothing is decided")
        return 3
    probe, facts = Probe(width, copy_bytes), {}
    for name in PARTS:
        try:
            facts[name] = getattr(probe, name)()
        except Exception as error:
            facts[name] = {"error": f"{type(error).__name__}: {error}"[:300]}
        path.write_text(json.dumps(facts, indent=1, default=str), encoding="utf-8")
    device = facts["device"]
    facts["datasheet"] = "name" in device and datasheet(device["name"], device["memory_bytes"])
    path.write_text(json.dumps(facts, indent=1, default=str), encoding="utf-8")
    print("\n".join(decisions(facts)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
