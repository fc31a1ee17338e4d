"""Results of another dtype, shape or kind."""

from torch.nn import functional


def gelu_in_fp64(x):
    """wider dtype: the result stays in fp64."""
    return functional.gelu(x.double())


def sum_as_number(x):
    """no tensor: a number of Python."""
    return x.sum().item()


def gelu_not_returned(x):
    """no result: the result is dropped."""
    functional.gelu(x)


def gelu_one_by_one(x):
    """generator: nothing is computed until somebody asks."""
    return (functional.gelu(part) for part in x.chunk(2))


def gelu_as_column(x):
    """wrong shape: n x 1 instead of n."""
    return functional.gelu(x)[:, None]


def sum_of_nan(x):
    """NaN: an uninitialized factor."""
    return x.sum() * float("nan")
