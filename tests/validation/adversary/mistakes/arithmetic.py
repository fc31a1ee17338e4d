"""Formulas that are right on paper, and overflow, cancel or round."""

import torch


def softmax_without_maximum(x):
    """overflow: the maximum is not subtracted."""
    exponentials = x.exp()
    return exponentials / exponentials.sum(-1, keepdim=True)


def layernorm_of_squares(x, weight, bias):
    """cancellation: the variance is the mean of squares less the square of the mean."""
    mean = x.mean(-1, keepdim=True)
    variance = x.square().mean(-1, keepdim=True) - mean.square()
    return (x - mean) * torch.rsqrt(variance + 1e-5) * weight + bias


def longmatmul_added_in_bf16(a, b):
    """narrow accumulator: the sum is rounded after each of 256 chunks."""
    return sum(left @ right for left, right in zip(a.split(16, 1), b.split(16), strict=True))


def sum_of_bf16(x):
    """narrow accumulator: the sum is rounded to 8 bits."""
    return x.bfloat16().sum().float()


def matmul_of_bf16(a, b):
    """narrow inputs: fp32 inputs are rounded first."""
    return (a.bfloat16() @ b.bfloat16()).float()
