"""What a measurement relies on, and whether a user's code has left it alone: settings of the process, clocks, checks.

A snapshot is taken before the user's file is imported. What that import sets is set back, because a file that chooses
its threads or its fp32 precision means no harm; what a call changes, or who replaces a clock, makes the row invalid.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

Setting = tuple[Callable[[], Any], Callable[[Any], object] | None]
"""How a setting is read, and how it is set back; None: it cannot be."""

CHECKING = {
    "torch": ("equal", "stack", "where", "zeros", "empty", "empty_like", "frombuffer", "set_num_threads"),
    "torch.Tensor": (
        *("abs", "clone", "contiguous", "copy_", "cpu", "data_ptr", "dim", "double", "element_size", "fill_", "isnan"),
        *("max", "mean", "mul", "numel", "reshape", "sqrt", "square", "stride", "sum", "to", "untyped_storage", "view"),
        *("__getitem__", "__add__", "__sub__", "__mul__", "__truediv__", "__eq__", "__le__", "__float__", "__bool__"),
    ),
}
"""What results are checked with, of namespaces that other libraries may rightly add to or wrap in part."""

WHOLE_NAMESPACES = (
    *("time", "gc", "torch.cuda.Event", "torch.cuda.Stream", "torch.cuda.CUDAGraph", "torch.cuda.graph"),
    *(
        "bench.harness.data.checks",
        "bench.harness.data.inputs",
        "bench.harness.data.guarded_buffers",
        "bench.harness.measure.meter",
    ),
    *(
        "bench.harness.measure.runner",
        "bench.harness.timing.samplers",
        "bench.harness.timing.settle",
        "bench.harness.timing.protocol",
    ),
    *(
        "bench.harness.providers.trusted",
        "bench.harness.isolate.heartbeat",
        "bench.harness.data.verify",
        "bench.harness.isolate.worker_main",
    ),
    *("results.record", "results.store.runfile", "results.stats.samples"),
)
"""Modules and classes of which nothing may be replaced: what times and what judges."""

CUDA_FUNCTIONS = ("synchronize", "stream", "current_stream", "graph", "Event", "CUDAGraph", "Stream", "_sleep")


@dataclass(frozen=True)
class Snapshot:
    """Settings and functions as they were at one moment."""

    settings: Mapping[str, Any]
    objects: Mapping[str, Any]
    """By dotted name, what the measuring code calls."""

    @classmethod
    def take(cls) -> Snapshot:
        """Return what is in force now."""
        return cls({name: read(getter) for name, (getter, _) in known_settings().items()}, _objects())

    def changed_settings(self) -> list[str]:
        """Return what has another value now, each as `number of threads: 2 -> 1`."""
        now = {name: read(getter) for name, (getter, _) in known_settings().items()}
        return [
            f"{name}: {_word(self.settings[name])} -> {_word(value)}"
            for name, value in now.items()
            if value != self.settings[name]
        ]

    def replaced(self) -> list[str]:
        """Return the dotted names of functions that are others now."""
        now = _objects()
        return [name for name, value in self.objects.items() if now.get(name) is not value]

    def set_back(self) -> None:
        """Give every setting that can be set its value of then."""
        for name, (getter, setter) in known_settings().items():
            if setter is not None and read(getter) != self.settings[name]:
                setter(self.settings[name])


def read(getter: Callable[[], Any]) -> Any:
    """Return a setting; one that this build of torch lacks, or that two interfaces contradict about, is its error."""
    try:
        return getter()
    except (AttributeError, RuntimeError) as error:
        return type(error).__name__


def _word(value: Any) -> str:
    return {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def known_settings() -> dict[str, Setting]:
    """Return the settings of the process that change what a launch costs or what it computes."""
    import torch

    backends: Any = torch.backends
    gradients: Callable[[bool], object] = lambda value: torch.set_grad_enabled(value)  # noqa: E731
    found: dict[str, Setting] = {
        "number of threads": (torch.get_num_threads, torch.set_num_threads),
        "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
        "gradients": (torch.is_grad_enabled, gradients),
        "inference mode": (torch.is_inference_mode_enabled, None),
        "autocast": (lambda: (torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")), None),
        "function modes": (torch._C._len_torch_function_stack, None),
        "dispatch modes": (torch._C._len_torch_dispatch_stack, None),
        "deterministic algorithms": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
        "flushing of subnormal numbers": (_flushes_subnormals, torch.set_flush_denormal),
        "garbage collection": (gc.isenabled, lambda value: gc.enable() if value else gc.disable()),
        "thread switch interval": (sys.getswitchinterval, sys.setswitchinterval),
        "tracing": (sys.gettrace, sys.settrace),
        "profiling": (sys.getprofile, sys.setprofile),
        "cores": (lambda: sorted(os.sched_getaffinity(0)), lambda value: os.sched_setaffinity(0, value)),
    }
    for name, holder, key in (
        ("fp32 precision", backends, "fp32_precision"),
        ("fp32 precision of CUDA products", backends.cuda.matmul, "fp32_precision"),
        ("fp32 precision of CPU products", backends.mkldnn.matmul, "fp32_precision"),
        ("fp16 sums in CUDA products", backends.cuda.matmul, "allow_fp16_reduced_precision_reduction"),
        ("bf16 sums in CUDA products", backends.cuda.matmul, "allow_bf16_reduced_precision_reduction"),
        ("cuDNN benchmark", backends.cudnn, "benchmark"),
        ("cuDNN deterministic", backends.cudnn, "deterministic"),
    ):
        found[name] = (lambda h=holder, k=key: getattr(h, k), lambda value, h=holder, k=key: setattr(h, k, value))  # type: ignore[misc]
    return found


def _flushes_subnormals() -> bool:
    """Return whether arithmetic of this thread takes subnormal numbers for 0; torch sets it, but does not tell."""
    import torch

    return float(torch.tensor([5e-324], dtype=torch.float64).add_(0.0)) == 0.0


def _objects() -> dict[str, Any]:
    """Return all that measuring and judging call, by dotted name."""
    found: dict[str, Any] = {}
    for name in WHOLE_NAMESPACES:
        holder = _resolve(name)
        if holder is not None:
            found |= {f"{name}.{key}": value for key, value in vars(holder).items() if callable(value)}
    for name, keys in (*CHECKING.items(), ("torch.cuda", CUDA_FUNCTIONS), ("torch.mps", ("synchronize",))):
        found |= {f"{name}.{key}": getattr(_resolve(name), key, None) for key in keys}
    return found


def _resolve(name: str) -> Any:
    """Return a module that is loaded, or what one of them has by that name; None where there is none."""
    if name in sys.modules:
        return sys.modules[name]
    module, _, attribute = name.rpartition(".")
    return getattr(sys.modules.get(module), attribute, None)


def hold_clocks() -> None:
    """Give the measuring modules that are loaded clocks of their own, so that who replaces `time`'s fools nobody."""
    shared, own = time, ModuleType("time")
    vars(own).update(vars(shared))
    for name, module in list(sys.modules.items()):
        if name.startswith(("bench.", "results.")) and vars(module).get("time") is shared:
            vars(module)["time"] = own
