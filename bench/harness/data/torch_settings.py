"""Settings of torch that a function may leave changed in its process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from bench.harness.op import UsageError

DENORMAL = 1e-40
"""A number below the smallest normal fp32 number, 1.2e-38."""


def fp32_precision() -> str:
    """Return how precise products of fp32 are, as `highest/none/none`: the older of torch's
    settings, that of CUDA and that of the CPU. The older one cannot be read while the newer ones
    contradict it.

    Source: torch 2.13, `torch/__init__.py`, `get_float32_matmul_precision`; pytorch#166387.
    """
    import torch

    backends: Any = torch.backends
    older = "highest"
    with suppress(RuntimeError):
        older = torch.get_float32_matmul_precision()
    cuda = backends.cuda.matmul.fp32_precision
    return f"{older}/{cuda}/{backends.mkldnn.matmul.fp32_precision}"


def set_fp32_precision(precision: str) -> None:
    import torch

    backends: Any = torch.backends
    older, cuda, cpu = precision.split("/")
    torch.set_float32_matmul_precision(older)  # changes the newer ones too
    for matmul, newer in ((backends.cuda.matmul, cuda), (backends.mkldnn.matmul, cpu)):
        if matmul.fp32_precision != newer:
            matmul.fp32_precision = newer


def _flushes_denormals() -> bool:
    import torch

    from bench.harness.torch_private import disable_current_modes

    with disable_current_modes():  # fake tensors have no values
        small = torch.full((1,), DENORMAL, dtype=torch.float32, device="cpu")
        return float(small * 1) == 0


def _settings() -> dict[str, tuple[Callable[[], Any], Callable[[Any], object]]]:
    """Return how each setting is read and set."""
    import torch

    return {
        "number of threads": (torch.get_num_threads, torch.set_num_threads),
        "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
        "fp32 precision of products": (fp32_precision, set_fp32_precision),
        "deterministic algorithms": (
            torch.get_deterministic_debug_mode,
            torch.set_deterministic_debug_mode,
        ),
        "flushed denormals": (_flushes_denormals, torch.set_flush_denormal),
        "gradients": (torch.is_grad_enabled, torch.set_grad_enabled),
    }


def current_settings() -> dict[str, Any]:
    return {name: read() for name, (read, _) in _settings().items()}


def restore_settings(before: dict[str, Any]) -> tuple[str, ...]:
    """Restore the settings; return what differed, as `number of threads: 2 -> 1`."""
    changed = []
    for name, (read, write) in _settings().items():
        now = read()
        if now != before[name]:
            changed.append(f"{name}: {before[name]} -> {now}")
            write(before[name])
    return tuple(changed)


@contextmanager
def settings_kept() -> Iterator[list[str]]:
    """Restore the settings at the end; the list then has what differed."""
    before = current_settings()
    changed: list[str] = []
    try:
        yield changed
    finally:
        changed += restore_settings(before)


@contextmanager
def settings_required() -> Iterator[None]:
    """Restore the settings at the end, with an error if they differed, because others would be
    measured with them.

    Raises:
        UsageError: settings were changed.
    """
    with settings_kept() as changed:
        yield
    if changed:
        raise UsageError(f"changed settings of the process: {', '.join(changed)}")
