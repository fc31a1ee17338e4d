"""A clock that tests move."""

from bench.harness import clock
from bench.harness.timing import samplers

BOUND = (samplers.HostSampler.sample, samplers.timed_calls)
"""Functions of launches, which have the clock as their last default argument."""


def set_clock(monkeypatch, now):
    """Let all measuring code read `now`, a function that returns seconds."""
    monkeypatch.setattr(clock, "now", now)
    for function in BOUND:
        monkeypatch.setattr(function, "__defaults__", (*function.__defaults__[:-1], now))
