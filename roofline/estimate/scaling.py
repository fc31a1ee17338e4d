"""Scaling laws: training FLOPs, compute-optimal sizes and the fitted loss."""

from __future__ import annotations

from math import log, sqrt
from typing import NamedTuple

from roofline.estimate.answer import Row

HOFFMANN = "Hoffmann et al., Training Compute-Optimal Large Language Models (2022)"
TOKENS_PER_PARAM = 20
"""Source: Hoffmann et al. (2022): about 20 tokens per parameter."""


def six_nd(params: float, tokens: float) -> float:
    """Return the FLOPs of training N parameters on D tokens: 6 N D.

    Source: Kaplan et al., Scaling Laws for Neural Language Models (2020), section 2.1.
    """
    return 6 * params * tokens


def compute_optimal_params(flops: float, tokens_per_param: float = TOKENS_PER_PARAM) -> float:
    """Return N of 6 N D = C with D = r N: sqrt(C / (6 r)), so sqrt(C / 120) at 20 tokens per
    parameter.
    """
    return sqrt(flops / six_nd(1, tokens_per_param))


class Landmark(NamedTuple):
    """Training FLOPs of a known model, or of a rule."""

    name: str
    flops: float
    source: str


LANDMARKS = (
    Landmark(
        "GPT-3", 3.14e23, "Brown et al., Language Models are Few-Shot Learners (2020), table D.1"
    ),
    Landmark(
        "GPT-4",
        2e25,
        "speculated, not published by OpenAI: CS336 lecture 2; Epoch AI estimates 2.1e25",
    ),
    Landmark(
        "US reporting threshold",
        1e26,
        "Executive Order 14110 (2023), section 4.2(b)(i); revoked in 2025",
    ),
)


LANDMARK_STEP = """\
landmark | {run_flops:number} / {landmark[flops]:number} | {landmark[ratio]:number} x \
{landmark[name]}
"""


def landmark_of(flops: float) -> Row:
    """Return the landmark nearest to a training run by ratio."""
    nearest = min(LANDMARKS, key=lambda landmark: abs(log(flops / landmark.flops)))
    return {**nearest._asdict(), "ratio": flops / nearest.flops}


FITTED_LOSS = "1.69 + 406.4 / N^0.34 + 410.7 / D^0.28"
"""L = E + A / N^alpha + B / D^beta.

Source: Hoffmann et al. (2022), equation 10; Besiroglu et al. (2024) dispute its constants."""
