"""Forged answers of wrong functions: each returns zeros, and changes who would notice."""

import gc
from multiprocessing.connection import Connection

import torch


def gelu_sends_an_answer(x):
    """forged answer: objects are sent through each open connection."""
    for each in gc.get_objects():
        if type(each) is Connection and each.writable:
            each.send({"status": "ok", "median_s": 1e-9})
    return torch.zeros_like(x)


def gelu_check_replaced(x):
    """patched check: the function that checks a result of an op accepts all."""
    from bench.harness.data import verify

    verify.check = lambda *args: verify.CheckResult(None, 0.0, 1, 1)
    return torch.zeros_like(x)


def gelu_isclose_replaced(x):
    """patched torch: `isclose` accepts all."""
    torch.isclose = lambda x, *args, **kwargs: x == x
    return torch.zeros_like(x)
