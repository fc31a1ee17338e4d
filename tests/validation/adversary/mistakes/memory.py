"""Wrong masks, strides and neighbours."""

import torch
from torch.nn import functional


def softmax_mask_of_zero(x):
    """mask of the tail: the padding counts as exp(0)."""
    return functional.pad(x, (0, 24)).softmax(-1)[:, :-24]


def matmul_row_stride(a, b):
    """wrong stride: B is read down its columns."""
    return a @ torch.as_strided(b, b.shape, (1, len(b)))


def gelu_of_the_neighbour(x):
    """neighbour: each element is that of the thread before."""
    return functional.gelu(x.roll(1))


def sum_of_overlapping_blocks(x):
    """overlap of blocks: one element is in two blocks."""
    return x.sum() + x[1023]
