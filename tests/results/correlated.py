"""Series of noise whose neighbors correlate."""

import math


def autoregressive(random, trials, count, correlation):
    values = random.normal(size=(trials, count))
    for at in range(1, count):
        step = math.sqrt(1 - correlation**2) * values[:, at]
        values[:, at] = correlation * values[:, at - 1] + step
    return values
