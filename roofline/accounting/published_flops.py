"""Closed forms of papers for GPT models (f = 4h, a d = h), to compare with what they print."""

from __future__ import annotations


def korthikanti_flops(batch: int, sequence: int, layers: int, width: int, vocabulary: int) -> int:
    """Return F = 72 B L s h^2 (1 + s / (6h) + V / (12 h L)): the FLOPs that the model needs.

    Source: Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models (2022), appendix A.
    """
    tokens = batch * sequence
    return 72 * tokens * layers * width**2 + 12 * tokens * layers * width * sequence + 6 * tokens * width * vocabulary


def saved_by_selective(sequence: int, width: int, heads: int) -> float:
    """Return the share of a layer's activations that selective recomputation saves: (5as/h) / (34 + 5as/h).

    Source: Korthikanti et al. (2022), table 2; 70 % of GPT-3 175B, 65 % of the 530B model.
    """
    scores = 5 * heads * sequence / width
    return scores / (34 + scores)
