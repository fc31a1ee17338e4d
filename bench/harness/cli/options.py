"""The options of the bench commands: each stands once in `OPTIONS`, and a command adds those that it takes by name."""

from __future__ import annotations

import argparse
import itertools
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.harness.data.inputs import FILLS
from results.record import CACHE_STATES
from results.show import removed
from results.show.export import TABLE_FORMATS
from roofline.work import dtype_named

DEFAULT_DTYPE = "bf16"
PICTURES = (".png", ".svg", ".pdf")

MAX_BUDGET_S = 1e9
"""Thirty years."""

MAX_SEED = 2**63 - 1
"""The largest that every random generator of torch takes."""


def words(text: str) -> list[str]:
    """Return the comma-separated words of a list option; an empty list is an error."""
    found = [word.strip() for word in text.split(",") if word.strip()]
    if not found:
        raise argparse.ArgumentTypeError("the list is empty; name at least one")
    return found


def dtype_words(text: str) -> list[str]:
    """Return the dtypes of a list, `float32` and `torch.bfloat16` by the names that they have here."""
    return [dtype_named(word) for word in words(text)]


def shape_words(text: str) -> list[str]:
    """Return the shapes of a list, with the signs that others multiply by as `x`."""
    return [re.sub(r"[X×*]", "x", word) for word in words(text)]


class Extend(argparse.Action):
    """Collects the words of a list option: separated by commas or blanks, and given more than once."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        found = getattr(namespace, self.dest) or []
        setattr(namespace, self.dest, [*found, *itertools.chain.from_iterable(values)])


class Output(argparse.Action):
    """Takes the path of the run file; that of a picture, which no run file can have, is taken as `--plot`."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        is_picture = Path(values).suffix.lower() in PICTURES
        setattr(namespace, "plot" if is_picture else self.dest, values)


def number(least: float, most: float, what: str, kind: type = float) -> Callable[[str], Any]:
    """Return a parser of a number from `least` to `most`, written in ASCII digits."""

    def parse(text: str) -> Any:
        try:
            value = kind(text) if text.isascii() and "_" not in text else math.nan
        except ValueError:
            value = math.nan
        if not least <= value <= most:  # also when it is NaN
            raise argparse.ArgumentTypeError(f"'{text}' must be {what}")
        return value

    return parse


def device_name(text: str) -> str:
    """Return a device's name in torch's spelling."""
    if text == "mps":
        raise argparse.ArgumentTypeError(f"'mps' was removed: {removed.VALUES['mps']}")
    if not re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", text):
        raise argparse.ArgumentTypeError(f"unknown device '{text}'; write cpu, cuda or cuda:N")
    return text


def thread_count(text: str) -> int:
    """Return a number of threads, at most one for each logical CPU of this process."""
    from bench.harness.device.host import allowed_cores

    most = len(allowed_cores())
    what = f"a whole number from 1 to {most}, the logical CPUs of this process"
    return int(number(1, most, what, int)(text))


def path(text: str) -> Path | str:
    """Return a path; one that is written as a folder and is none yet stays text, as `Path` drops the last slash.

    An empty one, as of a variable that is not set, would be the current folder.
    """
    if not text:
        raise argparse.ArgumentTypeError("the path is empty")
    return text if text.endswith("/") and not Path(text).is_dir() else Path(text)


LIST: dict[str, Any] = {"metavar": "LIST", "action": Extend, "nargs": "+", "type": words}
SWITCH: dict[str, Any] = {"action": "store_true"}

OPTIONS: dict[str, dict[str, Any]] = {
    "--op": LIST | {"help": "operations"},
    "--dtype": LIST | {"type": dtype_words, "help": f"dtypes (default: {DEFAULT_DTYPE})"},
    "--shape": LIST | {"type": shape_words, "help": "shapes"},
    "--size": LIST | {"help": "instead of a shape: bytes of one operand, such as 256MiB or 1GB"},
    "--provider": LIST | {"help": "who computes"},
    "--baseline": {"metavar": "NAME", "help": "provider that the others are set against"},
    "--signature": SWITCH | {"help": "show what a function of your own must take, and exit"},
    "--device": {"type": device_name, "help": "cpu, cuda or cuda:N (default: the first GPU, else the CPU)"},
    "--threads": {
        "metavar": "N",
        "type": thread_count,
        "help": "of a CPU measurement, not of a GPU's (default: torch's own, which OMP_NUM_THREADS sets, within the "
        "limits of affinity and cgroup)",
    },
    "--gpu": {"metavar": "SLUG", "help": "entry of `python -m roofline gpus` to judge by, not to run on"},
    "--budget": {
        "metavar": "SECONDS",
        "type": number(1e-3, MAX_BUDGET_S, "a number of seconds from 0.001 to 1e9"),
        "help": "time for the whole run (default: no limit)",
    },
    "--seed": {
        "type": number(0, MAX_SEED, "a whole number from 0 to 2^63 - 1", int),
        "default": 0,
        "help": "of the inputs (default: 0)",
    },
    "--fill": {"choices": FILLS, "default": "uniform", "help": "inputs (default: uniform in [-1, 1])"},
    "--cache": {"choices": CACHE_STATES[:2], "default": "cold", "help": "state of the caches (default: cold)"},
    "--timeout": {
        "metavar": "SECONDS",
        "type": number(0.1, MAX_BUDGET_S, "a number of seconds from 0.1 to 1e9"),
        # The first call compiles and tunes a kernel, which may take a minute; an endless loop takes longer.
        "default": 120.0,
        "help": "longest call, or import, of a function of your own (default: 120)",
    },
    "--tolerance": {
        "metavar": "FACTOR",
        "type": number(1, 1e6, "a number from 1 to 1e6"),
        "default": 1.0,
        "help": "times the error that rounding explains which a result may have; what needs it is flagged (default: 1)",
    },
    "--kernels": SWITCH | {"help": "on a GPU, record after the timing which kernels a launch starts; -v prints them"},
    "--format": {"choices": TABLE_FORMATS, "default": "table", "help": "of what goes to stdout (default: table)"},
    "--output": {
        "metavar": "PATH",
        "type": path,
        "action": Output,
        "help": "file or folder for the run file; a .png, .svg or .pdf is taken as --plot",
    },
    "--no-save": SWITCH | {"help": "keep no run file"},
    "--plot": {"metavar": "PATH", "type": path, "help": "draw the roofline: .png, .svg or .pdf"},
    "--quiet": SWITCH | {"help": "no progress, no notes"},
    "--verbose": SWITCH | {"help": "say how each row was verified and timed"},
}
"""What argparse is told of each option that more than one command takes."""

SHORT = {"--output": "-o", "--quiet": "-q", "--verbose": "-v"}

MACHINE = ("--device", "--threads", "--gpu", "--budget", "--seed")
INPUTS = ("--fill", "--cache", "--timeout", "--tolerance")
OUTPUT = ("--format", "--output", "--no-save", "--plot", "--quiet", "--verbose")


def add(group: Any, *names: str, **changes: Any) -> None:
    """Add options by name to a parser or a group; `changes` replace what the table says of them."""
    for name in names:
        short = [SHORT[name]] if name in SHORT else []
        group.add_argument(*short, name, **{**OPTIONS[name], **changes})


def add_list(group: Any, name: str, text: str, **changes: Any) -> None:
    """Add an option of one command that takes a list, separated by commas or blanks, and may repeat."""
    group.add_argument(name, **{**LIST, "help": text, **changes})
