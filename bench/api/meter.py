"""MFU and tokens per second of your own training loop, without a profiler."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from bench.api.function import known_ceilings
from bench.harness.cli.arguments import UsageError
from bench.harness.device.device import detect
from bench.harness.torch_private import current_autograd_node, watched_autograd
from bench.profiling.counts import is_real, shapes_text, tensors_in
from bench.profiling.step import ProfiledStep, Watcher
from bench.profiling.target import target_of
from results.show.units import ABSENT, count, percent, quantity
from results.stats.samples import Interval, interval_of_median


@dataclass
class StepWork:
    """The work of one step."""

    model_s: float = 0.0
    """Seconds at the peaks of the dtypes, without matmuls that are computed again for the backward
    pass; MFU is this over the time.
    """
    hardware_s: float = 0.0
    """Seconds with them; HFU is this over the time."""
    items: int = 0
    """Tokens or samples."""


class TrainingWatcher(Watcher):
    """Counts a training step, with the phase `recomputed` for checkpointed activations."""

    @contextmanager
    def watching(self, is_eager: bool) -> Iterator[None]:
        with watched_autograd() as self.engine, super().watching(is_eager):
            yield

    def add(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        super().add(func, args, kwargs, result)
        # The backward pass runs without gradients, unless it is one of second order, or a
        # checkpoint runs the forward pass again.
        if current_autograd_node() is not None and torch.is_grad_enabled():
            _, _, _, create_graph, *_ = self.engine.run_backward.call_args.args
            if not create_graph:
                self.operations[-1].phase = "recomputed"


class Reading(NamedTuple):
    """Medians over blocks of steps, with their 95 % intervals."""

    mfu: Interval | None
    """None if the peak of a dtype is unknown."""
    hfu: Interval | None
    items_per_s: Interval
    """Tokens or samples per second."""
    blocks: int


class Meter:
    """Measures the MFU of a training loop.

        meter = roofmark.Meter(model, ids)
        for ids in batches:
            with meter.step(ids):
                model(ids).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        print(meter)

    The first step of each shape is counted, and the second one may compile: neither is timed. The
    others are timed in blocks, from the end of one to the end of the next, so that no step waits
    for the GPU; what runs between steps takes part of the time. MFU is the model's FLOPs over time
    and peak (Chowdhery et al., PaLM, 2022, appendix B); HFU includes activations that are computed
    again. With several ranks, each meter counts and times the operations of its rank and GPU.
    """

    def __init__(
        self, model: torch.nn.Module, *inputs: Any, gpu: str | None = None, block: int = 10
    ) -> None:
        """Measure a model that is trained on such inputs.

        Args:
            model: the module; it is on the device that is measured.
            inputs: an example of its inputs. The elements of the first tensor of integers are the
                tokens of a step; without one, the rows of the first tensor are its samples.
            gpu: an entry of the GPU table with the peaks, if the name of the GPU is not enough.
            block: steps from one reading of the time to the next.

        Raises:
            UsageError: `block` is less than 1, no input is a tensor, or `gpu` is unknown.
        """
        if block < 1 or not list(tensors_in(inputs)):
            raise UsageError("Meter expects an example input with a tensor, and block of 1 or more")
        self.target = target_of(type(model).__name__, model, inputs)
        self.machine = known_ceilings(detect(self.target.device), gpu)
        self.block = block
        self.unit = "samples" if all(map(is_real, tensors_in(inputs))) else "tokens"
        self._works: dict[str, StepWork] = {}
        """Work of a step by the shapes of its inputs."""
        self._compiled: set[str] = set()
        self._has_peaks = True
        self._blocks: list[tuple[list[StepWork], Any, Any]] = []
        """Work of the steps, begin and end of each finished block."""
        self._begin: Any = None
        self._done: list[StepWork] = []

    @contextmanager
    def step(self, *inputs: Any) -> Iterator[None]:
        """Measure what runs inside as one step; without inputs, they are like the example."""
        inputs = inputs or self.target.args
        shapes = shapes_text(tensors_in(inputs))
        begin = self._begin
        self._begin = None  # a step that fails or is not timed ends the block
        if shapes not in self._works:
            watcher = TrainingWatcher(ProfiledStep(self.target, "plain"))
            with watcher.watching(is_eager=True):
                yield
            self._works[shapes] = self._work_of(watcher, inputs)
            return
        if begin is None:
            self._done = []
        yield
        if shapes not in self._compiled:
            self._compiled.add(shapes)
            begin = None
        elif begin is not None:
            self._done.append(self._works[shapes])
        is_whole = len(self._done) == self.block
        self._begin = self._now() if begin is None or is_whole else begin
        if is_whole:
            self._blocks.append((self._done, begin, self._begin))
            self._done = []

    def _work_of(self, watcher: Watcher, inputs: tuple[Any, ...]) -> StepWork:
        work = StepWork()
        for operation in watcher.operations:
            if operation.matmul_flops:
                peak = self.machine.peak(operation.dtype)
                self._has_peaks &= peak is not None
                spent_s = operation.matmul_flops / peak.value if peak else 0.0
                work.hardware_s += spent_s
                work.model_s += 0.0 if operation.phase == "recomputed" else spent_s
        given = list(tensors_in(inputs))
        tokens = [tensor.numel() for tensor in given if not is_real(tensor)]
        work.items = tokens[0] if tokens else len(given[0])
        return work

    def _now(self) -> Any:
        """Return the time in seconds, or on a GPU an event in its queue of work."""
        if not self.target.device.startswith("cuda"):
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _seconds(self, begin: Any, end: Any) -> float:
        if isinstance(end, float):
            return end - float(begin)
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000

    def reading(self) -> Reading | None:
        """Return MFU, HFU and the tokens per second so far; None before the end of a block."""
        if not self._blocks:
            return None
        model = []
        hardware = []
        rates = []
        for works, begin, end in self._blocks:
            spent_s = self._seconds(begin, end)
            model.append(sum(work.model_s for work in works) / spent_s)
            hardware.append(sum(work.hardware_s for work in works) / spent_s)
            rates.append(sum(work.items for work in works) / spent_s)
        mfu = interval_of_median(model) if self._has_peaks else None
        hfu = interval_of_median(hardware) if self._has_peaks else None
        return Reading(mfu, hfu, interval_of_median(rates), len(rates))

    def __str__(self) -> str:
        found = self.reading()
        if found is None:
            return f"Meter: no block of {self.block} timed steps has ended"
        low = quantity(found.items_per_s.low)
        high = quantity(found.items_per_s.high)
        rank = f"rank {os.environ['RANK']}: " if "RANK" in os.environ else ""
        return (
            f"{rank}MFU {percent_text(found.mfu)}, HFU {percent_text(found.hfu)}, "
            f"{quantity(found.items_per_s.center)} {self.unit}/s ({low} to {high}), "
            f"{count(found.blocks, 'block')} of {count(self.block, 'step')}, {self.machine.name}"
        )


def percent_text(interval: Interval | None) -> str:
    if interval is None:
        return (
            f"{ABSENT} (no peak is known: python -m bench calibrate, run once in this directory, "
            f"measures that of a CPU or GPU; gpu= names an entry of the GPU table)"
        )
    return f"{percent(interval.center)} ({percent(interval.low)} to {percent(interval.high)})"
