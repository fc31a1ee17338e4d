"""Settings of torch and of the process that change what a launch costs or what it computes.

What the import of a user's file sets is set back, because a file that chooses its threads or its fp32 precision means
no harm; what a call changes and leaves so makes the row invalid.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Setting = tuple[Callable[[], Any], Callable[[Any], object] | None]
"""How a setting is read, and how it is set back; None: it cannot be."""


@dataclass(frozen=True)
class ProcessSettings:
    """Settings of this process as they were at one moment."""

    values: Mapping[str, Any]

    @classmethod
    def now(cls) -> ProcessSettings:
        """Return what is in force now."""
        return cls({name: read(getter) for name, (getter, _) in known_settings().items()})

    def restore(self) -> tuple[str, ...]:
        """Give every setting that can be set its value of then; return what differed, `number of threads: 2 -> 1`."""
        now = self.now().values  # all before the first is set back: one may follow another
        for name, (getter, setter) in known_settings().items():
            if setter is not None and read(getter) != self.values[name]:
                setter(self.values[name])
        return tuple(
            f"{name}: {_word(before)} -> {_word(now[name])}"
            for name, before in self.values.items()
            if now[name] != before
        )


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
