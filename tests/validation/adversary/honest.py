"""Each op computed by torch: the baseline of comparisons, and the twin of a function whose file has
no twin of its own.
"""

import torch
from torch.nn import functional


def gelu(x):
    return functional.gelu(x)


def relu(x):
    return torch.relu(x)


def softmax(x):
    return x.softmax(-1)


def sum(x):
    return x.sum()


def layernorm(x, weight, bias):
    return functional.layer_norm(x, x.shape[-1:], weight, bias)


def matmul(a, b):
    return a @ b


longmatmul = matmul  # many terms
bigmatmul = matmul  # so many that not all rows are checked
