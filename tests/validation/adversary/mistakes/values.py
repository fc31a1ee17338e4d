"""Wrong results of ordinary slips."""

import torch
from torch.nn import functional


def matmul_not_transposed(a, b):
    """missing transposition: the second matrix is used as if it were stored transposed."""
    return a @ b.T


def matmul_swapped(a, b):
    """swapped operands: B A instead of A B."""
    return b @ a


def matmul_last_terms_in_bf16(a, b):
    """dropped terms: the loop over k ends two terms early."""
    return a[:, :-2] @ b[:-2]


def matmul_scaled_in_bf16(a, b):
    """wrong scale: everything is 1 % too large."""
    return (a @ b) * 1.01


def softmax_down_columns(x):
    """wrong axis: columns instead of rows are normalized."""
    return x.softmax(0)


def softmax_small_values_in_bf16(x):
    """zeroed values: whatever is below four times the mean becomes 0."""
    result = x.softmax(-1)
    return torch.where(result > 4 / x.shape[-1], result, 0)


def sum_without_last(x):
    """off by one: the last element is missing."""
    return x[:-1].sum()


def gelu_of_tanh(x):
    """other formula: the tanh form instead of erf."""
    return functional.gelu(x, approximate="tanh")
