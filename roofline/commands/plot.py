"""`python -m roofline plot`: saved runs, GPUs of the table, or both, in one roofline picture."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from results.compare.selection import Selection, add_latest, latest_of
from results.show.picture import check_picture, save_picture
from results.show.spelling import did_you_mean
from results.show.terminal import USAGE, OutputError, fail, one_line, print_out, say
from results.show.theme import THEMES, add_theme
from results.store.runs import Run, StoreError
from roofline.ceilings import CeilingError, Ceilings, gpu_ceilings
from roofline.hardware.gpu import UnknownGpuError, find_gpu
from roofline.model import judge
from roofline.plot.figure import (
    PlotError,
    PlotMachine,
    draw_roofline,
    run_machine,
)
from roofline.plot.scene import Scene, build_scene, ordered_dtypes
from roofline.plot.style import MOST_MACHINES
from roofline.work import DTYPES, dtype_named

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DEFAULT_DTYPES = (("bf16", "fp16"), ("fp8e4m3",), ("tf32",), ("fp32",))
"""Without a run and without --dtype: of each group the first that the GPU has. fp16 runs at the rate of bf16."""
OVERLAY_GROUPS = 2
"""How many of these groups are drawn for several GPUs."""

DESCRIPTION = """Draw the roofline: attainable FLOP/s = min(peak, arithmetic intensity x memory bandwidth).
Intensity is in FLOP per compulsory byte. With a RUN its points are drawn under the ceilings of its machine;
with --gpu the datasheet ceilings of that GPU, on any machine. Both, and several of both, overlay."""

EXAMPLES = """examples:
  python -m roofline plot latest -o roofline.png                 the newest run under its own ceilings
  python -m roofline plot latest --op gelu --since 2d -o gelu.png
  python -m roofline plot --gpu h100-sxm -o h100.svg             datasheet ceilings, no GPU needed
  python -m roofline plot --gpu h100-sxm,h200-sxm --dtype bf16 -o both.pdf
  python -m roofline plot latest --gpu a100-sxm-80gb -o against-a100.png
  python -m roofline plot latest --dtype bf16 --theme dark -o bf16.png
  python -m roofline plot latest --check 'gelu>=0.9'             exits 1 where a row of gelu is below 90 % of its roof
"""

CHECK = re.compile(r"\s*([^\s<>=]+)\s*>=\s*([0-9]*\.?[0-9]+)\s*")
"""Of an expression of `--check`: the op, and the share of its roof."""


class UsageError(ValueError):
    """What was asked for cannot be; the message is one line for the user."""


class Picture(NamedTuple):
    """What is drawn: machines with the records of runs, and the runs as they were read."""

    machines: list[PlotMachine]
    dtypes: list[str]
    runs: list[Run]

    def figure(self, title: str | None, theme: str, axes: Axes | None = None) -> Figure:
        """Return the roofline; raises as `draw_roofline` does."""
        return draw_roofline(self.machines, self.dtypes, title, axes=axes, theme=theme)


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
    """Return the roofline of saved runs, of GPUs of the table, or of both, as `python -m roofline plot` draws it.

    What the command would note goes to stderr here, too.

    Args:
        runs: each the path of a run file, a run's id or the beginning of one, or `latest`.
        gpu: slugs of the table, a name or several, such as `h100-sxm`; their datasheet ceilings are drawn.
        dtype: only these dtypes; by default those of the runs, without a run a few common ones.
        op: only records of these ops; `latest` is the newest run that has one.
        provider: the same of providers.
        folder: where runs are found by name; by default where all are kept.
        title: in place of the names of the machines.
        theme: `light` or `dark`.
        ax: axes to draw in, without the caption, as large as they are now; by default a figure of its own.

    Raises:
        ValueError: nothing is asked for, or a dtype or theme that there is not; of its kinds, `PlotError` where
            nothing can be drawn, and `StoreError` where a run is not found or cannot be read.
        UnknownGpuError: no GPU has such a slug; the message names the closest ones.
    """
    from results.compare.selection import Wanted

    if theme not in THEMES:
        raise UsageError(f"unknown theme '{theme}'; known: {', '.join(THEMES)}")
    gpus, dtypes, ops, providers = ([one] if isinstance(one, str) else list(one) for one in (gpu, dtype, op, provider))
    chosen = Selection(Wanted(ops=frozenset(ops), providers=frozenset(providers)), None, None)
    names = [os.fspath(run) for run in runs]
    return _picture(names, gpus, dtypes, None if folder is None else Path(folder), chosen).figure(title, theme, ax)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command `plot` to `python -m roofline`."""
    parser = subparsers.add_parser(
        "plot",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    add_sources(parser, f"dtypes to draw: {', '.join(DTYPES)}")
    text = "picture: .png, .svg or .pdf; with --check there may be none"
    parser.add_argument("-o", "--output", type=Path, metavar="PATH", help=text)
    add_theme(parser)
    text = "exit with 1 where a row of this op reaches less than this share of its roof: 'gelu>=0.9'; may repeat"
    parser.add_argument("--check", action="append", default=[], metavar="OP>=SHARE", help=text)
    add_latest(parser)
    parser.set_defaults(run=run)


def add_sources(parser: argparse.ArgumentParser, dtypes: str) -> None:
    """Add the arguments that a picture and a page have in common: what is shown, and under which title.

    Args:
        parser: of the command.
        dtypes: what `--dtype` chooses, for its help.
    """
    parser.add_argument("runs", nargs="*", metavar="RUN", help="a path, a run id, a unique beginning of one, or latest")
    parser.add_argument("--gpu", action="append", metavar="SLUG[,SLUG]", help="GPU of the table; may repeat")
    text = f"{dtypes}; default: those of the runs, without a run a few common ones"
    parser.add_argument("--dtype", action="append", metavar="DTYPE[,DTYPE]", help=text)
    parser.add_argument("--runs", dest="folder", type=Path, metavar="DIR", help="where the runs are kept")
    parser.add_argument("--title", help="title, in place of the names of the machines")


def run(args: argparse.Namespace) -> int:
    """Draw what the arguments ask for; return the exit code, 2 for what cannot be drawn, read or written."""
    try:
        return _plot(args)
    except (UsageError, OutputError, PlotError, CeilingError, StoreError, UnknownGpuError) as error:
        return fail("python -m roofline plot", error)


def _plot(args: argparse.Namespace) -> int:
    """Draw and check; return the exit code, 2 where a run has bad lines, though its good ones are drawn."""
    wanted, slugs = words_of(args.dtype, "--dtype"), words_of(args.gpu, "--gpu")
    floors = [_floor(text) for text in args.check]
    if args.output is None and not floors:
        raise UsageError("name the picture with -o PATH, or ask for shares of the roof with --check 'OP>=SHARE'")
    if args.output is not None:
        check_picture(args.output)
    picture = _picture(args.runs, slugs, wanted, args.folder, latest_of(args))
    short = [line for floor in floors for line in _short_of(floor, picture)]
    if args.output is not None:
        save_picture(picture.figure(args.title, args.theme), args.output)
    problems = [problem for loaded in picture.runs for problem in loaded.problems]
    for problem in problems:
        say(f"python -m roofline plot: {problem}")
    lines = [*([str(args.output)] if args.output is not None else []), *short]
    kept = f"; the picture is in {args.output}" if args.output is not None else ""
    print_out("".join(f"{line}\n" for line in lines), kept=kept)
    return USAGE if problems else int(bool(short))


def known_dtypes(words: Sequence[str]) -> list[str]:
    """Return the dtypes that words name; torch's names will do.

    Raises:
        UsageError: a word names none.
    """
    named = [dtype_named(word) for word in words]
    for dtype in named:
        if dtype not in DTYPES:
            hint = did_you_mean(dtype, DTYPES) or f"known: {', '.join(DTYPES)}"
            raise UsageError(f"unknown dtype '{dtype}'; {hint}")
    return named


def _picture(
    names: Sequence[str], slugs: Sequence[str], wanted: Sequence[str], folder: Path | None, chosen: Selection
) -> Picture:
    """Return what there is to draw, and note what is missing.

    Raises:
        UsageError: what is asked for is nothing, too much, or unknown.
    """
    wanted = known_dtypes(wanted)
    if not names and not slugs:
        raise UsageError("nothing to draw: give a RUN (a path, a run id or latest), or --gpu SLUG, such as h100-sxm")
    gpus = [PlotMachine(gpu_ceilings(find_gpu(slug))) for slug in slugs]
    runs = load_runs(names, folder, chosen)
    machines = merged([*(machine_of(loaded) for loaded in runs), *gpus])
    if len(machines) > MOST_MACHINES:
        raise UsageError(
            f"{len(machines)} machines are too many for one picture; at most {MOST_MACHINES} can be told apart: "
            "draw some of them, or compare all with python -m roofline gpus"
        )
    dtypes = wanted or default_dtypes(machines)
    scene = build_scene(machines, dtypes)
    _check_dtypes(machines, scene, dtypes, is_asked_for=bool(wanted) or bool(runs))
    _note_empty(runs, machines, scene)
    return Picture(machines, dtypes, runs)


def _floor(text: str) -> tuple[str, float]:
    """Return the op and the share of its roof that an expression of `--check` asks for.

    Raises:
        UsageError: it is none.
    """
    found = CHECK.fullmatch(text)
    if found is None or not 0 < float(found[2]) <= 1:
        raise UsageError(f"--check '{one_line(text)}' is not OP>=SHARE with a share above 0 and up to 1: 'gelu>=0.9'")
    return found[1], float(found[2])


def _short_of(floor: tuple[str, float], picture: Picture) -> list[str]:
    """Return a line for each row of an op that reaches less than a share of its roof, or has no share to be judged by.

    Raises:
        UsageError: there is no row of the op, so that nothing was checked.
    """
    op, share = floor
    machines = picture.machines
    rows = [
        (machine, row) for machine in machines for row in machine.records if row.op == op and row.status != "skipped"
    ]
    rows = [(machine, row) for machine, row in rows if row.dtype in picture.dtypes]
    if not rows:
        known = ", ".join(dict.fromkeys(one_line(row.op) for machine in machines for row in machine.records))
        raise UsageError(
            f"--check '{op}>={share:g}': no row of {op} was measured; there are rows of: {known or 'no op'}"
        )
    lines = []
    for machine, row in rows:
        reached = judge(row, machine.ceilings).roofline_pct
        if reached is None or reached < 100 * share:
            said = "no share of its roof is known" if reached is None else f"{reached:.3g} % of its roof"
            said = said if row.status == "ok" else row.status
            words = " ".join(one_line(word) for word in (row.op, row.case, row.dtype, row.provider))
            lines.append(f"{words}: {said}, {100 * share:g} % asked for")
    return lines


def words_of(values: Sequence[str] | None, option: str) -> list[str]:
    """Return the words of a list option that may repeat, each once; an empty one between commas is none.

    Raises:
        UsageError: the option is given without a word.
    """
    words = [word.strip() for value in values or () for word in value.split(",") if word.strip()]
    if values and not words:
        raise UsageError(f"{option} names nothing: '{','.join(values)}'; write names with commas between")
    return list(dict.fromkeys(words))


def load_runs(names: Iterable[str], folder: Path | None, chosen: Selection) -> list[Run]:
    """Return the runs with the records that are wanted, each file once, and tell of what a killed run left behind."""
    if folder is not None and not folder.is_dir():
        raise UsageError(f"--runs '{folder}' is not a folder")
    paths = {path.resolve(): path for path in (chosen.find(name, folder) for name in names)}
    runs = [chosen.load(os.fspath(path)) for path in paths.values()]
    for loaded in runs:
        for text in loaded.notes:
            _note(text)
    return runs


def machine_of(loaded: Run) -> PlotMachine:
    """Return the machine of a run with its records.

    Raises:
        UsageError: its ceilings cannot be used.
    """
    try:
        return run_machine(loaded.environment, loaded.records)
    except CeilingError as error:
        raise UsageError(f"{loaded.path}: the ceilings of this run cannot be used: {error}") from None


def merged(machines: Iterable[PlotMachine]) -> list[PlotMachine]:
    """Return each machine once: runs of one machine share a ceiling, and a GPU adds its datasheet to its runs."""
    found: dict[str, PlotMachine] = {}
    for machine in machines:
        slug = machine.ceilings.slug
        found[slug] = _joined(found[slug], machine) if slug in found else machine
    return list(found.values())


def _joined(first: PlotMachine, second: PlotMachine) -> PlotMachine:
    """Return one machine twice as one, under the ceilings of the newer run."""
    older, newer = sorted((first, second), key=_newest)
    known = {(entry.quantity, entry.name, entry.kind): entry for entry in newer.ceilings.entries}
    old = {(entry.quantity, entry.name, entry.kind): entry for entry in older.ceilings.entries}
    if any(known[key].value != old[key].value for key in known.keys() & old.keys()):
        _note(f"runs of {newer.ceilings.slug} differ in their ceilings; those of {_newest(newer)} are drawn")
    counts = tuple(
        count
        for machine in (first, second)
        for count in machine.counts or (len(machine.records),) * len(machine.environments)
    )
    return PlotMachine(
        newer.ceilings.with_entries(entry for key, entry in old.items() if key not in known),
        first.records + second.records,
        first.environments + second.environments,
        counts,
    )


def _newest(machine: PlotMachine) -> str:
    """Return the start of the newest run of a machine; a GPU of the table comes before any run."""
    return max((environment.started_at for environment in machine.environments), default="")


def default_dtypes(machines: Sequence[PlotMachine]) -> list[str]:
    """Return the dtypes of the runs; without a run, a few that the GPUs have."""
    measured = [record.dtype for machine in machines for record in machine.records]
    if measured:
        return ordered_dtypes(measured)
    groups = DEFAULT_DTYPES if len(machines) == 1 else DEFAULT_DTYPES[:OVERLAY_GROUPS]
    chosen = []
    for machine in machines:
        known = _known_dtypes(machine.ceilings)
        chosen += [dtype for group in groups for dtype in [next((d for d in group if d in known), None)] if dtype]
        if not chosen:
            chosen += known
    return ordered_dtypes(chosen)


def _known_dtypes(ceilings: Ceilings) -> list[str]:
    return ordered_dtypes(entry.name for entry in ceilings.entries if entry.quantity == "flops")


def _check_dtypes(machines: Sequence[PlotMachine], scene: Scene, dtypes: Sequence[str], is_asked_for: bool) -> None:
    """Note which ceiling a machine lacks.

    Raises:
        UsageError: no machine has any of the ceilings, and there is no point either.
    """
    lacking = []
    for index, machine in enumerate(machines):
        drawn = {flat.dtype for flat in scene.flats if flat.machine == index}
        missing = [dtype for dtype in dtypes if dtype not in drawn]
        if missing:
            slug, known = machine.ceilings.slug, ", ".join(_known_dtypes(machine.ceilings)) or "none"
            lacking.append(f"{slug} has no known peak of {', '.join(missing)} (known: {known})")
    if not scene.flats and not scene.points:
        raise UsageError("no ceiling to draw: " + "; ".join(lacking))
    for text in lacking if is_asked_for else ():
        _note(text)


def _note_empty(runs: Sequence[Run], machines: Sequence[PlotMachine], scene: Scene) -> None:
    if runs and not scene.points:
        reasons = ", ".join(f"{count} {reason}" for reason, count in scene.left_out.items()) or "no record"
        _note(f"{', '.join(str(loaded.path) for loaded in runs)}: no point can be drawn ({reasons}); ceilings alone")
    for index, machine in enumerate(machines):
        drawn = {slope.machine for slope in scene.slopes} | {flat.machine for flat in scene.flats}
        if index not in drawn:
            _note(f"no ceiling is known of {machine.ceilings.slug}: its points have no ceiling of their own")


def _note(text: str) -> None:
    say(f"note: {text}")
