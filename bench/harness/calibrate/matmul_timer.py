"""Times the matmuls of a search; all of them are views of the same two buffers.

They run warm, because a ceiling of arithmetic should not depend on memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from bench.harness.calibrate.matmul_shapes import Shape
from bench.harness.calibrate.search import NotMeasuredError
from bench.harness.data.inputs import Filler, InputSet, torch_dtype
from bench.harness.device.device import Device
from bench.harness.device.telemetry import Monitor, Poller
from bench.harness.measure.cost import CostEstimator
from bench.harness.measure.runner import one_line
from bench.harness.op import Op, UnsupportedCaseError
from bench.harness.providers.registry import load, numerics
from bench.harness.timing.protocol import Limits, Sampler, Samples, collect, no_garbage_collection
from bench.harness.timing.samplers import make_sampler

if TYPE_CHECKING:
    from torch import Tensor

SLOWEST_CALL_S = 0.15
"""Matmuls that would take longer are left out of a search: each is called a dozen times."""


class MatmulTimer:
    """Times matmuls of one dtype, warm: `timer(shape, repetitions)` is what a `ShapeSearch` measures with.

    All shapes are views of the same two pools, so changing the shape allocates and fills nothing.
    """

    def __init__(
        self,
        op: Op,
        dtype: str,
        device: Device,
        shapes: Iterable[Shape],
        limits: Limits,
        fill: str = "uniform",
        poller: Poller | None = None,
    ) -> None:
        """Allocate for the largest of `shapes`.

        Args:
            op: the op of `bench/matmul.py`.
            dtype: one of its dtypes.
            device: the device under test.
            shapes: what will be asked for; a larger one is refused.
            limits: of which the least time of a sample is used.
            fill: `uniform`, `normal`, or `zeros` for the most that a GPU can do at no power.
            poller: reads clock and power while samples run; it begins anew with each call.
        """
        import torch

        listed = list(shapes)
        self._poller = poller or Poller(Monitor(device))
        self._op, self._dtype, self._device, self._limits = op, dtype, device, limits
        self._estimator = CostEstimator(device, fill, seed=0)
        self._smallest = min(listed, key=lambda shape: shape.flops, default=None)
        """The smallest shape is never refused by an estimate: before anything has run, an estimate may be off by any
        factor."""
        self._samplers: dict[Shape, Sampler | None] = {}
        self.refused: dict[str, str] = {}
        """Shapes that could not run here, by name, and why."""
        filler = Filler(fill, dtype, device, seed=0)
        self._inputs = filler(max((s.m * s.k + s.k * s.n for s in listed), default=0))
        filler.release_pool()
        self._out = torch.zeros(
            max((s.m * s.n for s in listed), default=0),
            dtype=torch_dtype(op.output_dtype(dtype)),
            device=device.torch_name,
        )

    def __call__(self, shape: Shape, repetitions: int) -> tuple[float, ...]:
        """Return the seconds of a launch, once for each repetition; none where the shape cannot run here."""
        with numerics(self._dtype):
            sampler = self._sampler(shape)
            if sampler is None:
                return ()
            self._poller.begin()
            with no_garbage_collection():
                samples_s = [sampler.sample() / sampler.launches_per_sample for _ in range(repetitions)]
        if samples_s:
            self._estimator.learn(self._op, shape.case(self._dtype), min(samples_s))
        return tuple(samples_s)

    def run(self, shape: Shape, seconds: float) -> Samples:
        """Return all samples of a run of this length, from its very first, for `endurance`.

        Raises:
            NotMeasuredError: the shape cannot run here.
        """
        limits = replace(self._limits, target_half_width=0.0, min_time_s=seconds, cap_s=seconds)
        with numerics(self._dtype):
            sampler = self._sampler(shape)
            if sampler is None:
                raise NotMeasuredError(f"{self._dtype} matmul {shape.name}: {self.refused[shape.name]}")
            self._poller.begin()
            return collect(sampler, limits, "warm")

    def _sampler(self, shape: Shape) -> Sampler | None:
        """Return the sampler of a shape, made when it is first asked for, or None with the reason in `refused`."""
        if shape not in self._samplers:
            try:
                self._samplers[shape] = self._made(shape)
            except Exception as error:  # libraries refuse shapes and layouts in their own ways; other shapes go on
                self._samplers[shape] = None
                self.refused[shape.name] = str(error) if isinstance(error, NotMeasuredError) else one_line(error)
        return self._samplers[shape]

    def _made(self, shape: Shape) -> Sampler:
        case = shape.case(self._dtype)
        try:
            self._op.check(case, self._device.type)
        except UnsupportedCaseError as error:
            raise NotMeasuredError(str(error)) from None
        if shape.m * shape.k + shape.k * shape.n > self._inputs.numel() or shape.m * shape.n > self._out.numel():
            raise NotMeasuredError("larger than what memory was taken for")
        estimate_s = self._estimator.call_s(self._op, case) or 0.0
        if estimate_s > SLOWEST_CALL_S and shape != self._smallest:
            raise NotMeasuredError(f"estimated {estimate_s:.2g} s a launch, {SLOWEST_CALL_S:g} s are allowed")
        inputs = self._op.make_inputs(case, _Stretches(self._inputs))
        out = self._out[: shape.m * shape.n].view(shape.m, shape.n)
        call = load("torch", self._op, "matmul", self._device).call(InputSet(inputs, out))
        call()  # the first one loads libraries
        return make_sampler([call], self._device, self._limits, while_running=self._poller)


class _Stretches:
    """Makes tensors of the case's dtype out of consecutive parts of a pool that is filled already."""

    def __init__(self, pool: Tensor) -> None:
        self._pool, self._used = pool, 0

    def __call__(self, *shape: int, dtype: str | None = None) -> Tensor:
        import torch

        if dtype is not None:  # the scales of fp8, which the op fills itself
            return torch.empty(shape, dtype=torch_dtype(dtype), device=self._pool.device)
        start, self._used = self._used, self._used + math.prod(shape)
        return self._pool[start : self._used].view(shape)
