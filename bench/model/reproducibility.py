"""Deterministic algorithms, and checkpoints from which a training step resumes bit by bit.

A step is a `bench.model.step.TrainingStep`; that module imports this one.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch

from bench.harness import clock
from results.record import Object
from roofline.accounting.state import checkpoint_file_bytes, state_bytes

REPEATS = 3


@contextmanager
def deterministic(is_on: bool = True) -> Iterator[None]:
    """Use deterministic algorithms if `is_on`; torch then also fills uninitialized memory."""
    was_on = torch.are_deterministic_algorithms_enabled()
    if is_on:
        # cuBLAS is deterministic only with it.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(is_on or was_on)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was_on)


def checkpoint_report(step: Any, directory: Path) -> tuple[str | None, Object]:
    """Return what is wrong with the resumed step, and the sizes and times of a checkpoint in a
    directory.

    A step after resumption must give the weights and the optimizer state of the uninterrupted run.
    Both steps use deterministic algorithms, without which a GPU repeats no step bit by bit.
    """
    plan = step.plan
    with tempfile.TemporaryDirectory(dir=directory) as folder, deterministic():
        path = Path(folder) / "checkpoint.pt"
        write_s = [_write_s(step, path) for _ in range(REPEATS)]
        step()
        expected = _digests(step)
        step.model.start()
        step.optimizer.state.clear()
        read_s = [_read_s(step, path) for _ in range(REPEATS)]
        step()
        resumed = _digests(step)
        report = {
            "directory": str(directory),
            "bytes": path.stat().st_size,
            "estimated_bytes": checkpoint_file_bytes(
                state_bytes(plan.config, plan.recipe, plan.optimizer)
            ),
            "write_s": median(write_s),
            "read_s": median(read_s),
            "is_bit_exact": resumed == expected,
        }
    different = [name for name in expected if resumed.get(name) != expected[name]]
    problem = (
        f"after resuming from the checkpoint {len(different)} tensors differ: "
        f"{', '.join(different[:2])}"
    )
    return (problem if different else None), report


def contents(step: Any) -> Object:
    model = step.model.state_dict()
    optimizer = step.optimizer.state_dict()
    return {"model": model, "optimizer": optimizer, "rng_state": torch.get_rng_state()}


def _write_s(step: Any, path: Path) -> float:
    """Return the seconds until the file is on the disk."""
    step.device.synchronize()
    start = clock.now()
    with path.open("wb") as file:
        torch.save(contents(step), file)
        file.flush()
        os.fsync(file.fileno())
    return clock.now() - start


def _read_s(step: Any, path: Path) -> float:
    """Return the seconds until model and optimizer have their state; the page cache is dropped if
    the system can.
    """
    if hasattr(os, "posix_fadvise"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    start = clock.now()
    loaded = torch.load(path, map_location=step.device.torch_name, weights_only=True)
    step.model.load_state_dict(loaded["model"])
    step.optimizer.load_state_dict(loaded["optimizer"])
    torch.set_rng_state(loaded["rng_state"].cpu())
    step.device.synchronize()
    return clock.now() - start


def _digests(step: Any) -> dict[str, str]:
    """Return a hash of each weight and each tensor of the optimizer, by name."""
    tensors = dict(step.model.state_dict())
    for index, state in step.optimizer.state_dict()["state"].items():
        tensors |= {
            f"{name} of parameter {index}": value
            for name, value in state.items()
            if torch.is_tensor(value)
        }
    return {
        name: hashlib.sha256(tensor.detach().cpu().flatten().view(torch.uint8).numpy()).hexdigest()
        for name, tensor in tensors.items()
    }
