"""MODEL: machines, work, roofline formulas, estimates, plots. Below its commands it imports only
`results`, no torch.

`roofline.attainable` evaluates a roofline at one intensity, `roofline.draw` plots rooflines, and
`roofline.estimate` has a function per estimate.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roofline import estimate as estimate
    from roofline.accounting.config import ConfigError as ConfigError
    from roofline.accounting.machines import Attainable as Attainable
    from roofline.accounting.machines import attainable as attainable
    from roofline.commands.plot import draw as draw
    from roofline.gpu_table import UnknownGpuError as UnknownGpuError
    from roofline.picture.scene import PlotError as PlotError

LATE = {
    "Attainable": "roofline.accounting.machines",
    "ConfigError": "roofline.accounting.config",
    "PlotError": "roofline.picture.scene",
    "UnknownGpuError": "roofline.gpu_table",
    "attainable": "roofline.accounting.machines",
    "draw": "roofline.commands.plot",
}
"""Public names that are imported at first use, and their modules."""


def __getattr__(name: str) -> Any:
    if name == "estimate":
        return importlib.import_module("roofline.estimate")
    if name in LATE:
        return getattr(importlib.import_module(LATE[name]), name)
    raise AttributeError(f"module 'roofline' has no attribute '{name}'")
