"""`python -m roofline plot`: saved runs, GPUs or both in one roofline plot."""

from __future__ import annotations

import argparse
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, NamedTuple

from results.show.picture import save_picture
from results.show.spelling import did_you_mean
from results.show.terminal import (
    ADVANCED,
    OK,
    USAGE,
    Parser,
    add_picture,
    busy,
    print_out,
    say,
    stdout,
)
from results.store.runfile import Run
from results.store.runs import LATEST, Selection, add_selection, names
from roofline.gpu_table import find_gpu
from roofline.machine import Machine
from roofline.picture.build import build_scene
from roofline.picture.characters import in_characters
from roofline.picture.figure import draw_roofline
from roofline.picture.scene import Measured, PlotError, Scene
from roofline.picture.style import MAX_MACHINES
from roofline.work import DTYPES, dtype_named, ordered_dtypes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DEFAULT_DTYPES = (("bf16", "fp16"), ("fp8e4m3",), ("tf32",), ("fp32",))
"""Without a run and --dtype, the first known dtype of each group; fp16 has the same rate as
bf16.
"""
OVERLAY_GROUPS = 2
"""Number of groups for several GPUs."""

DESCRIPTION = """Draw a roofline: attainable FLOP/s = min(peak, arithmetic intensity x memory
bandwidth).
A RUN is drawn under the ceilings of its machine, a --gpu as datasheet ceilings. Any number of both
can be overlaid. Arithmetic intensity is in FLOP per compulsory byte."""

EXAMPLES = """examples:
  python -m roofline plot latest                                 # in characters, on a terminal
  python -m roofline plot latest -o roofline.png                 # newest run and its ceilings
  python -m roofline plot latest --op gelu --since 2d -o gelu.png
  python -m roofline plot --gpu h100-sxm -o h100.svg             # datasheet ceilings, no GPU needed
  python -m roofline plot --gpu h100-sxm,h200-sxm --dtype bf16 -o both.pdf
"""

MIN_WIDTH = 60
"""Columns of a plot in characters."""


class Sources(NamedTuple):
    """Runs and GPUs of a plot or page."""

    runs: list[Run]
    gpus: list[Machine]

    @property
    def measured(self) -> list[Measured]:
        return [(run.environment, run.records) for run in self.runs]

    @property
    def exit_code(self) -> int:
        """2 if a run has invalid lines."""
        return USAGE if any(run.problems for run in self.runs) else OK


def draw(
    *runs: str | os.PathLike[str],
    gpu: str | Iterable[str] = (),
    dtype: str | Iterable[str] = (),
    op: str | Iterable[str] = (),
    provider: str | Iterable[str] = (),
    folder: str | os.PathLike[str] | None = None,
    title: str | None = None,
    theme: str = "light",
    ax: Axes | None = None,
) -> Figure:
    """Return the roofline plot of saved runs, GPUs or both, as `python -m roofline plot` draws it.

    Args:
        runs: paths, run ids or their unique beginnings, git revisions, or `latest[~N][:OP]`.
        gpu: one or several GPU slugs, such as `h100-sxm`, for datasheet ceilings.
        dtype: dtypes to draw (default: those of the runs, else common ones).
        op: only records of these ops; `latest` is the newest run that has one.
        provider: the same for providers.
        folder: directory of saved runs.
        title: title (default: names of the machines).
        theme: `light` or `dark`.
        ax: axes to draw in, without the caption; None for a new figure.

    Raises:
        ValueError: no run and no GPU, or unknown dtype or theme; `PlotError` if nothing can be
            drawn, `StoreError` if a run is missing or unreadable, `UnknownGpuError` for an unknown
            slug.
    """
    chosen = Selection({"op": _listed(op), "provider": _listed(provider)})
    sources = load_sources(
        [os.fspath(run) for run in runs], _listed(gpu), Path(folder) if folder else None, chosen
    )
    return draw_roofline(_scene(sources, dtypes_of(_listed(dtype))), title, ax, theme)


def _listed(names: str | Iterable[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def add_options(parser: Parser) -> None:
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    add_sources(parser, f"dtypes to draw: {', '.join(DTYPES)}")
    add_picture(
        parser, "save a plot: .png, .svg or .pdf (default: one in characters on a terminal)"
    )
    add_selection(parser, "with `latest`: the newest run", LATEST)


def add_sources(parser: Parser, dtypes: str) -> None:
    """Add the arguments of both plot and page; `dtypes` is the help of `--dtype`."""
    parser.add_argument(
        "runs",
        nargs="*",
        metavar="RUN",
        help="path, run id or its unique start, git revision, or `latest[~N][:OP]`",
    )
    several: dict[str, Any] = {"action": "extend", "type": names, "default": []}
    parser.add_argument(
        "--gpu",
        **several,
        metavar="SLUG[,SLUG]",
        help="GPU slug, see `python -m roofline gpus`; may be repeated",
    )
    text = f"{dtypes} (default: those of the runs, else common ones)"
    parser.add_argument("--dtype", **several, metavar="DTYPE[,DTYPE]", help=text)
    advanced = parser.group(ADVANCED)
    advanced.add_argument(
        "--runs", dest="folder", type=Path, metavar="DIR", help="directory of saved runs"
    )
    advanced.add_argument("--title", help="title (default: names of the machines)")


def run(args: argparse.Namespace) -> int:
    wanted = dtypes_of(args.dtype)
    path = args.output
    if path is None and not stdout().isatty():
        raise PlotError("expected -o PATH")
    sources = load_sources(args.runs, args.gpu, args.folder, Selection.of(vars(args), LATEST))
    scene = _scene(sources, wanted)
    if path is None:
        print_out(f"{in_characters(scene, max(MIN_WIDTH, get_terminal_size().columns))}\n")
    else:
        with busy("drawing"):
            save_picture(draw_roofline(scene, args.title, theme=args.theme), path)
        print_out(f"{path}\n", kept=f"; the plot is in {path}")
    return sources.exit_code


def dtypes_of(words: Iterable[str]) -> list[str]:
    """Return the distinct dtypes of names as in this project or in torch."""
    dtypes = list(dict.fromkeys(map(dtype_named, words)))
    for dtype in dtypes:
        if dtype not in DTYPES:
            hint = did_you_mean(dtype, DTYPES) or f"known: {', '.join(DTYPES)}"
            raise PlotError(f"unknown dtype '{dtype}'; {hint}")
    return dtypes


def load_sources(
    names: Sequence[str], slugs: Sequence[str], folder: Path | None, chosen: Selection
) -> Sources:
    """Load the chosen records of runs, each file once, and the GPUs; print notes on interrupted
    runs, and invalid lines.
    """
    if not names and not slugs:
        raise PlotError(
            "expected a RUN (a path, a run id or latest) or --gpu SLUG, such as h100-sxm"
        )
    if not names and not chosen.is_everything:
        raise PlotError(
            "--op, --provider, --machine and --since select rows of saved runs; name a RUN, such "
            "as latest"
        )
    if folder is not None and not folder.is_dir():
        raise PlotError(f"--runs '{folder}' is not a directory")
    gpus = list(map(find_gpu, dict.fromkeys(slugs)))
    loads = (chosen.load(name, folder) for name in names)
    runs = list({loaded.path.resolve(): loaded for loaded in loads}.values())
    ceilings = defaultdict(set)
    for loaded in runs:
        for text in loaded.notes:
            _note(text)
        for problem in loaded.problems:
            say(problem)
        machine = loaded.environment.machine
        ceilings[machine.slug].add(frozenset(machine.entries))
    for slug, known in ceilings.items():
        if len(known) > 1:
            _note(f"runs of {slug} differ in their ceilings; those of the newest are drawn")
    return Sources(runs, gpus)


def _scene(sources: Sources, wanted: Sequence[str]) -> Scene:
    dtypes = wanted or default_dtypes(sources)
    scene = build_scene(sources.measured, sources.gpus, dtypes)
    if len(scene.machines) > MAX_MACHINES:
        raise PlotError(
            f"{len(scene.machines)} machines exceed the {MAX_MACHINES} of one plot; "
            "compare them with python -m roofline gpus"
        )
    lacking = []
    for known in scene.machines:
        missing = [dtype for dtype in dtypes if dtype not in known.dtypes]
        if missing:
            names = ", ".join(known.dtypes) or "none"
            lacking.append(
                f"{known.slug} has no known peak for {', '.join(missing)} (known: {names})"
            )
    if not scene.flats and not scene.points:
        raise PlotError("no ceiling to draw: " + "; ".join(lacking))
    if wanted or sources.runs:
        for text in lacking:
            _note(text)
    if sources.runs and not scene.points:
        reasons = (
            ", ".join(f"{count} {reason}" for reason, count in scene.left_out.items())
            or "no record"
        )
        paths = ", ".join(str(run.path) for run in sources.runs)
        _note(f"{paths}: no point can be drawn ({reasons}), only ceilings")
    return scene


def default_dtypes(sources: Sources) -> list[str]:
    measured: list[str] = []
    for run in sources.runs:
        measured += [record.dtype for record in run.records]
    if measured:
        return ordered_dtypes(measured)
    machines = [*(run.environment.machine for run in sources.runs), *sources.gpus]
    groups = DEFAULT_DTYPES if len(machines) == 1 else DEFAULT_DTYPES[:OVERLAY_GROUPS]
    chosen: list[str] = []
    for machine in machines:
        firsts = (
            next((dtype for dtype in group if dtype in machine.dtypes), None) for group in groups
        )
        chosen += list(filter(None, firsts)) or machine.dtypes
    return ordered_dtypes(chosen)


def _note(text: str) -> None:
    say(f"note: {text}")
