"""Inputs that are changed, and functions that change a copy."""

from torch.nn import functional


def honest_relu(x):
    return x.clone().relu_()


def relu_in_place(x):
    """in place: the result is the input."""
    return x.relu_()


def softmax_in_place(x):
    """in place: the input is overwritten by the result."""
    return x.copy_(x.softmax(-1))


def gelu_scales_its_input(x):
    """changes its input: the input is halved after it was used."""
    result = functional.gelu(x)
    x.mul_(0.5)
    return result


def softmax_shifts_its_input(x):
    """in place, same result: a second call sees an input that needs no shift."""
    x.sub_(x.amax(-1, keepdim=True))
    return x.softmax(-1)


def sum_sorts_its_input(x):
    """in place, same result: the elements change places."""
    return x.copy_(x.sort().values).sum()
