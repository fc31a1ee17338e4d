"""Settings of the process that stay changed, which slow down others or round more."""

import torch
from torch.nn import functional


def honest_gelu(x):
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    result = functional.gelu(x)
    torch.set_num_threads(threads)
    return result


def matmul_threads(a, b):
    """number of threads: more than the caller chose."""
    torch.set_num_threads(3)
    return a @ b


def gelu_default_dtype(x):
    """default dtype: new tensors are fp64."""
    torch.set_default_dtype(torch.float64)
    return functional.gelu(x)


def matmul_precision(a, b):
    """matmul precision: fp32 products may round to bf16."""
    torch.set_float32_matmul_precision("medium")
    return a @ b


def gelu_flush_denormal(x):
    """flushed denormals: small numbers become 0."""
    torch.set_flush_denormal(True)
    return functional.gelu(x)


def sum_deterministic(x):
    """deterministic: other functions take slower algorithms."""
    torch.use_deterministic_algorithms(True)
    return x.sum()
