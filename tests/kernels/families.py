"""The families of kernels: their versions, and small operands of each operation."""

import importlib

import pytest
import torch
from exact import DTYPES

from kernels import launch, versions

ON_A_GPU = {name: dtype for dtype, name in launch.DTYPES.items()}
FAMILIES = [family for family in versions.families() if family not in versions.CALIBRATION]
SMALL = {
    "adamw": (3 * 1040,),
    "cross_entropy": (3, 8201),
    "elementwise": (3 * 1040, 1040),
    "matmul": (48, 64, 80),
    "matvec": (101, 1040),
    "norm": (3, 1040),
    "quantize": (3, 640),
    "reduction": (100_003,),
    "rope": (5, 9, 2, 64),
    "softmax": (3, 8201),
}
"""Sizes of small operands, as `draw` of the cases of a family takes them."""


def versions_of(family):
    return {
        version: importlib.import_module(name) for version, name in versions.modules(family).items()
    }


def cases_of(family):
    return importlib.import_module(f"{family}_cases")


def runs_here(module):
    needed = getattr(module, "MINIMUM_ARCH", 0) // 10
    return (
        launch.INTERPRETED
        or not torch.cuda.is_available()
        or torch.cuda.get_device_capability()[0] >= needed
    )


def pairs(family):
    found = [
        (version, module) for version, module in versions_of(family).items() if runs_here(module)
    ]
    return [
        pytest.param(op, module, id=f"{op}-{version}")
        for version, module in found
        for op in module.KERNELS
    ]


def ways(family):
    dtypes = DTYPES if launch.INTERPRETED else ON_A_GPU
    return [
        pytest.param(*pair.values, dtype, id=f"{pair.id}-{name}")
        for pair in pairs(family)
        for name, dtype in dtypes.items()
    ]


def every_way():
    return [
        pytest.param(family, *pair.values, id=f"{family}-{pair.id}")
        for family in FAMILIES
        for pair in pairs(family)
    ]


def blank(family, op, inputs):
    shape, dtype = inputs[0].shape, inputs[0].dtype
    if family == "matmul":
        shape = (*shape[:-1], inputs[1].shape[-1])
    elif family == "reduction":
        shape = ()
    elif family in ("matvec", "cross_entropy"):
        shape, dtype = shape[:1], inputs[1].dtype if family == "matvec" else torch.float32
    elif family == "adamw":
        shape, dtype = (inputs[0].numel() * (8 + dtype.itemsize),), torch.uint8
    elif family == "quantize":
        scales = inputs[0].numel() // (128 if op == "quantize-fp8-block" else shape[1] or 1)
        shape, dtype = (inputs[0].numel() + 4 * scales,), torch.uint8
    elif family == "rope":
        shape = (shape[0], shape[1] + inputs[1].shape[1], shape[2])
    elif op == "residual-rmsnorm":
        shape = (2, *shape)
    return torch.zeros(shape, dtype=dtype)


def small(family, op, dtype, *shape):
    inputs = cases_of(family).draw(op, dtype, *(shape or SMALL[family]))
    return inputs, blank(family, op, inputs)


def skip_without(free_gigabytes):
    free_bytes, _ = torch.cuda.mem_get_info()
    if free_bytes < free_gigabytes * 10**9:
        pytest.skip(
            f"needs {free_gigabytes} GB of free GPU memory, {free_bytes / 1e9:.0f} GB are free"
        )
