"""The content of a page as one JSON object: roofs, rows, runs, modules, verdicts, and the words that explain them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from results.record import Environment
from results.show.terminal import one_line
from results.show.words import BOUNDS, COLUMNS, FLAGS, ROWS, Word
from roofline.page.modules import modules_of
from roofline.page.roofs import roofs_of
from roofline.page.rows import rows_of
from roofline.page.verdicts import told_rows
from roofline.plot.scene import Scene, bands_in_words, chosen_for_labels, point_label, title_lines, version_steps
from roofline.plot.sheet import View, view_of

EXPLAINED = ("median", "95% CI", "TFLOP/s", "GB/s", "FLOP/B", "bound", "% roof", "MFU", "MBU", "n", "first call")
"""The columns whose meaning stands on the page."""
ROOM = 0.3
"""Around an estimate, decades."""
MOST_LABELS = 24
"""Of points; all others tell what they are when they are pointed at."""


def page_content(
    scene: Scene,
    shown_dtypes: Sequence[str],
    title: str | None = None,
    verdicts: Sequence[dict[str, Any]] = (),
    estimates: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """Return all that a page shows.

    Args:
        scene: the machines with their ceilings and points, of all dtypes.
        shown_dtypes: those whose roofs are shown at first.
        title: in place of the names of the machines.
        verdicts: as `verdicts_of` returns them.
        estimates: as `estimates_of` returns them.

    Raises:
        PlotError: the values are not those of a machine.
    """
    names, subtitle = title_lines(scene)
    shown = replace(scene, flats=tuple(flat for flat in scene.flats if flat.dtype in shown_dtypes))
    view = view_of(shown)
    rows = rows_of(scene)
    rows |= told_rows(scene, verdicts) if rows else {}
    records = [record for machine in scene.machines for record in machine.records]
    places = {id(record): row for row, record in enumerate(records)}
    return {
        "title": one_line(title, 200) if title is not None else _unescaped(names),
        "subtitle": _unescaped(subtitle),
        "summary": summary(rows),
        "machines": [
            {"slug": one.ceilings.slug, "name": one.ceilings.name, "note": one.ceilings.note} for one in scene.machines
        ],
        "runs": [_run(environment) for machine in scene.machines for environment in machine.environments],
        "roofs": roofs_of(scene, view),
        "bands": bands_in_words(scene),
        "view": _view_with(view, estimates),
        "launch_s": [_launch_s(machine.ceilings.launch_floor()) for machine in scene.machines],
        "shown_dtypes": list(shown_dtypes),
        "colored_by": scene.colored_by,
        "shaped_by": scene.shaped_by,
        "shapes": scene.shapes if scene.points else [],
        "filled_by": list(scene.told_apart) if len(scene.variants) > 1 else [],
        "fillings": [" ".join(words) for words in scene.variants],
        "rows": rows,
        "labels": _labels(scene, places),
        "steps": [[places[id(p.record)] for p in step] for step in version_steps(scene)],
        "modules": modules_of(scene.machines),
        "verdicts": list(verdicts),
        "estimates": list(estimates),
        "words": _words(rows),
    }


def summary(rows: dict[str, list[Any]]) -> str:
    """Return how many rows there are, what binds them and what speaks against them, in one sentence."""
    status = Counter(rows.get("status", []))
    if not status:
        return "No row was measured: the ceilings alone."
    measured = status.pop("ok", 0)
    parts = [f"{measured:,} row{'s' * (measured != 1)} measured"]
    bounds = Counter(bound for bound in rows["bound"] if bound)
    parts += [", ".join(f"{count:,} {bound_word(bound)}" for bound, count in bounds.most_common())] if bounds else []
    flagged = sum(bool(flags) for flags in rows["flags"])
    parts += [f"{flagged:,} with flags"] if flagged else []
    parts += [f"{count:,} {word}" for word, count in status.items()]
    without = sum(s == "ok" and f == 0 for s, f in zip(rows["status"], rows["flops"], strict=True))
    parts += [f"{without:,} without FLOPs, in a picture of their own"] if without else []
    return "; ".join(parts) + "."


def bound_word(bound: str) -> str:
    """Return what a row with this bound is called."""
    return "at the ridge" if bound == "mixed" else f"{bound}-bound"


def _view_with(view: View, estimates: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """Return the part of the plane that is shown at first, as decimal logarithms, with all estimates in it."""
    found = {"x": [view.left, view.right], "y": [view.bottom, view.top]}
    for one in estimates:
        for axis, key in (("x", "intensity"), ("y", "flops_per_s")):
            place, (low, high) = math.log10(one[key]), found[axis]
            found[axis] = [min(low, place - ROOM), max(high, place + ROOM)]
    return found


def _labels(scene: Scene, places: dict[int, int]) -> list[dict[str, Any]]:
    """Return the labels of the points that the static picture names, with their rows, the most important first."""
    named: set[object] = set()
    found = []
    for point in chosen_for_labels(scene)[:MOST_LABELS]:
        text = point_label(point, scene, is_first=point.series not in named)
        named.add(point.series)
        found.append({"row": places[id(point.record)], "text": _unescaped(text)})
    return found


def _run(environment: Environment) -> dict[str, Any]:
    known = ("run_id", "started_at", "device", "host", "versions", "git", "settings", "preflight")
    return {name: getattr(environment, name) for name in known} | {"command": " ".join(environment.argv)}


def _launch_s(floor: Any) -> float | None:
    return floor.value if floor else None


def _unescaped(text: str) -> str:
    r"""Return a text of a picture without the backslashes that matplotlib needs before a dollar sign."""
    return text.replace(r"\$", "$")


def _words(rows: dict[str, list[Any]]) -> list[dict[str, str]]:
    """Return what each flag, bound and remainder of the rows and each column means, and what to do about it."""
    flags = dict.fromkeys(name for flags in rows.get("flags", []) for name in flags)
    bounds = dict.fromkeys(bound for bound in rows.get("bound", []) if bound)
    unknown = Word("flag", "A word that this version does not know; its reason stands beside the row.")
    entries = [(name, FLAGS.get(name, unknown)) for name in flags]
    entries += [(bound_word(name), BOUNDS[name]) for name in bounds if name in BOUNDS]
    entries += [(name, ROWS[name]) for name in dict.fromkeys(rows.get("op", [])) if name in ROWS]
    entries += [(name, COLUMNS[name]) for name in EXPLAINED]
    return [
        {"name": name, "kind": word.kind, "meaning": word.meaning, "advice": word.advice, "source": word.source}
        for name, word in entries
    ]
