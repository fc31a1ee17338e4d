"""Results that take no work."""

import torch


def sum_expected(x):
    """constant: the expected sum of symmetric random numbers."""
    return torch.zeros(())


def relu_of_positive(x):
    """input returned: right for positive inputs."""
    return x
