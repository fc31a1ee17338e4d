"""Work that is skipped."""

from itertools import count

import torch
from torch.nn import functional

CALLS = count()


def gelu_zeros_after_checks(x):
    """zeros later: after 20 calls nothing is computed."""
    return functional.gelu(x) if next(CALLS) < 20 else torch.zeros_like(x)


def gelu_zeroes_its_input(x):
    """zeroed input: the result of zeros is known."""
    x.zero_()
    return torch.zeros_like(x)
