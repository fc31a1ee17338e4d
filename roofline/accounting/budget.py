"""What a budget of devices, time and memory allows: training time, largest model, compute-optimal size.

Sources: Kaplan et al., Scaling Laws for Neural Language Models (2020), section 2.1, for 6 N D; Chowdhery et al., PaLM
(2022), appendix B, for MFU; CS336 (2025) lecture 2 for memory; Hoffmann et al., Training Compute-Optimal Large Language
Models (2022), for the compute-optimal size.
"""

from __future__ import annotations

from math import sqrt

SECONDS_PER_DAY = 86_400

TOKENS_PER_PARAM = 20
"""Hoffmann et al., Training Compute-Optimal Large Language Models (2022): about 20 tokens per parameter."""


def six_nd(params: float, tokens: float) -> float:
    """Return the FLOPs of training N parameters on D tokens: 6 N D."""
    return 6 * params * tokens


def training_seconds(flops: float, peak_flops_per_s: float, devices: int, mfu: float) -> float:
    """Return the seconds that FLOPs take on devices at a share `mfu` of their peak."""
    return flops / (devices * peak_flops_per_s * mfu)


def affordable_flops(peak_flops_per_s: float, devices: int, mfu: float, seconds: float) -> float:
    """Return the FLOPs that devices do in a time at a share `mfu` of their peak."""
    return devices * peak_flops_per_s * mfu * seconds


def largest_params(memory_bytes: float, devices: int, bytes_per_param: float) -> float:
    """Return the parameters whose state, sharded evenly, fills the memory of all devices: 80e9 x 8 / 16 = 40e9."""
    return memory_bytes * devices / bytes_per_param


def compute_optimal_params(flops: float, tokens_per_param: float = TOKENS_PER_PARAM) -> float:
    """Return N of 6 N D = C with D = r N: sqrt(C / (6 r)), so sqrt(C / 120) at 20 tokens per parameter."""
    return sqrt(flops / six_nd(1, tokens_per_param))


def affordable_tokens(flops: float, params: float) -> float:
    """Return D of 6 N D = C."""
    return flops / six_nd(params, 1)


FITTED_LOSS_SOURCE = "Hoffmann et al. (2022), equation 10; Besiroglu et al. (2024) dispute its constants"

FIT = (1.69, 406.4, 0.34, 410.7, 0.28)
FITTED_LOSS = "{} + {} / N^{} + {} / D^{}".format(*FIT)
"""L = E + A / N^alpha + B / D^beta with the constants of Hoffmann et al."""


def fitted_loss(params: float, tokens: float) -> float:
    """Return the loss per token in nats, `FITTED_LOSS`."""
    floor, of_params, alpha, of_tokens, beta = FIT
    loss: float = floor + of_params / params**alpha + of_tokens / tokens**beta
    return loss
