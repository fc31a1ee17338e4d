"""Settings of torch that a function may leave changed in its process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

DENORMAL = 1e-40
"""A number below the smallest normal fp32 number, 1.2e-38."""


def fp32_precision() -> tuple[str, str, str]:
    """Return how precise products of fp32 are, for `set_fp32_precision`.

    The older of torch's settings comes first; it cannot be read while the newer ones contradict it.

    Source: torch 2.13, `torch/__init__.py`, `get_float32_matmul_precision`; pytorch#166387.
    """
    import torch

    backends: Any = torch.backends
    older = "highest"
    with suppress(RuntimeError):
        older = torch.get_float32_matmul_precision()
    return older, backends.cuda.matmul.fp32_precision, backends.mkldnn.matmul.fp32_precision


def set_fp32_precision(precision: tuple[str, str, str]) -> None:
    import torch

    backends: Any = torch.backends
    older, cuda, cpu = precision
    torch.set_float32_matmul_precision(older)  # changes the newer ones too
    for matmul, newer in ((backends.cuda.matmul, cuda), (backends.mkldnn.matmul, cpu)):
        if matmul.fp32_precision != newer:
            matmul.fp32_precision = newer


def current_settings() -> dict[str, Any]:
    import torch

    small = torch.full((1,), DENORMAL, dtype=torch.float32, device="cpu")
    return {
        "number of threads": torch.get_num_threads(),
        "default dtype": torch.get_default_dtype(),
        "fp32 precision of products": fp32_precision(),
        "deterministic algorithms": torch.get_deterministic_debug_mode(),
        "flushed denormals": float(small * 1) == 0,
        "gradients": torch.is_grad_enabled(),
    }


def restore_settings(before: dict[str, Any]) -> tuple[str, ...]:
    """Restore the settings; return what differed, as `number of threads: 2 -> 1`."""
    import torch

    now = current_settings()
    changed = tuple(
        f"{name}: {_shown(value)} -> {_shown(now[name])}"
        for name, value in before.items()
        if now[name] != value
    )
    if changed:
        torch.set_num_threads(before["number of threads"])
        torch.set_default_dtype(before["default dtype"])
        set_fp32_precision(before["fp32 precision of products"])
        torch.set_deterministic_debug_mode(before["deterministic algorithms"])
        torch.set_flush_denormal(before["flushed denormals"])
        torch.set_grad_enabled(before["gradients"])
    return changed


def _shown(value: object) -> str:
    return "/".join(value) if isinstance(value, tuple) else str(value)


@contextmanager
def settings_kept() -> Iterator[list[str]]:
    """Restore the settings at the end; the list then has what differed."""
    before = current_settings()
    changed: list[str] = []
    try:
        yield changed
    finally:
        changed += restore_settings(before)
