"""Options of several commands of `bench`: how to measure, and what to do with the results."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from bench.harness.data.inputs import FILLS
from results.show.options import HOW, OUTPUT, Parameter, number, path
from results.show.terminal import ADVANCED, FORMAT_HELP, TABLE_FORMATS

Argv = Sequence[str] | None
"""Arguments of a command; None: those of the process."""

PICTURES = (".png", ".svg", ".pdf")

MAX_BUDGET_S = 1e9
"""Thirty years."""

MAX_SEED = 2**63 - 1
"""The largest that every random generator of torch takes."""


def device_name(text: str) -> str:
    """Return a device's name in torch's spelling."""
    if not re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", text):
        raise argparse.ArgumentTypeError(f"unknown device '{text}'; write cpu, cuda or cuda:N")
    return text


def thread_count(text: str) -> int:
    """Return a number of threads, at most one for each logical CPU of this process."""
    from bench.harness.device.device import usable_cores

    maximum = len(usable_cores().allowed)
    what = f"an integer from 1 to {maximum}, the logical CPUs of this process"
    return int(number(1, maximum, what, int)(text))


class Output(argparse.Action):
    """Stores the path of the run file; a path with the suffix of a picture is stored as
    `--plot`.
    """

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None
    ) -> None:
        is_picture = Path(values).suffix.lower() in PICTURES
        setattr(namespace, "plot" if is_picture else self.dest, values)


@dataclass(frozen=True)
class Settings:
    """The options of a run, of which each command has some."""

    device: Annotated[
        str | None, "cpu, cuda or cuda:N (default: first GPU, else CPU)", device_name, HOW
    ] = None
    threads: Annotated[
        int | None,
        "number of CPU threads (default: torch's number, limited by affinity and cgroup quota)",
        thread_count,
        ADVANCED,
        "N",
    ] = None
    gpu: Annotated[
        str | None,
        "compare with the limits of this GPU instead of the device's; `python -m roofline "
        "gpus` lists all",
        str,
        ADVANCED,
        "SLUG",
    ] = None
    budget_s: Annotated[
        float | None,
        Parameter(
            "time limit for measuring; unknown ceilings are measured before it starts "
            "(default: none)",
            number(1e-3, MAX_BUDGET_S, "a number of seconds from 0.001 to 1e9"),
            HOW,
            "SECONDS",
            flags=("--budget",),
        ),
    ] = None
    require_quiet: Annotated[
        bool,
        "exit with 3 before measuring if other processes use more than 10 % of the CPU or the GPU",
        bool,
        ADVANCED,
    ] = False
    seed: Annotated[
        int,
        "random seed for the inputs (default: 0)",
        number(0, MAX_SEED, "an integer from 0 to 2^63 - 1", int),
        ADVANCED,
    ] = 0
    fill: Annotated[str, "input values (default: uniform in [-1, 1])", tuple(FILLS), ADVANCED] = (
        "uniform"
    )
    cache: Annotated[
        str,
        "cold: calls rotate through copies of the inputs; warm: they reuse one copy "
        "(default: cold)",
        ("cold", "warm"),
        HOW,
    ] = "cold"
    timeout_s: Annotated[
        float,
        Parameter(
            "time limit for importing or calling your own function (default: 120)",
            number(0.1, MAX_BUDGET_S, "a number of seconds from 0.1 to 1e9"),
            ADVANCED,
            "SECONDS",
            flags=("--timeout",),
        ),
    ] = 120.0
    """The first call compiles and tunes a kernel, which may take a minute; an endless loop takes
    longer.
    """
    tolerance: Annotated[
        float,
        "multiply the allowed rounding error; rows that pass only because of this are flagged "
        "(default: 1)",
        number(1, 1e6, "a number from 1 to 1e6"),
        ADVANCED,
        "FACTOR",
    ] = 1.0
    in_place: Annotated[
        bool,
        "your own functions change their inputs: restore them before each sample, untimed",
        bool,
        ADVANCED,
    ] = False
    peak_memory: Annotated[
        bool,
        "after timing on a GPU, record how much memory one call allocates at most, besides its "
        "inputs",
        bool,
        ADVANCED,
    ] = False
    format: Annotated[str, FORMAT_HELP, TABLE_FORMATS, OUTPUT] = "table"
    output: Annotated[
        Path | str | None,
        Parameter(
            "save the run to this file or directory; a .png, .svg or .pdf path works like --plot",
            path,
            OUTPUT,
            "PATH",
            flags=("-o", "--output"),
            told={"action": Output},
        ),
    ] = None
    no_save: Annotated[bool, "do not save the run", bool, ADVANCED] = False
    plot: Annotated[
        Path | None, "save a roofline plot: .png, .svg or .pdf", path, OUTPUT, "PATH"
    ] = None
    quiet: Annotated[
        bool, Parameter("suppress progress and notes", group=ADVANCED, flags=("-q", "--quiet"))
    ] = False
    verbose: Annotated[
        bool,
        Parameter(
            "show how each row was verified and timed", group=ADVANCED, flags=("-v", "--verbose")
        ),
    ] = False


MACHINE = ("device", "threads", "gpu", "budget_s", "require_quiet", "seed")
SAVING = ("format", "output", "no_save", "plot", "quiet", "verbose")
"""Options of a run without inputs and kernels."""
