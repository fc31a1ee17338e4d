"""Formulas that are right for usual numbers, and overflow, divide by 0 or lose NaN at others."""

import torch


def honest_relu(x):
    return torch.where(x <= 0, 0.0, x)


def honest_softmax(x):
    exponentials = (x - x.amax(-1, keepdim=True)).exp()
    return exponentials / exponentials.sum(-1, keepdim=True)


def honest_layernorm(x, weight, bias):
    centered = x - x.mean(-1, keepdim=True)
    variance = centered.square().mean(-1, keepdim=True)
    return centered * torch.rsqrt(variance + 1e-5) * weight + bias


def relu_of_absolute(x):
    """overflow of a sum: twice the largest number."""
    return (x + x.abs()) / 2


def relu_without_nan(x):
    """lost NaN: NaN is not above 0."""
    return torch.where(x > 0, x, 0.0)


def softmax_of_one_maximum(x):
    """underflow: the maximum of all rows is subtracted, not that of each."""
    exponentials = (x - x.max()).exp()
    return exponentials / exponentials.sum(-1, keepdim=True)


def softmax_of_the_first(x):
    """overflow, other maximum: the first element of a row is subtracted."""
    exponentials = (x - x[..., :1]).exp()
    return exponentials / exponentials.sum(-1, keepdim=True)


def layernorm_without_epsilon(x, weight, bias):
    """division by zero: the variance of equal numbers."""
    centered = x - x.mean(-1, keepdim=True)
    return centered * torch.rsqrt(centered.square().mean(-1, keepdim=True)) * weight + bias
