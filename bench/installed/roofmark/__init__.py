"""The public functions of Roofmark under one name: `roofmark.measure`, `roofmark.estimate`, ...

They are implemented in the packages `bench`, `roofline` and `results`, and imported on first use.
A wheel keeps these packages in the directory `roofmark_home`, which a `.pth` file puts on the path.
`pip install --target` ignores `.pth` files, so this module adds the directory itself.
"""

import importlib
import importlib.util
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from bench import Meter as Meter
    from bench import UsageError as UsageError
    from bench import __version__ as __version__
    from bench import compare as compare
    from bench import do_bench as do_bench
    from bench import measure as measure
    from bench import profile as profile
    from bench import sweep as sweep
    from results import load as load
    from roofline import attainable as attainable
    from roofline import draw as draw
    from roofline import estimate as estimate

LATE = {
    "Meter": "bench",
    "UsageError": "bench",
    "__version__": "bench",
    "attainable": "roofline",
    "compare": "bench",
    "do_bench": "bench",
    "draw": "roofline",
    "estimate": "roofline",
    "load": "results",
    "measure": "bench",
    "profile": "bench",
    "sweep": "bench",
}
"""Packages of the public names, which are imported on first use."""

PACKAGES = ("bench", "kernels", "roofline", "results")


IS_COMMAND = sys.argv[:1] == ["-m"] or Path(sys.argv[0]).name == "roofmark"


def _add_packages() -> None:
    """Put the packages on the path, behind everything else.

    Raises:
        ImportError: another project's package has the same name and comes first, or the packages
            are in a zip archive. A command prints one line and exits with 2.
    """
    site = Path(__file__).absolute().parent.parent
    homes = (site / "roofmark_home", site.parent.parent)  # of a wheel, and of a clone
    home = next(str(path) for path in homes if PathFinder.find_spec("bench", [str(path)]))
    if not Path(home).is_dir():
        _refuse(f"{home} is in an archive, but the data files must be in a directory; install it")
    if home not in sys.path:
        sys.path.append(home)
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        origin = Path(spec.origin).resolve() if spec is not None and spec.origin else None
        if origin is None or not origin.is_relative_to(Path(home).resolve()):
            _refuse(
                f"'{name}' would be imported from {origin}, which is not Roofmark's; "
                "rename that package, or remove its directory from the path"
            )


def _refuse(reason: str) -> NoReturn:
    if IS_COMMAND:  # print no traceback
        print(f"roofmark: {reason}", file=sys.stderr)
        raise SystemExit(2)
    raise ImportError(f"roofmark: {reason}")


_add_packages()


def __getattr__(name: str) -> Any:
    if name in LATE:
        return getattr(importlib.import_module(LATE[name]), name)
    raise AttributeError(f"module 'roofmark' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *LATE})
