"""A record for tests."""

from results.record import Record


def record(**changes):
    """Return a 1024-cube bf16 product: 2^31 FLOPs in 4.294967296 us, 500 TFLOP/s."""
    values = {
        "op": "matmul",
        "provider": "torch",
        "dtype": "bf16",
        "shape": {"m": 1024, "n": 1024, "k": 1024},
        "case": "1024x1024x1024",
        "status": "ok",
        "flops": 2**31,
        "bytes_read": 2**22,
        "bytes_written": 2**21,
        "samples_s": (4.2e-6, 4.294967296e-6, 4.4e-6),
        "launches_per_sample": 10,
        "method": "graph",
        "cache": "cold",
        "fill": "uniform",
        "median_s": 4.294967296e-6,
        "ci95_s": (4.2e-6, 4.4e-6),
        "converged": True,
        "first_call_s": 0.25,
        "telemetry": {"power_w": 512.5, "throttle": {"thermal": False}},
        "verified": {"passed": True},
    }
    return Record(**values | changes)
