"""How a linear layer's outputs grow with its width, by the scale of its initial weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

WIDTHS = (64, 256, 1024, 4096)
TOKENS = 256


class Growth(NamedTuple):
    """Standard deviations of x W for x (tokens, d) and W (d, d), with x from N(0, 1).

    With W from N(0, 1), `unscaled`, it is sqrt(d); with W from N(0, 1) / sqrt(d), `scaled`, it is 1.
    """

    width: int
    unscaled: float
    scaled: float


def initial_growth(widths: Sequence[int] = WIDTHS, device: str = "cpu", seed: int = 0) -> list[Growth]:
    """Return the measured standard deviations for each width.

    Source: Glorot and Bengio, Understanding the Difficulty of Training Deep Feedforward Neural Networks (2010): the
        variance of a sum of d independent products is d times that of one.
    """
    generator = torch.Generator(device).manual_seed(seed)
    rows = []
    for width in widths:
        x, weight = (torch.randn(height, width, generator=generator, device=device) for height in (TOKENS, width))
        rows.append(Growth(width, float((x @ weight).std()), float((x @ (weight / width**0.5)).std())))
    return rows
