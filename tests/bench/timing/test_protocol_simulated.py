"""The protocol as a whole on simulated devices whose truth is known: is the median right, does its
interval hold the truth as often as it says, and does each bad device get its flag and a good one
none?"""

import statistics
from dataclasses import replace

import pytest

from bench.harness.device.device import Device
from bench.harness.measure.flags import recorded
from bench.harness.timing.protocol import CPU_LIMITS, GPU_LIMITS, collect
from results.record import Record
from roofline.machine import Ceiling, Machine
from tests.simulated_device import SimulatedDevice

TRIALS = 200

CACHE_BYTES = 50_000_000
MEMORY_ROOF = Ceiling("bandwidth", "copy", 500e9, "measured", "simulated")
PEAK = Ceiling("flops", "bf16", 1e15, "datasheet", "simulated")
GPU = Device("cuda", "cuda:0", "gpu", "a GPU", CACHE_BYTES, 2**30)


def measure(device, limits=GPU_LIMITS):
    return collect(device, limits, device.cache, now=device.now)


def flag_names(bytes_moved=40_000_000, limits=GPU_LIMITS, **parameters):
    """Return the flags of one row of a device, measured cold and warm."""
    device = SimulatedDevice(**parameters)
    warm = measure(
        SimulatedDevice(**parameters | {"cache": "warm", "seed": parameters["seed"] + 10**6}),
        CPU_LIMITS,
    )
    samples = measure(device, limits)
    seen = replace(
        samples,
        tick_s=device.tick_s or 5e-7,
        host_launch_s=5e-6,
        target_half_width=limits.target_half_width,
        warm_median_s=warm.median_s,
        telemetry=device.telemetry(),
    )
    fields = {
        "op": "x",
        "provider": "torch",
        "dtype": "bf16",
        "shape": {},
        "case": "x",
        "status": "skipped",
    }
    blank = Record(
        **fields, flops=10**10, bytes_read=bytes_moved // 2, bytes_written=bytes_moved // 2
    )
    return set(recorded(blank, seen, GPU, Machine("x", "X", (MEMORY_ROOF, PEAK)), "cold").flags)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("limits", "correlation", "runs"),
    [
        (GPU_LIMITS, 0.0, 1000),
        (GPU_LIMITS, 0.3, 1000),
        (CPU_LIMITS, 0.0, 3000),
        (CPU_LIMITS, 0.2, 3000),
    ],
    ids=["gpu", "gpu, correlated", "cpu", "cpu, correlated"],
)
def test_intervals_contain_the_true_median_in_95_percent(limits, correlation, runs):
    held = close = 0
    for seed in range(runs):
        device = SimulatedDevice(seed=seed, noise=0.03, correlation=correlation)
        samples = measure(device, limits)
        assert samples.converged
        low, high = samples.ci95_s
        assert (high - low) / 2 <= limits.target_half_width * samples.median_s
        held += low <= device.launch_s <= high
        # 0.5 % on a GPU.
        close += abs(samples.median_s / device.launch_s - 1) <= limits.target_half_width
    assert 0.93 <= held / runs <= 0.97
    assert close / runs >= 0.95


def test_samples_of_0_s_do_not_converge():
    samples = measure(SimulatedDevice(tick_s=100.0))
    assert samples.median_s == 0.0
    assert not samples.converged


@pytest.mark.sampled(1)
@pytest.mark.parametrize("noise", [0.005, 0.03])
def test_medians_have_no_bias(noise):
    errors = [
        measure(SimulatedDevice(seed=seed, noise=noise)).median_s / 1e-4 - 1
        for seed in range(TRIALS)
    ]
    assert abs(statistics.mean(errors)) <= 4 * statistics.stdev(errors) / TRIALS**0.5
    assert abs(statistics.median(errors)) < 0.001


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "parameters",
    [
        {"noise": 0.03},
        {"noise": 0.005},
        {"noise": 0.03, "correlation": 0.3},
        {"noise": 0.03, "limits": CPU_LIMITS},
        {"noise": 0.01, "tick_s": 1e-6},  # a coarse tick, but not for samples of a millisecond
        {"noise": 0.01, "slow_share": 0.05, "slow_by": 1.0},  # outliers are no second mode
        # Arithmetic hides its bytes: warm is as fast, and may be.
        {"noise": 0.01, "launch_s": 1e-3, "warm_gain": 1.0},
    ],
    ids=str,
)
def test_a_quiet_device_gets_no_flag(parameters):
    seen = [names for seed in range(TRIALS) if (names := flag_names(seed=seed, **parameters))]
    assert len(seen) <= TRIALS * 0.01, seen


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("flag", "parameters"),
    [
        ("drifting", {"noise": 0.01, "drift": 0.08}),
        ("drifting", {"noise": 0.01, "drift": -0.08}),
        ("drifting", {"noise": 0.03, "drift": 0.15}),
        ("bimodal", {"noise": 0.01, "slow_share": 0.3, "slow_by": 0.08}),
        ("bimodal", {"noise": 0.005, "slow_share": 0.7, "slow_by": 0.05}),
        ("throttled", {"noise": 0.01, "throttled_share": 0.1}),
        ("tick-limited", {"noise": 0.01, "tick_s": 3e-5}),
        ("l2-suspect", {"noise": 0.03, "is_falsely_cold": True}),  # faster than the memory
        # Only as fast as warm.
        ("l2-suspect", {"noise": 0.03, "is_falsely_cold": True, "bytes_moved": 25_000_000}),
    ],
    ids=str,
)
def test_each_noisy_device_gets_exactly_its_flag(flag, parameters):
    seen = [flag_names(seed=seed, **parameters) for seed in range(TRIALS)]
    # While the truth itself moves, no interval around it can become narrow.
    also = {"not-converged"} if flag == "drifting" else set()
    wrong = [names for names in seen if names - also != {flag}]
    assert len(wrong) <= TRIALS * 0.01, wrong
