"""The estimates of `python -m roofline estimate` as functions: `roofline.estimate.params(model="llama-3-8b")`.

Each function has the name of a command and takes its options by name, with underscores for dashes: `kv_heads=8`. The
options are read and answered by the command itself, so both say the same. A list holds several values
(`gpu=["h100-sxm", "a100-sxm-80gb"]`), a tuple is a shape (`shape=(4096, 4096, 1024)`), True switches on. Each returns
an `Answer`: `values` by name in SI units, `rows` where there are several machines, `steps` of the arithmetic,
`formula`, `source`, `assumptions`, `warnings`. What cannot be answered raises a `ValueError` of one line: `ConfigError`
for a value or a model, `UnknownGpuError` for a GPU; a saved run that is not there raises `results.StoreError`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from results.show.spelling import as_typed
from roofline.accounting.answers.answer import Answer
from roofline.accounting.config.config import ConfigError

Estimate = Callable[..., Answer]


def __getattr__(name: str) -> Estimate:
    """Return the function of a command, imported when it is first asked for."""
    from roofline.commands.estimate.parts import PARTS

    part = next((part for part in PARTS if part.name == name), None)
    if part is None:
        raise AttributeError(f"roofline.estimate has no '{name}'; it has {', '.join(part.name for part in PARTS)}")
    return _function(name, part.description)


def __dir__() -> list[str]:
    """Return the names of the functions."""
    from roofline.commands.estimate.parts import PARTS

    return [part.name for part in PARTS]


def _function(name: str, description: str) -> Estimate:

    def estimate(**options: Any) -> Answer:
        from roofline.explore.ask import read

        try:
            typed = as_typed(options)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        args = read(name, typed)
        return args.answer(args)  # type: ignore[no-any-return]

    estimate.__name__ = estimate.__qualname__ = name
    estimate.__module__ = __name__
    raises = "Raises:\n    ValueError: in one line what is wrong."
    estimate.__doc__ = f"{description}\n\nArgs:\n{_options(name)}\n\n{raises}\n"
    return estimate


def _options(name: str) -> str:
    from roofline.commands.estimate.parts import PARTS

    parser = argparse.ArgumentParser(add_help=False)
    next(part for part in PARTS if part.name == name).add_options(parser)
    lines = []
    for action in parser._actions:
        text = (action.help or "such as the command takes").replace("%(default)s", str(action.default))
        choices = f" ({', '.join(map(str, action.choices))})" if action.choices else ""
        lines.append(f"    {action.dest}: {text}{choices}")
    return "\n".join(lines)
