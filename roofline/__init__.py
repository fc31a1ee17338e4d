"""MODEL: hardware facts, work, ceilings, verdicts, plots. Imports only `results`, and never torch.

From Python, `roofline.attainable` is the roofline at one intensity, `roofline.draw` the picture of one, and
`roofline.estimate` holds the estimates of the command as functions.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roofline import estimate as estimate
    from roofline.accounting.config.config import ConfigError as ConfigError
    from roofline.accounting.machines import Attainable as Attainable
    from roofline.commands.plot import draw as draw
    from roofline.gpu_table import UnknownGpuError as UnknownGpuError
    from roofline.picture.scene import PlotError as PlotError

LATE = {
    "Attainable": "roofline.accounting.machines",
    "ConfigError": "roofline.accounting.config.config",
    "PlotError": "roofline.picture.scene",
    "UnknownGpuError": "roofline.gpu_table",
    "draw": "roofline.commands.plot",
}
"""Names of the package that are imported when they are first asked for, and where they stand."""


def attainable(gpu: str, flops: int, bytes: int, dtype: str = "bf16") -> Attainable:
    """Return the most that a GPU does of some work by its datasheet: time, rates, and what binds.

    Args:
        gpu: slug of the table that `python -m roofline gpus` prints, such as `h100-sxm`.
        flops: floating-point operations; a fused multiply-add counts as 2.
        bytes: bytes that memory must move, read and written together.
        dtype: whose dense peak is taken: `bf16`, `fp32`, `fp8e4m3`, ...

    Raises:
        UnknownGpuError: no GPU has this slug; the message names the closest ones.
        ConfigError: a count is none, or the GPU has no known peak of the dtype.
    """
    from roofline.accounting import machines
    from roofline.accounting.config.config import ConfigError
    from roofline.gpu_table import find_gpu
    from roofline.work import dtype_named

    for name, value in (("flops", flops), ("bytes", bytes)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 10**30 or value % 1:
            raise ConfigError(f"{name}={value!r:.60} must be a whole number from 0 to 10^30")
    if not flops and not bytes:
        raise ConfigError("flops and bytes are both 0: nothing is to be done")
    return machines.attainable(find_gpu(gpu), int(flops), int(bytes), dtype_named(dtype))


def __getattr__(name: str) -> Any:
    """Return the estimates and the types of the package, imported when they are first asked for."""
    if name == "estimate":
        return importlib.import_module("roofline.estimate")
    if name in LATE:
        return getattr(importlib.import_module(LATE[name]), name)
    raise AttributeError(f"module 'roofline' has no attribute '{name}'")
