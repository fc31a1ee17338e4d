"""Settings of torch that decide what a launch computes or how long it takes. A user's code must not leave them changed.

What the import of a user's file sets is set back; what a call changes and leaves so makes the row invalid.
"""

from __future__ import annotations

from typing import Any


def current_settings() -> dict[str, Any]:
    """Return the settings by name."""
    import torch

    backends: Any = torch.backends
    return {
        "number of threads": torch.get_num_threads(),
        "default dtype": torch.get_default_dtype(),
        "fp32 precision of CUDA products": backends.cuda.matmul.fp32_precision,
        "fp32 precision of CPU products": backends.mkldnn.matmul.fp32_precision,
    }


def restore_settings(before: dict[str, Any]) -> tuple[str, ...]:
    """Set the settings to what they were, and return what differed: `number of threads: 2 -> 1`."""
    import torch

    backends: Any = torch.backends
    now = current_settings()
    changed = tuple(f"{name}: {value} -> {now[name]}" for name, value in before.items() if now[name] != value)
    if changed:
        threads, dtype, cuda, cpu = before.values()
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
        backends.cuda.matmul.fp32_precision, backends.mkldnn.matmul.fp32_precision = cuda, cpu
    return changed
