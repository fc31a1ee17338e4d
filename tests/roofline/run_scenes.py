"""Eleven runs as they are kept: versions of a kernel, sweeps, a suite, machines, decoding, training
and a profile.
"""

from dataclasses import replace

from plot_scenes import CPU, environment, matmul, on

from results.record import ProfileOp, Record
from roofline.gpu_table import find_gpu
from roofline.machine import Ceiling
from roofline.work import VECTOR_OPS

GPUS = ("h100-sxm", "a100-sxm-80gb", "h200-sxm", "h100-pcie", "l40s", "b200-sxm")
MEASURED = (
    *(
        ("flops", "bf16", 702e12),
        ("flops", "fp32", 51e12),
        ("fma", "fp32", 58e12),
        ("bandwidth", "read", 3.02e12),
    ),
    *(("bandwidth", "copy", 2.81e12), ("launch", "launch", 2.1e-6)),
)


def h100():
    """Return the datasheet of an H100 and what was measured on one."""
    return find_gpu("h100-sxm").with_entries(
        Ceiling(quantity, name, value, "measured", "a test") for quantity, name, value in MEASURED
    )


def of_gpu(ceilings, **changes):
    device = {"slug": ceilings.slug, "name": ceilings.name, "type": "cuda"}
    return environment(device=device, machine=ceilings, **changes)


def vector(op, elements, flops, bytes_per_s, dtype="bf16", **changes):
    """Return an operation that reads and writes one array, at a rate of bytes."""
    width = 4 if dtype == "fp32" else 2
    time_s = 2 * width * elements / bytes_per_s
    values = {
        "op": op,
        "provider": "torch",
        "dtype": dtype,
        "shape": {"n": elements},
        "case": str(elements),
        "status": "ok",
        "flops": flops * elements,
        "bytes_read": width * elements,
        "bytes_written": width * elements,
        "median_s": time_s,
        "ci95_s": (time_s * 0.99, time_s * 1.01),
        "cache": "cold",
    }
    return Record(**values | changes)


def versions():
    rates = {
        "torch": 702e12,
        "triton-v1": 331e12,
        "triton-v2": 515e12,
        "triton-v3": 594e12,
        "triton-v4": 683e12,
    }
    return [matmul(8192, "bf16", rate, provider) for provider, rate in rates.items()]


def elementwise_versions():
    rates = {
        "torch": 2.41e12,
        "torch-compile": 2.39e12,
        "triton-v1": 2.24e12,
        "kernels/mine_fast.py:gelu": 2.46e12,
    }
    return [vector("gelu", 2**28, 20, rate, provider=provider) for provider, rate in rates.items()]


def sweep():
    return [
        matmul(n, "bf16", top * n / (n + 900), provider)
        for provider, top in (("torch", 760e12), ("triton-v3", 690e12))
        for n in (512, 1024, 2048, 4096, 8192)
    ]


def suite():
    """Return 90 points: 14 ops without a product at several sizes by two providers, and products in
    two dtypes.
    """
    flops = {op: 1 + index for index, op in enumerate(sorted(VECTOR_OPS - {"copy"}))}
    found = [
        vector(
            op,
            2**n,
            count,
            2.9e12 * (0.2 + 0.02 * n) * (1 - 0.013 * count) * share,
            provider=provider,
        )
        for op, count in list(flops.items())[:14]
        for provider, share in (("torch", 0.92), ("torch-compile", 1.0))
        for n in (20, 24, 28)
    ]
    return found + [
        matmul(n, "bf16", 700e12 * n / (n + 1200), p)
        for n in (1024, 4096, 8192)
        for p in ("torch", "v1")
    ]


def decoding():
    """Return blocks of a model at batches up to beyond the critical one: the weights are read once
    a step.
    """
    found = []
    for batch in (1, 4, 16, 64, 256, 1024):
        weights, cache = 436e6, 4.2e6 * batch
        flops, moved = round(weights * batch), round(weights + 0.05 * cache)
        time_s = max(flops / 640e12, moved / 2.7e12) * 1.1 + 4e-6
        values = {
            "shape": {"b": batch, "s": 1024},
            "case": f"{batch}x1024",
            "flops": flops,
            "bytes_read": moved,
        }
        base = vector("decode-block", 1024, 1, 1e12)
        times = {
            "median_s": time_s,
            "ci95_s": (time_s * 0.98, time_s * 1.02),
            "options": {"model": "llama-3-8b"},
        }
        found.append(replace(base, **values, **times))
    return found


def training():
    base = replace(
        vector("train-step", 1024, 1, 1e12, shape={"b": 4, "s": 128}, case="4x128"),
        flops=2 * 10**13,
    )
    found = []
    for recipe, checkpoint, time_s in (
        *(
            ("bf16", "none", 0.061),
            ("bf16", "full", 0.079),
            ("amp", "none", 0.066),
            ("amp", "full", 0.088),
        ),
    ):
        options = {"model": "tiny", "recipe": recipe, "checkpoint": checkpoint, "micro_batches": 1}
        moved = 8 * 10**9 if checkpoint == "none" else 9 * 10**9
        times = {"median_s": time_s, "ci95_s": (time_s * 0.97, time_s * 1.03)}
        found.append(
            replace(base, options=options, bytes_read=moved, bytes_written=moved // 2, **times)
        )
    return found


def flagged():
    flags = {1024: ("preempted",), 4096: ("preempted", "not-converged")}
    return [
        matmul(n, dtype, rate * n / (n + 300), flags=flags.get(n, ()))
        for dtype, rate in (("bf16", 930e9), ("fp32", 224e9))
        for n in (256, 512, 1024, 2048, 4096)
    ]


def profiled():
    """Return the rows of a profile: 4 products and an elementwise operation that take long, and 195
    that do not.
    """
    shares = [0.3, 0.2, 0.1, 0.05, 0.03] + [0.32 / 195] * 195
    parts = [matmul(256 * (1 + i % 7), "bf16", 1e12 * (1 + i % 41)) for i in range(4)]
    parts += [vector("aten.add", 2**16 * (1 + i % 29), 1, 1e10 * (1 + i % 53)) for i in range(196)]
    return [
        replace(part, details=profile_op(module=f"layers.*.mlp.part{i}", share=share))
        for i, (part, share) in enumerate(zip(parts, shares, strict=True))
    ]


def profile_op(**known):
    return ProfileOp(phase="forward", **known)


def of_six_gpus():
    runs = []
    for index, slug in enumerate(GPUS):
        known = find_gpu(slug)
        peak = known.peak("bf16")
        top = (0.5 + 0.04 * index) * (peak.value if peak else 1e14)
        runs.append(
            (of_gpu(known), [matmul(n, "bf16", top * n / (n + 1500)) for n in (2048, 8192)])
        )
    return runs


def one(ceilings, records):
    return [(of_gpu(ceilings), records)]


LONG = "kernels/experiments/of_last_week/matmul_with_a_long_name.py:persistent_kernel_number_"

RUNS = {
    "versions": (one(h100(), versions()), [], ["bf16"]),
    "elementwise versions": (one(h100(), elementwise_versions()), [], ["bf16"]),
    "sweep": (one(h100(), sweep()), [], ["bf16"]),
    "90 points": (one(h100(), suite()), [], ["bf16"]),
    "6 GPUs": (of_six_gpus(), [], ["bf16"]),
    "decode": (one(h100(), decoding()), [], ["bf16"]),
    "train_step": (one(h100(), training()), [], ["bf16"]),
    "flagged": ([on(CPU, *flagged())], [], ["bf16", "fp32"]),
    "long names": (
        one(h100(), [replace(r, provider=f"{LONG}{i}") for i, r in enumerate(versions())]),
        [],
        ["bf16"],
    ),
    "vector and matrix": (
        one(h100(), [*elementwise_versions()[:1], vector("gelu", 2**20, 20, 9e11), *sweep()[:5]]),
        [],
        ["bf16"],
    ),
    "a profile": (one(h100(), profiled()), [], ["bf16"]),
}
