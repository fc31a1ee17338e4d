"""Synthetic fleets with known slow devices, as the run files that ranks write.

The natural spread of a device is a standard deviation: matmul and FMA have the given one, of which
0.3 % (at most) is the device at its clock and the rest is its clock. Copy and link have 0.3 %, the
launch 1 %. A power-limited device with a low clock also has a larger share of power capping. The
noise of a row is 0.2 %, the half width of its interval 0.4 %.
"""

import json
import math
import random

CLASSES = (
    "power cap",
    "thermal",
    "power brake",
    "locked clock",
    "memory",
    "link",
    "neighbour",
    "host",
)
OPS = {"matmul": 1e-3, "fma": 1e-3, "copy": 2e-3, "h2d": 4e-3, "d2h": 4e-3, "launch": 5e-6}
AT_CLOCK = 0.003
STARTED = "2026-11-20T12:00:00+00:00"


def fleet(
    seed,
    nodes=125,
    per_node=8,
    spread=0.01,
    slow_share=0.01,
    causes=(*CLASSES, "unknown"),
    started=STARTED,
):
    """Return the files of a fleet by name, and the cause of each slow device by its UUID."""
    rng, files, slow = random.Random(seed), {}, {}
    size = nodes * per_node
    chosen = set(rng.sample(range(size), round(slow_share * size)))
    for rank in range(size):
        loss, cause = 0.0, None
        if rank in chosen:
            loss, cause = rng.uniform(0.05, 0.15), causes[len(slow) % len(causes)]
            slow[f"GPU-{rank}"] = cause
        lines = device_lines(rng, rank, size, per_node, spread, cause, loss, started)
        files[f"rank-{rank}.jsonl"] = "".join(json.dumps(line) + "\n" for line in lines).encode()
    return files, slow


def device_lines(
    rng, rank, size, per_node=8, spread=0.01, cause=None, loss=0.0, started=STARTED, node_loss=0.0
):
    at_clock = min(AT_CLOCK, spread)
    clock_spread = math.sqrt(max(0.0, spread**2 - at_clock**2))
    natural = {op: rng.gauss(0, {"launch": 0.01}.get(op, at_clock)) for op in OPS}
    natural_clock = rng.gauss(0, clock_spread)
    capped = max(0.0, min(0.6, 0.15 - 3 * natural_clock + rng.gauss(0, 0.03)))
    shares = {"sw_power_cap": capped, "thermal": max(0.0, rng.gauss(0, 0.005)), "sync_boost": 0.0}
    shares |= {"sw_thermal": None, "hw_thermal": None, "power_brake": None}
    events, host, health, link = [], {"cgroup_quota": 0.0, "steal": 0.0}, healthy(), {}
    clock, low = natural_clock, {}
    loss = -math.log1p(-loss)
    if cause in ("power cap", "thermal", "power brake", "locked clock"):
        clock -= loss
    if cause == "power cap":
        health["power_limit_w"] = 700.0 * (1 - rng.uniform(0.1, 0.4))
        shares["sw_power_cap"] = rng.uniform(0.7, 1.0)
    elif cause == "thermal":
        shares["thermal"] = rng.uniform(0.2, 0.9)
        events = ["sw_thermal"]
    elif cause == "power brake":
        events = ["hw_slowdown", "power_brake"]
    elif cause == "locked clock":
        events = ["applications_clocks"]
        shares["sw_power_cap"] = 0.0
    elif cause == "memory":
        low = {"copy": loss}
        health["remapped_rows"][rng.choice(["pending", "failed"])] = 1
    elif cause == "link":
        low = {"h2d": loss, "d2h": loss}
        link = {rng.choice(["link_width", "link_generation"]): rng.choice([2, 4])}
    elif cause == "neighbour":
        low = dict.fromkeys(("matmul", "fma", "copy"), loss)
        health |= rng.choice(
            [{"other_processes": 1}, {"utilization": 0.4, "memory_used_bytes": 9e9}]
        )
    elif cause == "host":
        low = {"launch": loss}
        host = {"cgroup_quota": rng.uniform(0.05, 0.3), "steal": 0.0}
    elif cause == "unknown":
        low = {rng.choice(["matmul", "copy"]): loss}
    yield environment(rank, size, per_node, health, started)
    for phase in ("solo", "together"):
        for op, time_s in OPS.items():
            follows = clock if op in ("matmul", "fma") else 0.0
            rate = (
                follows
                + natural[op]
                - low.get(op, 0.0)
                - node_loss * (op == "matmul")
                + rng.gauss(0, 0.002)
            )
            telemetry = {
                "sm_clock_hz": 1.755e9 * math.exp(clock),
                "memory_clock_hz": 2.619e9,
                "throttle": shares,
            }
            telemetry |= {"clock_events": events, "host_throttle": host}
            if op in ("h2d", "d2h"):
                telemetry |= {"link_generation": 5, "link_width": 16, "pcie_replays": 0} | link
            yield record(op, time_s * math.exp(-rate), phase, telemetry)


def healthy():
    return {
        "vbios": "96.00.AA",
        "driver": "580.95.05",
        "mig_mode": False,
        "remapped_rows": {"corrected": 0, "uncorrected": 0, "pending": 0, "failed": 0},
        "ecc_errors": {"corrected": 0, "uncorrected": 0},
        "memory_used_bytes": 5e8,
        "utilization": 0.0,
        "other_processes": 0,
        "power_limit_w": 700.0,
        "power_limit_default_w": 700.0,
        "link_generation_max": 5,
        "link_width_max": 16,
        "recommended_action": 0,
        "errors": {},
    }


def environment(rank, size, per_node=8, health=None, started=STARTED, **device):
    about = {
        "slug": "h100-sxm",
        "name": "NVIDIA H100 80GB HBM3",
        "type": "cuda",
        "memory_bytes": 85_000_000_000,
    }
    node, local_rank = f"n{rank // per_node:04d}", rank % per_node
    fleet = {
        "rank": rank,
        "local_rank": local_rank,
        "local_world_size": per_node,
        "world_size": size,
        "node": node,
        "launcher": "torchrun",
    }
    fleet |= {
        "pci_bus_id": f"0000:{local_rank:02x}:00.0",
        "health": health or healthy(),
    }
    return {
        "kind": "environment",
        "schema": 1,
        "run_id": f"{started}-{rank}",
        "started_at": started,
        "argv": ["python", "-m", "bench.fleet"],
        "device": about | {"uuid": f"GPU-{rank}"} | device,
        "fleet": fleet,
    }


def record(op, median_s, phase="solo", telemetry=None, half_width=0.004, **keys):
    low_s, high_s = median_s * (1 - half_width), median_s * (1 + half_width)
    return {
        "kind": "record",
        "op": op,
        "provider": "torch",
        "dtype": "bf16",
        "shape": {"n": 8192},
        "case": "8192",
        "status": "ok",
        "reason": None,
        "options": {"phase": phase},
        "samples_s": [low_s, median_s, high_s],
        "median_s": median_s,
        "ci95_s": [low_s, high_s],
        "telemetry": telemetry or {},
        "op_sha256": "3:abc",
    } | keys
