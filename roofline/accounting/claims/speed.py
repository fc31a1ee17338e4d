"""Claims of the notes about time, FLOPs and hardware, each computed by this package."""

from __future__ import annotations

from roofline.accounting.answers.answer import number
from roofline.accounting.budget import SECONDS_PER_DAY, affordable_flops, six_nd, training_seconds
from roofline.accounting.claims.claim import Claim, compared
from roofline.accounting.config.file import load_preset
from roofline.accounting.flops import attention_share, linear_flops, train_flops
from roofline.hardware.gpu import Gpu, find_gpu, load_gpus
from roofline.model import intensity, ridge_intensity
from roofline.work import elementwise_work, matmul_work

H100_PEAK = 1979e12 / 2
"""FLOP/s, as the notes halve the sparse peak of the datasheet."""


def time_claims() -> list[Claim]:
    """Return the claims about training time and FLOPs of training."""
    run = six_nd(70e9, 15e12)
    days = training_seconds(run, H100_PEAK, 1024, 0.5) / SECONDS_PER_DAY
    needed = days * 0.5 / 88
    small = training_seconds(six_nd(1.28e9, 300e9), 989e12, 8, 0.5) / SECONDS_PER_DAY
    small_flops = six_nd(1.28e9, 300e9)
    gpt_3 = 300_000_000_000 * train_flops(load_preset("gpt-3"), 2048, convention="6nd").per_token
    days_formula = "6 N D / (devices x peak x MFU x 86,400)"
    return [
        compared("S4", "70B on 15T tokens, 1024 H100", (144, "~144 days"), (days, f"{days:.2f} days"), days_formula, 3),
        compared(
            "S2",
            "the same, as it says the lecture has it",
            (88, "88 days"),
            (days, f"{days:.1f} days"),
            days_formula,
            2,
            f"88 days need an MFU of {needed:.3f}; the lecture has 0.5 and 143.9",
        ),
        compared(
            "S2", "1.28B on 300B tokens, 8 H100", (6.5, "~6.5 days"), (small, f"{small:.2f} days"), days_formula, 2
        ),
        compared("S2, S4", "FLOPs of GPT-3", (3.14e23, "3.14e23"), (gpt_3, number(gpt_3)), "6 N D, D = 300e9", 3),
        compared(
            "S2",
            "GPT-3 over the 1.28B model",
            (100, "100x"),
            (gpt_3 / small_flops, f"{gpt_3 / small_flops:.0f}x"),
            "ratio of 6 N D",
            2,
            "both on 300B tokens",
        ),
        _llama_ratio(run, small_flops),
        _two_weeks(),
        _steps(),
    ]


def _llama_ratio(run: float, small: float) -> Claim:
    same = six_nd(70e9, 300e9) / small
    return compared(
        "S2",
        "Llama 3 70B over the 1.28B model",
        (55, "~55x"),
        (run / small, f"{run / small:.0f}x"),
        "ratio of 6 N D",
        2,
        f"{same:.0f}x only if it saw 300B tokens; it saw 15T",
    )


def _two_weeks() -> Claim:
    two, one = (affordable_flops(H100_PEAK, 8, 1, days * SECONDS_PER_DAY) for days in (14, 7))
    return compared(
        "S4",
        "FLOPs of 8 H100 in two weeks",
        (one, number(one)),
        (two, number(two)),
        "devices x peak x seconds",
        4,
        "its code has the seconds of 7 days",
    )


def _steps() -> Claim:
    few, many = 15e12 / 16e6, 15e12 / 4e6
    return compared(
        "S2",
        "steps of training on trillions of tokens",
        (1e9, "billions"),
        (many, f"{number(few / 1e6)} to {number(many / 1e6)} million"),
        "tokens / tokens per step",
        1,
        "15T tokens, 4M to 16M a step",
    )


def flop_claims() -> list[Claim]:
    """Return the claims about FLOPs of products and of a training step."""
    product = matmul_work(4 * 8 * 16, 2, 32, "fp32", "fp32").flops
    plain = matmul_work(1024, 256, 512, "fp32", "fp32").flops
    forward = 2 * linear_flops(1, 1024, 1024, has_input_gradient=False, has_weight_gradient=False)
    trained = linear_flops(1, 1024, 1024, has_input_gradient=False) + linear_flops(1, 1024, 1024)
    backward = trained / forward - 1
    per_output = matmul_work(64, 64, 1024, "fp32", "fp32").flops / 64**2
    share, causal = attention_share(4096, 4096), attention_share(4096, 4096, is_causal=True)
    return [
        compared("S2", "[4,8,16,32] @ [32,2]", (131072, "131,072"), (product, f"{product:,}"), "2 m k n", 6),
        compared("S4", "[1024,512] @ [512,256]", (268435456, "268,435,456"), (plain, f"{plain:,}"), "2 m k n", 9),
        compared(
            "S4",
            "operations per output of a product, D = 1024",
            (2, "2"),
            (per_output, f"{per_output:,.0f}"),
            "2 D",
            1,
            "2 for each (i, j, k), as its own code says",
        ),
        compared(
            "S0-S4",
            "backward over forward, two layers D x D",
            (2, "2"),
            (backward, f"{backward:g}"),
            "dgrad 2mkn, wgrad 2mkn",
            2,
            depends="layers",
            remark="the first layer needs no gradient of its input, frozen weights none of their own",
        ),
        compared(
            "S2",
            "attention's share that 6 N D leaves out at T = d",
            (0, "negligible for d >> T"),
            (share, f"{100 * share:.0f} %, causal {100 * causal:.0f} %"),
            "T / (6 d), causal T / (12 d)",
            1,
            "6 N D needs T far below 6 d, not below d",
        ),
    ]


def hardware_claims() -> list[Claim]:
    """Return the claims about peaks and intensities."""
    h100, a100 = find_gpu("h100-sxm"), find_gpu("a100-sxm-80gb")
    fp32, ratio = h100.peaks_flops_per_s["fp32"] / 1e12, _ratio(h100, "bf16", "fp32")
    chips = sorted({gpu.architecture or "" for gpu in load_gpus().values() if "fp8e4m3" in gpu.peaks_flops_per_s})
    fp8, tf32 = _ratio(h100, "fp8e4m3", "fp32"), _ratio(h100, "fp8e4m3", "tf32")
    return [
        compared("S2", "fp32 peak of an H100, TFLOP/s", (67.5, "67.5"), (fp32, f"{fp32:g}"), "datasheet", 3),
        compared(
            "S2",
            "bf16 over fp32 on an H100",
            (16, "16"),
            (ratio, f"{ratio:.1f}"),
            "ratio of dense peaks",
            2,
            f"{_ratio(a100, 'bf16', 'fp32'):.0f} is the A100's",
        ),
        compared(
            "S2",
            "fp8 over fp32 on tensor cores",
            (8, "8x"),
            (fp8, f"{fp8:.1f}x"),
            "ratio of dense peaks",
            1,
            f"{tf32:.0f}x over tf32; fp32 itself has no tensor cores on an H100",
        ),
        compared(
            "S4",
            "GPU architectures with fp8",
            (1, "H100 only"),
            (len(chips), f"{len(chips)} in the table"),
            "count",
            1,
            ", ".join(chips),
        ),
        *_intensity_claims(h100),
    ]


def _intensity_claims(h100: Gpu) -> list[Claim]:
    square = matmul_work(1024, 1024, 1024, "bf16", "bf16")
    matmul = intensity(square.flops, square.bytes) or 0.0
    bandwidth = h100.memory_bandwidth_bytes_per_s or 0.0
    ridge = ridge_intensity(h100.peaks_flops_per_s["bf16"], bandwidth)
    claims = [
        compared(
            "S0",
            "intensity of square products",
            (300, "~300"),
            (matmul, f"{matmul:.0f} at n = 1024"),
            "n / 3 in bf16",
            2,
            f"{ridge:.0f} is the ridge point of the H100; a product's grows with n",
            depends="n",
        ),
        compared("S0", "ridge point of an H100, bf16", (295, "295"), (ridge, f"{ridge:.1f}"), "peak / bandwidth", 3),
    ]
    for name, flops, theirs in (("ReLU", 1, 0.25), ("GELU", 20, 5.0)):
        half, full = (elementwise_work(1024, flops, 1, dtype) for dtype in ("bf16", "fp32"))
        ours, single = intensity(half.flops, half.bytes) or 0.0, intensity(full.flops, full.bytes) or 0.0
        text = f"{ours:g} in bf16, {single:g} in fp32"
        formula = f"{flops} / (2 w)"
        claims.append(
            compared(
                "S0, S1", f"intensity of {name}", (theirs, f"{theirs:g}"), (ours, text), formula, 2, depends="dtype"
            )
        )
    return claims


def _ratio(gpu: Gpu, upper: str, lower: str) -> float:
    return gpu.peaks_flops_per_s[upper] / gpu.peaks_flops_per_s[lower]
