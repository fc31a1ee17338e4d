"""`python -m tests.validation.fleet_faults [SEEDS]`: fleets with the faults that operators report.

A device is simulated from what a fault does: power, heat, link and host give clocks, times of
samples, and counters, as a driver would report them. Nothing is taken from `rules.toml`. Faults are
those of field studies: Meta, The Llama 3 Herd of Models (2024), section 3.3.4; Sinha et al., Not
All GPUs Are Created Equal (SC 2022), for spread, heat and power; Xiong et al., SuperBench (ATC
2024), for links, hosts and intermittent slowness.

Chips differ by a standard deviation `spread` (0.8 of it the chip, 0.6 the node), half of it in the
solo phase; hosts by 1 %, links of a node by 0.4 %. Clocks have steps of 15 MHz. A row has 100
samples with a noise of 0.4 %.
"""

import json
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from results.fleet.devices import read_fleet
from results.fleet.judge import judge, missing
from tests.validation.fleet_generator import environment, record

FLOPS = 2 * 8192**3
BYTES = 2 * 2**31
OPS = {
    "launch": ("fp32", 5e-6, None),
    "copy": ("fp32", BYTES / 2.9e12, BYTES),
    "matmul": ("bf16", FLOPS / 690e12, None),
    "fma": ("fp32", 1e-3, None),
    "h2d": ("fp32", 2**26 / 52e9, 2**26),
    "d2h": ("fp32", 2**26 / 53e9, 2**26),
}
SAMPLES = 100
STARTED = "2026-11-20T12:00:00+00:00"


@dataclass
class Fault:
    """What is wrong with a device; ratios are of rates, 1 where nothing is."""

    clock: float = 1.0
    hot_clock: float = 1.0
    """Clock when all devices work."""
    capped_w: float = 700.0
    copy: float = 1.0
    remapped: str = ""
    generation: int = 5
    width: int = 16
    host: float = 1.0
    quota: float = 0.0
    remote: bool = False
    all_rows: float = 1.0
    stall_share: float = 0.0
    stall: float = 1.5
    driver: str = "580.95.05"
    vbios: str = "96.00.AA"
    name: str = "NVIDIA H100 80GB HBM3"
    locked: bool = False
    hot: bool = False
    wrong_phase: str = ""
    lost: tuple = ()
    is_absent: bool = False
    cause: tuple = ("unknown",)
    """Causes that are right."""


HEALTHY = Fault()
ALL = "all"
HALF = "half"
NODE = "node"
ONE = "one"

FAULTS = {
    "thermal, together only": (ONE, Fault(hot_clock=0.94, hot=True, cause=("thermal",))),
    "power limit": (ONE, Fault(capped_w=560.0, cause=("power cap",))),
    "locked clock": (ONE, Fault(clock=0.92, locked=True, cause=("locked clock",))),
    "leaky die": (ONE, Fault(clock=0.94, cause=("power cap",))),
    "corrected remaps": (ONE, Fault(copy=0.935, remapped="corrected", cause=("memory",))),
    "pending remap": (ONE, Fault(copy=0.935, remapped="pending", cause=("memory",))),
    "Gen3 link": (ONE, Fault(generation=3, cause=("link",))),
    "x8 link": (ONE, Fault(width=8, cause=("link",))),
    "CPU quota": (ONE, Fault(host=0.85, quota=0.15, cause=("host",))),
    "slow host": (NODE, Fault(host=0.85, cause=("host",))),
    "remote NUMA node": (ONE, Fault(host=0.9, remote=True, cause=("NUMA",))),
    "intermittent": (ONE, Fault(stall_share=0.1, cause=("intermittent",))),
    "old driver on a node": (NODE, Fault(all_rows=0.95, driver="535.1", cause=("software",))),
    "whole node": (NODE, Fault(clock=0.9, cause=("power cap",))),
    "half a node": (HALF, Fault(clock=0.9, cause=("power cap",))),
    "all 30 % slow": (ALL, Fault(clock=0.7, locked=True)),
    "wrong results": (ONE, Fault(wrong_phase="together", cause=("wrong result",))),
    "missing phase": (ONE, Fault(lost=("together",))),
    "missing GPU": (ONE, Fault(is_absent=True)),
}
"""By name: which devices have the fault, and what it is."""

NOT_SLOW = {"missing phase": "unmeasured", "wrong results": "wrong"}
"""Verdicts of faults that are not slowness."""


@dataclass
class Fleet:
    """Nodes of 8 devices; `natural` is the healthy state of each device by rank."""

    seed: int
    nodes: int = 2
    spread: float = 0.01
    per_node: int = 8
    slot_generation: int = 5
    is_steady: bool = False
    natural: dict = field(default_factory=dict)

    def __post_init__(self):
        rng = random.Random(self.seed)
        for node in range(self.nodes):
            of_node = rng.gauss(0, 0.6 * self.spread)
            host = rng.gauss(0, 0.01)
            link = rng.gauss(0, 0.004)
            for local in range(self.per_node):
                chip = rng.gauss(0, 0.8 * self.spread)
                copy = rng.gauss(0, 0.003)
                self.natural[node * self.per_node + local] = (of_node + chip, host, link, copy)

    def write(self, directory, faults, started=STARTED, everywhere=1.0):
        """Write the file of each rank; `everywhere` is a ratio of all rates."""
        rng = random.Random(f"{self.seed} {started}")
        for rank in range(len(self.natural)):
            fault = faults.get(rank, HEALTHY)
            if not fault.is_absent:
                lines = self.lines(rng, rank, fault, started, everywhere)
                text = "".join(json.dumps(line) + "\n" for line in lines)
                (Path(directory) / f"{rank}.jsonl").write_text(text)

    def lines(self, rng, rank, fault, started, everywhere):
        health = {
            "vbios": fault.vbios,
            "driver": fault.driver,
            "remapped_rows": dict.fromkeys(("corrected", "uncorrected", "pending", "failed"), 0),
            "ecc_errors": {"corrected": 0, "uncorrected": 0},
            "memory_used_bytes": 5e8,
            "utilization": 0.0,
            "other_processes": 0,
            "power_limit_w": fault.capped_w,
            "power_limit_default_w": 700.0,
            "link_generation_max": 5,
            "link_width_max": 16,
            "recommended_action": 0,
            "remote_cpus": float(fault.remote),
        }
        if fault.remapped:
            health["remapped_rows"][fault.remapped] = 3
        size = len(self.natural)
        yield environment(rank, size, self.per_node, health, started, name=fault.name)
        for phase in ("solo", "together"):
            if phase not in fault.lost:
                for op in OPS:
                    yield self.row(rng, rank, fault, phase, op, everywhere)

    def row(self, rng, rank, fault, phase, op, everywhere):
        chip, host, link, copy = self.natural[rank]
        dtype, median_s, moved = OPS[op]
        share = 1.0 if phase == "together" else 0.5
        powered = 1.0 - 0.35 * (1 - fault.capped_w / 700.0)
        clock_ratio = fault.clock * powered * (1 + share * chip)
        if phase == "together":
            clock_ratio *= fault.hot_clock
        clock_hz = 15e6 * round(1755e6 * clock_ratio / 15e6)
        rate = fault.all_rows * everywhere
        generation = min(fault.generation, self.slot_generation)
        if op in ("matmul", "fma"):
            rate *= clock_hz / 1755e6
        elif op == "copy":
            rate *= fault.copy * (1 + copy)
        elif op == "launch":
            rate *= fault.host * (1 + host)
        else:
            rate *= 2.0 ** (generation - 5) * fault.width / 16 * (1 + link)
            if fault.remote:
                rate *= 0.82
        rate *= rng.gauss(1, 0.002)
        samples = []
        for _ in range(SAMPLES):
            sample = median_s / rate * rng.gauss(1, 0.004)
            if rng.random() < fault.stall_share:
                sample *= fault.stall
            samples.append(sample)
        middle = median(samples)
        is_hot = fault.hot and phase == "together"
        slowed = max(0.0, 1 - clock_ratio)
        capping = 0.0 if fault.locked or is_hot else min(1.0, 0.15 + 8 * slowed)
        telemetry = {
            "sm_clock_hz": clock_hz,
            "memory_clock_hz": 2.619e9,
            "throttle": {
                "sw_power_cap": capping if op in ("matmul", "fma") else 0.0,
                "thermal": rng.uniform(0.2, 0.9) if is_hot else 0.0,
            },
            "clock_events": ["applications_clocks"] if fault.locked else [],
            "host_throttle": {"cgroup_quota": fault.quota, "steal": 0.0},
        }
        if op in ("h2d", "d2h"):
            telemetry |= {"link_generation": generation, "link_width": fault.width}
        row = record(
            op, middle, phase, telemetry, 0.001, dtype=dtype, samples_s=samples, bytes_read=moved
        )
        if op == "copy":
            row |= {"bytes_read": moved // 2, "bytes_written": moved // 2}
        if op == "matmul":
            row["flops"] = FLOPS
            if phase == fault.wrong_phase:
                row |= {"status": "invalid", "reason": "wrong result"}
                row |= {"samples_s": [], "median_s": None, "ci95_s": None}
        return row


def faulty_ranks(fleet, where, seed):
    """Return the ranks that have a fault of one device, half a node, a node, or all devices."""
    rng = random.Random(f"ranks {seed}")
    size = len(fleet.natural)
    node = fleet.per_node * rng.randrange(fleet.nodes)
    if where == ALL:
        return list(range(size))
    if where == NODE:
        return list(range(node, node + fleet.per_node))
    if where == HALF:
        return sorted(rng.sample(range(node, node + fleet.per_node), fleet.per_node // 2))
    return [rng.randrange(size)]


def report(directory, history=(), expected=0):
    devices, earlier, _ = read_fleet([Path(directory)], history)
    return [*missing(devices, expected, ()), *judge(devices, earlier)]


def outcome(name, seed, nodes=2, spread=0.01):
    """Return counts of one fleet: faulty devices, those found, those with a right cause, and
    healthy devices that are slow.
    """
    where, fault = FAULTS[name]
    fleet = Fleet(seed, 1 if where == HALF else nodes, spread)
    ranks = faulty_ranks(fleet, where, seed)
    with tempfile.TemporaryDirectory() as directory:
        fleet.write(directory, dict.fromkeys(ranks, fault))
        findings = report(directory, expected=len(fleet.natural))
    slow_nodes = {
        finding.node: finding
        for finding in findings
        if finding.verdict == "slow" and not finding.device
    }
    counts = Counter(devices=len(fleet.natural), faulty=len(ranks))
    if fault.is_absent:
        named = " ".join(text for finding in findings for text in finding.evidence)
        counts["found"] = f"{len(fleet.natural)} devices expected" in named
        return counts
    wanted = NOT_SLOW.get(name, "slow")
    for finding in findings:
        if finding.device:
            by = slow_nodes.get(finding.node, finding) if where == NODE else finding
            is_faulty = finding.device.fleet.rank in ranks
            counts["found"] += is_faulty and by.verdict == wanted
            if is_faulty and by.verdict == wanted and by.rule:
                counts["caused"] += 1
                counts["right"] += by.rule.cause in (*fault.cause, "unknown")
                counts["named"] += by.rule.cause in fault.cause
            counts["false"] += not is_faulty and finding.verdict == "slow"
    return counts


def main(seeds=20):
    print("| fault | found, 8 devices | 16 | 32 | right cause or unknown | cause | false slow |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, (where, _) in FAULTS.items():
        total = Counter()
        cells = []
        for nodes in (1, 2, 4):
            if (where == NODE and nodes == 1) or (where == HALF and nodes > 1):
                cells.append("-")
                continue
            counts = Counter()
            for seed in range(seeds):
                counts += outcome(name, seed, nodes)
            total += counts
            cells.append(f"{counts['found'] / counts['faulty']:.2f}")
        cells += [f"{total[key] / max(1, total['caused']):.2f}" for key in ("right", "named")]
        print(f"| {name} | {' | '.join(cells)} | {total['false']} of {total['devices']:,} |")
    for nodes in (1, 4, 16):
        for generation in (4, 5):
            total = Counter()
            for seed in range(seeds):
                total += calm(seed, nodes, generation)
            print(f"calm, {8 * nodes} devices, Gen{generation} slots: {dict(total)}")


def calm(seed, nodes, generation=5, spread=0.01):
    """Return the counts of verdicts in a fleet without a fault."""
    with tempfile.TemporaryDirectory() as directory:
        Fleet(seed, nodes, spread, slot_generation=generation).write(directory, {})
        return Counter(finding.verdict for finding in report(directory) if finding.device)


if __name__ == "__main__":
    began_s = time.monotonic()
    main(*map(int, sys.argv[1:]))
    print(f"{time.monotonic() - began_s:.0f} s")
