"""All claims of the study notes that have numbers, with ours beside them."""

from __future__ import annotations

from roofline.accounting.claims.claim import Claim
from roofline.accounting.claims.memory import (
    activation_claims,
    format_claims,
    parameter_claims,
    state_claims,
    tensor_claims,
)
from roofline.accounting.claims.speed import flop_claims, hardware_claims, time_claims


def all_claims() -> list[tuple[str, list[Claim]]]:
    """Return the claims by subject, each computed now."""
    return [
        ("Training time", time_claims()),
        ("FLOPs", flop_claims()),
        ("Peaks and intensity", hardware_claims()),
        ("Number formats", format_claims()),
        ("Tensors and data", tensor_claims()),
        ("Parameters", parameter_claims()),
        ("State of training", state_claims()),
        ("Activations", activation_claims()),
    ]
